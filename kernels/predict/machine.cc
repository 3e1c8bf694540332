#include "kernels/predict/machine.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_format.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// With rates and times within these bounds, no time of a plan overflows.
constexpr double kLeastRate = 1e-6, kMostRate = 1e9;  // units per ns
constexpr double kMostCost = 1e9;                     // ns
constexpr double kMostFlops = 1e18;
constexpr double kMostBurstBytes = 1e12;

absl::Status CheckRate(double value, const char* name) {
  if (value >= kLeastRate && value <= kMostRate) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, but a rate is above 0, from %g to %g; give it such a value", name,
                      value, kLeastRate, kMostRate));
}

absl::Status CheckFlops(double value, const char* name) {
  if (value >= 1 && value <= kMostFlops) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g flops, outside [1, %g]; correct it", name, value, kMostFlops));
}

absl::Status CheckCost(double value, const char* name) {
  if (value >= 0 && value <= kMostCost) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s is %g ns, but a time is at least 0, and at most %g ns; give it such a value", name, value,
      kMostCost));
}

absl::Status CheckPairs(const Links& links, const std::string& name) {
  absl::flat_hash_map<std::pair<int, int>, size_t> index;  // by nodes
  for (size_t i = 0; i < links.pairs.size(); ++i) {
    const PairRates& pair = links.pairs[i];
    const std::string at = absl::StrFormat("%s.pairs[%d]", name, i);
    if (pair.from < 0 || pair.to < 0 || pair.from == pair.to) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s is from node %d to node %d, but a pair has two different nodes, counted from 0; "
          "correct it",
          at, pair.from, pair.to));
    }
    if (const auto [first, is_new] = index.try_emplace({pair.from, pair.to}, i); !is_new) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is from node %d to node %d, as pairs[%d] is; leave one out", at,
                          pair.from, pair.to, first->second));
    }
    AGMM_RETURN_IF_ERROR(CheckRate(pair.one_way, (at + ".one_way_gb_per_s").c_str()));
    AGMM_RETURN_IF_ERROR(CheckCost(pair.latency_ns, (at + ".latency_us").c_str()));
  }
  return absl::OkStatus();
}

absl::Status CheckLinks(const Links& links, const std::string& name) {
  const LinkRates& rates = links.rates;
  AGMM_RETURN_IF_ERROR(CheckRate(rates.one_way, (name + ".one_way_gb_per_s").c_str()));
  AGMM_RETURN_IF_ERROR(CheckCost(rates.latency_ns, (name + ".latency_us").c_str()));
  if (!(rates.burst_bytes >= 0 && rates.burst_bytes <= kMostBurstBytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s.burst_kb is %g, outside [0, %g]; leave it out for none", name,
                        rates.burst_bytes * 1e-3, kMostBurstBytes * 1e-3));
  }
  if (!(rates.two_way >= rates.one_way && rates.two_way <= 2 * rates.one_way)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s.two_way_gb_per_s is %g, outside [%g, %g], which is once to twice "
                        "one_way_gb_per_s; leave it out for twice",
                        name, rates.two_way, rates.one_way, 2 * rates.one_way));
  }
  return CheckPairs(links, name);
}

// Nodes, and devices outside a torus, have no pairs or axes that a path could use.
absl::Status CheckWiring(const Machine& machine) {
  for (const auto& [links, name] :
       {std::pair{&machine.within, "within"}, {&machine.staged, "staged"}}) {
    if (!links->pairs.empty()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s.pairs[0] is between devices of a node, but only pairs of nodes have "
                          "rates of their own; leave it out",
                          name));
    }
  }
  for (const auto& [links, name] :
       {std::pair{&machine.staged, "staged"}, {&machine.between, "between"}}) {
    if (links->wiring == Wiring::kTorus && machine.within.wiring != Wiring::kTorus) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s.wiring is TORUS, but only all devices together form a torus; give "
                          "SWITCH or PAIRWISE, "
                          "or TORUS for within",
                          name));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckCaches(const DeviceRates& device) {
  for (size_t i = 0; i < device.caches.size(); ++i) {
    const CacheRate& one = device.caches[i];
    const std::string at = absl::StrFormat("device.caches[%d]", i);
    AGMM_RETURN_IF_ERROR(CheckRate(one.bytes, (at + ".mb").c_str()));
    AGMM_RETURN_IF_ERROR(CheckRate(one.bytes_per_ns, (at + ".gb_per_s").c_str()));
    const double next =
        i + 1 < device.caches.size() ? device.caches[i + 1].bytes_per_ns : device.memory;
    const bool grows = i == 0 || one.bytes > device.caches[i - 1].bytes;
    if (grows && one.bytes_per_ns >= next) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %g MB and %g GB/s, but caches are in the order of their sizes, and "
                        "a larger one, or "
                        "the memory, is not faster; order them, or leave this one out",
                        at, one.bytes * 1e-6, one.bytes_per_ns));
  }
  return absl::OkStatus();
}

