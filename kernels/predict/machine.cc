#include "kernels/predict/machine.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_format.h"
#include "kernels/base/dtype.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

absl::Status CheckRate(double value, const char* name) {
  if (value > 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, but a rate is above 0; give it a value", name, value));
}

absl::Status CheckCost(double value, const char* name) {
  if (value >= 0 && std::isfinite(value)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s is %g, but a time is at least 0; give it such a value", name, value));
}

absl::Status CheckLinks(const Links& links, const std::string& name) {
  const LinkRates& rates = links.rates;
  AGMM_RETURN_IF_ERROR(CheckRate(rates.one_way, (name + ".one_way_gb_per_s").c_str()));
  AGMM_RETURN_IF_ERROR(CheckCost(rates.latency_ns, (name + ".latency_us").c_str()));
  if (!(rates.two_way >= rates.one_way && rates.two_way <= 2 * rates.one_way)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s.two_way_gb_per_s is %g, outside [%g, %g], which is once to twice "
                        "one_way_gb_per_s; leave it out for twice",
                        name, rates.two_way, rates.one_way, 2 * rates.one_way));
  }
  for (const PairRates& pair : links.pairs) {
    const std::string at = absl::StrFormat("%s.pairs from %d to %d", name, pair.from, pair.to);
    if (pair.from < 0 || pair.to < 0 || pair.from == pair.to) {
      return absl::InvalidArgumentError(
          absl::StrFormat("%s: a pair has two different nodes, counted from 0; correct it", at));
    }
    AGMM_RETURN_IF_ERROR(CheckRate(pair.one_way, (at + ": one_way_gb_per_s").c_str()));
    AGMM_RETURN_IF_ERROR(CheckCost(pair.latency_ns, (at + ": latency_us").c_str()));
  }
  return absl::OkStatus();
}

}  // namespace

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

double PeakFlopsPerNs(const DeviceRates& device, DType dtype) {
  double peak = 0;
  for (const GemmRate& one : device.gemm)
    if (one.dtype == dtype) peak = std::max(peak, one.flops_per_ns);
  return peak;
}

absl::Status Validate(const Machine& machine) {
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.within, "within"));
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.staged, "staged"));
  AGMM_RETURN_IF_ERROR(CheckLinks(machine.between, "between"));
  const DeviceRates& device = machine.device;
  AGMM_RETURN_IF_ERROR(CheckRate(device.memory, "device.memory_gb_per_s"));
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
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    double last = 0;  // the time of the smaller product
    double size = 0;
    for (const GemmRate& one : device.gemm) {
      if (one.dtype != dtype) continue;
      AGMM_RETURN_IF_ERROR(CheckRate(one.flops, "device.gemm.gflop"));
      AGMM_RETURN_IF_ERROR(CheckRate(one.flops_per_ns, "device.gemm.gflop_per_s"));
      const double time = one.flops / one.flops_per_ns;
      if (one.flops <= size || time < last) {
        return absl::InvalidArgumentError(absl::StrFormat(
            "device.gemm of %g Gflop in %s comes after one of %g Gflop or takes less time than it; "
            "order products by size, and leave out a measurement that is faster than a smaller one",
            one.flops * 1e-9, Name(dtype), size * 1e-9));
      }
      size = one.flops;
      last = time;
    }
    if (size == 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("device.gemm has no rate for %s; give one for each dtype", Name(dtype)));
    }
  }
  return absl::OkStatus();
}

}  // namespace agmm
