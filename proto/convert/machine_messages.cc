#include "proto/convert/machine_messages.h"

#include <cmath>
#include <string>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

constexpr double kNsPerUs = 1e3, kFlopsPerGflop = 1e9, kBytesPerMb = 1e6, kBytesPerKb = 1e3;

// Rounds to 1e-6 ns, because us * 1000 does not reach every time in ns.
double NsOf(double us) { return std::round(us * 1e9) / 1e6; }

absl::StatusOr<Wiring> WiringOf(v1::MachineLinks::Wiring wiring, const std::string& path) {
  switch (wiring) {
    case v1::MachineLinks::SWITCH: return Wiring::kSwitch;
    case v1::MachineLinks::PAIRWISE: return Wiring::kPairwise;
    case v1::MachineLinks::TORUS: return Wiring::kTorus;
    default:
      return absl::InvalidArgumentError(
          absl::StrFormat("%s.wiring is %s; give SWITCH, PAIRWISE or TORUS", path,
                          wiring == 0 ? "missing" : absl::StrCat("unknown (", wiring, ")")));
  }
}

v1::MachineLinks::Wiring ToProto(Wiring wiring) {
  switch (wiring) {
    case Wiring::kSwitch: return v1::MachineLinks::SWITCH;
    case Wiring::kPairwise: return v1::MachineLinks::PAIRWISE;
    case Wiring::kTorus: return v1::MachineLinks::TORUS;
  }
  return v1::MachineLinks::WIRING_UNSPECIFIED;
}

absl::StatusOr<Links> LinksOf(const v1::MachineLinks& proto, const std::string& path) {
  Links links;
  AGMM_ASSIGN_OR_RETURN(links.wiring, WiringOf(proto.wiring(), path));
  links.rates.one_way = proto.one_way_gb_per_s();
  links.rates.two_way =
      proto.two_way_gb_per_s() == 0 ? 2 * proto.one_way_gb_per_s() : proto.two_way_gb_per_s();
  links.rates.latency_ns = NsOf(proto.latency_us());
  links.rates.burst_bytes = std::round(proto.burst_kb() * kBytesPerKb);
  for (const v1::MachineLinks::Pair& pair : proto.pairs()) {
    links.pairs.push_back(
        {pair.from_node(), pair.to_node(), pair.one_way_gb_per_s(), NsOf(pair.latency_us())});
  }
  return links;
}

v1::MachineLinks ToProto(const Links& links) {
  v1::MachineLinks proto;
  proto.set_wiring(ToProto(links.wiring));
  proto.set_one_way_gb_per_s(links.rates.one_way);
  proto.set_two_way_gb_per_s(links.rates.two_way);
  proto.set_latency_us(links.rates.latency_ns / kNsPerUs);
  proto.set_burst_kb(links.rates.burst_bytes / kBytesPerKb);
  for (const PairRates& pair : links.pairs) {
    v1::MachineLinks::Pair* const out = proto.add_pairs();
    out->set_from_node(pair.from);
    out->set_to_node(pair.to);
    out->set_one_way_gb_per_s(pair.one_way);
    out->set_latency_us(pair.latency_ns / kNsPerUs);
  }
  return proto;
}

absl::StatusOr<DeviceRates> DeviceOf(const v1::MachineDevice& proto) {
  DeviceRates device;
  for (int i = 0; i < proto.gemm_size(); ++i) {
    const v1::MachineGemm& gemm = proto.gemm(i);
    const auto dtype = FromProto(gemm.dtype());
    if (!dtype.ok()) {
      return Annotate(dtype.status(), absl::StrFormat("device.gemm[%d].dtype", i));
    }
    device.gemm.push_back({*dtype, std::round(gemm.gflop() * kFlopsPerGflop), gemm.gflop_per_s()});
  }
  device.memory = proto.memory_gb_per_s();
  for (const v1::MachineCache& cache : proto.caches())
    device.caches.push_back({std::round(cache.mb() * kBytesPerMb), cache.gb_per_s()});
  device.multiply_ns = NsOf(proto.multiply_us());
  device.step_ns = NsOf(proto.step_us());
  device.signal_ns = NsOf(proto.signal_us());
  device.message_ns = NsOf(proto.message_us());
  device.send_ns_per_byte = proto.send_ns_per_byte();
  device.receive_ns_per_byte = proto.receive_ns_per_byte();
  device.copy_ns_per_byte = proto.copy_ns_per_byte();
  device.pack_ns_per_byte = proto.pack_ns_per_byte();
  return device;
}

v1::MachineDevice ToProto(const DeviceRates& device) {
  v1::MachineDevice proto;
  for (const GemmRate& rate : device.gemm) {
    v1::MachineGemm* const out = proto.add_gemm();
    out->set_dtype(ToProto(rate.dtype));
    out->set_gflop(rate.flops / kFlopsPerGflop);
    out->set_gflop_per_s(rate.flops_per_ns);
  }
  proto.set_memory_gb_per_s(device.memory);
  for (const CacheRate& cache : device.caches) {
    v1::MachineCache* const out = proto.add_caches();
    out->set_mb(cache.bytes / kBytesPerMb);
    out->set_gb_per_s(cache.bytes_per_ns);
  }
  proto.set_multiply_us(device.multiply_ns / kNsPerUs);
  proto.set_step_us(device.step_ns / kNsPerUs);
  proto.set_signal_us(device.signal_ns / kNsPerUs);
  proto.set_message_us(device.message_ns / kNsPerUs);
  proto.set_send_ns_per_byte(device.send_ns_per_byte);
  proto.set_receive_ns_per_byte(device.receive_ns_per_byte);
  proto.set_copy_ns_per_byte(device.copy_ns_per_byte);
  proto.set_pack_ns_per_byte(device.pack_ns_per_byte);
  return proto;
}

}  // namespace

absl::StatusOr<Machine> FromProto(const v1::Machine& proto) {
  Machine machine;
  machine.name = proto.name();
  machine.version = proto.version();
  machine.devices_per_node = proto.devices_per_node() == 0 ? 1 : proto.devices_per_node();
  machine.wrap_multiple = proto.wrap_multiple();
  AGMM_ASSIGN_OR_RETURN(machine.within, LinksOf(proto.within(), "within"));
  machine.staged = machine.between = machine.within;
  if (proto.has_staged()) {
    AGMM_ASSIGN_OR_RETURN(machine.staged, LinksOf(proto.staged(), "staged"));
  }
  if (proto.has_between() || machine.within.wiring != Wiring::kTorus) {
    AGMM_ASSIGN_OR_RETURN(machine.between, LinksOf(proto.between(), "between"));
  }
  AGMM_ASSIGN_OR_RETURN(machine.device, DeviceOf(proto.device()));
  machine.heap_bytes = proto.heap_bytes();
  AGMM_RETURN_IF_ERROR(Validate(machine));
  return machine;
}

v1::Machine ToProto(const Machine& machine) {
  v1::Machine proto;
  proto.set_name(machine.name);
  proto.set_version(machine.version);
  proto.set_devices_per_node(machine.devices_per_node);
  proto.set_wrap_multiple(machine.wrap_multiple);
  *proto.mutable_within() = ToProto(machine.within);
  if (!(machine.staged == machine.within)) *proto.mutable_staged() = ToProto(machine.staged);
  if (machine.within.wiring != Wiring::kTorus || !(machine.between == machine.within))
    *proto.mutable_between() = ToProto(machine.between);
  *proto.mutable_device() = ToProto(machine.device);
  proto.set_heap_bytes(machine.heap_bytes);
  return proto;
}

}  // namespace agmm