absl::Status CheckGemm(const std::vector<GemmRate>& gemm) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const GemmRate* smaller = nullptr;
    for (size_t i = 0; i < gemm.size(); ++i) {
      const GemmRate& one = gemm[i];
      if (one.dtype != dtype) continue;
      const std::string at = absl::StrFormat("device.gemm[%d]", i);
      AGMM_RETURN_IF_ERROR(CheckFlops(one.flops, (at + ".gflop").c_str()));
      AGMM_RETURN_IF_ERROR(CheckRate(one.flops_per_ns, (at + ".gflop_per_s").c_str()));
      const auto time = [](const GemmRate& rate) { return rate.flops / rate.flops_per_ns; };
      if (smaller != nullptr && (one.flops <= smaller->flops || time(one) < time(*smaller))) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "%s of %g Gflop in %s comes after one of %g Gflop or takes less time than it; order "
            "products by size, and leave out a measurement that is faster than a smaller one",
            at, one.flops * 1e-9, Name(dtype), smaller->flops * 1e-9));
      }
      smaller = &one;
    }
    if (smaller == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrFormat("device.gemm has no rate for %s; give one for each dtype", Name(dtype)));
    }
  }
  return absl::OkStatus();
}

}  // namespace

DeviceRates RatesWithin(const DeviceRates& device, double bytes) {
  DeviceRates rates = device;
  if (device.caches.empty()) return rates;
  CacheRate below = device.caches.front(), above = below;
  for (const CacheRate& cache : device.caches) {
    above = cache;
    if (cache.bytes >= bytes) break;
    below = cache;
  }
  if (above.bytes < bytes) above = {below.bytes * kBeyondCaches, device.memory};
  const double share = above.bytes == below.bytes
                           ? 0
                           : std::log(bytes / below.bytes) / std::log(above.bytes / below.bytes);
  rates.memory = below.bytes_per_ns *
                 std::pow(above.bytes_per_ns / below.bytes_per_ns, std::clamp(share, 0.0, 1.0));
  rates.copy_ns_per_byte *= device.memory / rates.memory;
  return rates;
}

double GemmNs(const DeviceRates& device, DType dtype, double flops) {
  const GemmRate* below = nullptr;
  const GemmRate* above = nullptr;
  for (const GemmRate& one : device.gemm) {
    if (one.dtype != dtype) continue;
    if (one.flops <= flops) below = &one;
    if (one.flops >= flops && above == nullptr) above = &one;
  }
  if (below == nullptr) below = above;
  if (above == nullptr) above = below;
  if (below == nullptr || flops <= 0) return 0;
  if (below == above) return flops / below->flops_per_ns;
  // Interpolates times, so that a larger product never takes less time than a smaller one.
  const double at = std::log(flops / below->flops) / std::log(above->flops / below->flops);
  const double first = below->flops / below->flops_per_ns;
  const double last = above->flops / above->flops_per_ns;
  return first * std::pow(last / first, at);
}

double ProductNs(const DeviceRates& device, DType dtype, double flops, double bytes) {
  const double square = std::pow(flops / 2, 2.0 / 3) * static_cast<double>(SizeOf(dtype));
  // A copy reads and writes each byte.
  const double extra_ns = std::max(0.0, bytes - 3 * square) * device.copy_ns_per_byte / 2;
  return device.multiply_ns + GemmNs(device, dtype, flops) + extra_ns;
}

double PeakFlopsPerNs(const DeviceRates& device, DType dtype) {
  double peak = 0;
  for (const GemmRate& one : device.gemm)
    if (one.dtype == dtype) peak = std::max(peak, one.flops_per_ns);
  return peak;
}

absl::Status Validate(const Machine& machine) {
  if (machine.devices_per_node < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("devices_per_node is %d, but a node has at least 1; give their number",
                        machine.devices_per_node));
  }
  if (machine.wrap_multiple < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "wrap_multiple is %d, but a multiple is above 0; give 0 if no axis wraps around",
        machine.wrap_multiple));
  }
  if (machine.heap_bytes < 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "heap_bytes is %d, but a heap is above 0; give 0 if it is unknown", machine.heap_bytes));
  }
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.within, "within"));
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.staged, "staged"));
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.between, "between"));
  AGMM_RETURN_IF_ERROR(CheckWiring(machine));
  const DeviceRates& device = machine.device;
  AGMM_RETURN_IF_ERROR(CheckRate(device.memory, "device.memory_gb_per_s"));
  AGMM_RETURN_IF_ERROR(CheckCaches(device));
  for (const auto& [value, name] : {std::pair{device.multiply_ns, "device.multiply_us"},
                                    {device.step_ns, "device.step_us"},
                                    {device.signal_ns, "device.signal_us"},
                                    {device.message_ns, "device.message_us"},
                                    {device.send_ns_per_byte, "device.send_ns_per_byte"},
                                    {device.receive_ns_per_byte, "device.receive_ns_per_byte"},
                                    {device.copy_ns_per_byte, "device.copy_ns_per_byte"},
                                    {device.pack_ns_per_byte, "device.pack_ns_per_byte"}}) {
    AGMM_RETURN_IF_ERROR(CheckCost(value, name));
  }
  return CheckGemm(device.gemm);
}

}  // namespace agmm
