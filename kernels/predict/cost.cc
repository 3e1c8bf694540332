#include "kernels/predict/cost.h"

#include <algorithm>
#include <functional>
#include <numeric>

namespace agmm {
namespace {

double DevicesOf(const std::vector<int>& sizes) {
  return std::accumulate(sizes.begin(), sizes.end(), 1.0, std::multiplies<>());
}

// The rate of one direction of a link, of which a passing uses one or both at the same time.
double RateOfDirection(const LinkRates& links, Passing passing) {
  return passing == Passing::kOneWay ? links.one_way : std::min(links.one_way, links.two_way / 2);
}

// Hops to the last device along an axis.
int HopsAlong(int size, Passing passing) {
  return passing == Passing::kBothWays ? size / 2 : size - 1;
}

// The same along all axes.
int HopsAlong(const std::vector<int>& sizes, Passing passing) {
  int hops = 0;
  for (const int size : sizes) hops += HopsAlong(size, passing);
  return hops;
}

// The messages into which a passing cuts each block.
int PiecesOf(Passing passing) { return passing == Passing::kHalvesBothWays ? 2 : 1; }

// Shards on the busier direction of a link in a gather.
double GatherLinkShards(int size, Passing passing) {
  return static_cast<double>(HopsAlong(size, passing)) / PiecesOf(passing);
}

// Blocks, of which each device has one for each device, on the busier direction of a link.
double AllToAllLinkBlocks(int size, Passing passing) {
  const double half = size / 2;
  if (passing == Passing::kLine) return half * (size - half);
  const double farthest = HopsAlong(size, passing);
  return farthest * (farthest + 1) / 2 / PiecesOf(passing);
}

}  // namespace

namespace rule {

double HopNs(double bytes, int size, const LinkRates& links) {
  return std::max(links.latency_ns, 2 * bytes / (size * links.two_way));
}

double GatherNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                Passing passing) {
  const double axes = static_cast<double>(sizes.size());
  const double sum = std::accumulate(sizes.begin(), sizes.end(), 0.0);
  const double hops = passing == Passing::kBothWays ? sum / 2 : sum - axes;
  const bool asymptotic = passing == Passing::kBothWays || passing == Passing::kHalvesBothWays;
  const double devices = DevicesOf(sizes);
  const double transfer_ns = asymptotic ? bytes / (links.two_way * axes)
                                        : bytes * (devices - 1) / (devices * links.one_way * axes);
  return std::max(links.latency_ns * hops, transfer_ns);
}

double AllReduceNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                   Passing passing) {
  return 2 * GatherNs(bytes, sizes, links, passing);
}

double AllToAllNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                  Passing passing) {
  if (passing != Passing::kBothWays)
    return exact::AllToAllLinkBytes(bytes, sizes, passing) / RateOfDirection(links, passing);
  const int largest = *std::max_element(sizes.begin(), sizes.end());
  return bytes * largest / (4 * DevicesOf(sizes) * links.two_way);
}

double LatencyBoundBytes(const LinkRates& links) { return links.one_way * links.latency_ns; }

}  // namespace rule

namespace exact {

double GatherLinkBytes(double bytes, int size, Passing passing) {
  return bytes / size * GatherLinkShards(size, passing);
}

double AllToAllLinkBytes(double bytes, const std::vector<int>& sizes, Passing passing) {
  const int largest = *std::max_element(sizes.begin(), sizes.end());
  return bytes / largest / DevicesOf(sizes) * AllToAllLinkBlocks(largest, passing);
}

double GatherNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                Passing passing, int parts) {
  const int axes = static_cast<int>(sizes.size());
  const double rate = RateOfDirection(links, passing);
  const double shard_bytes = bytes / DevicesOf(sizes) / parts;
  std::vector<double> link_shards(axes, 0.0);
  for (int part = 0; part < parts; ++part) {
    double gathered = 1;  // shards that a device has gathered along the axes before
    for (int i = 0; i < axes; ++i) {
      const int axis = (part + i) % axes;
      link_shards[axis] += gathered * GatherLinkShards(sizes[axis], passing);
      gathered *= sizes[axis];
    }
  }
  const double busiest = *std::max_element(link_shards.begin(), link_shards.end());
  const int hops = HopsAlong(sizes, passing);
  if (hops == 0) return 0;
  return std::max(busiest * shard_bytes / rate + links.latency_ns,
                  hops * (shard_bytes / PiecesOf(passing) / rate + links.latency_ns));
}

double AllToAllNs(double bytes, int size, const LinkRates& links, Passing passing) {
  return AllToAllLinkBytes(bytes, {size}, passing) / RateOfDirection(links, passing) +
         HopsAlong(size, passing) * links.latency_ns;
}

double AllToAllPipelinedNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                           Passing passing) {
  const double rate = RateOfDirection(links, passing);
  const double devices = DevicesOf(sizes);
  const double message_bytes = bytes / devices / devices / PiecesOf(passing);
  const int hops = HopsAlong(sizes, passing);
  if (hops == 0) return 0;
  return std::max(AllToAllLinkBytes(bytes, sizes, passing) / rate + links.latency_ns,
                  hops * (message_bytes / rate + links.latency_ns));
}

double SwitchGatherNs(double bytes, int size, const LinkRates& ports) {
  if (size == 1) return 0;
  return bytes * (size - 1) / size / RateOfDirection(ports, Passing::kBothWays) + ports.latency_ns;
}

double SwitchAllToAllNs(double bytes, int size, const LinkRates& ports) {
  return SwitchGatherNs(bytes / size, size, ports);
}

double PairwiseGatherNs(double bytes, int size, const LinkRates& links) {
  if (size == 1) return 0;
  return bytes / size / RateOfDirection(links, Passing::kBothWays) + links.latency_ns;
}

double PairwiseAllToAllNs(double bytes, int size, const LinkRates& links) {
  return PairwiseGatherNs(bytes / size, size, links);
}

double HierarchicalGatherNs(double bytes, int nodes, int ranks_per_node, const LinkRates& between,
                            const LinkRates& within) {
  const double shard_bytes = bytes / nodes / ranks_per_node;
  const double fan_out_ns =
      (ranks_per_node - 1) * shard_bytes / RateOfDirection(within, Passing::kBothWays);
  const double within_latency_ns = ranks_per_node == 1 ? 0 : within.latency_ns;
  const double within_ns = nodes * fan_out_ns + within_latency_ns;
  if (nodes == 1) return within_ns;
  const double between_ns =
      (nodes - 1) * ranks_per_node * shard_bytes / RateOfDirection(between, Passing::kBothWays) +
      between.latency_ns;
  return std::max(between_ns + fan_out_ns + within_latency_ns, within_ns);
}

}  // namespace exact

double ShardBytes(double bytes, const std::vector<int>& cuts) { return bytes / DevicesOf(cuts); }

double TotalBytes(double bytes, const std::vector<int>& cuts, int devices) {
  return ShardBytes(bytes, cuts) * devices;
}

double LoadNs(double bytes, const DeviceRates& device) { return bytes / device.memory; }

double RingProductBoundNs(double shard_product_ns, int devices, double round_ns) {
  return devices * shard_product_ns + round_ns * (devices - 1);
}

double HiddenColumnsOfAll(int devices, double flops_per_ns, double bytes_per_ns) {
  return devices * flops_per_ns / bytes_per_ns;
}

double HiddenColumns(int ranks, double element_bytes, double flops_per_ns, double bytes_per_ns) {
  return (ranks - 1) * element_bytes * flops_per_ns / (2 * bytes_per_ns);
}

StrategyTimes GatherThenMultiply(const StrategyQuestion& question) {
  const double matrix = question.depth * question.width;
  return {.compute_ns = 2 * question.batch * matrix / question.flops_per_ns,
          .comm_ns = question.element_bytes * matrix / question.bytes_per_ns};
}

StrategyTimes MultiplyThenAllReduce(const StrategyQuestion& question) {
  const double matrix = question.batch * question.width;
  return {.compute_ns = 2 * matrix * question.depth / (question.size * question.flops_per_ns),
          .comm_ns = 2 * question.element_bytes * matrix / question.bytes_per_ns};
}

StrategyThresholds ThresholdsOf(const StrategyQuestion& question) {
  const double ratio = question.element_bytes * question.flops_per_ns / question.bytes_per_ns;
  return {.comm_bound_batch = ratio / 2,
          .depth_small_batch = 2 * question.batch,
          .depth_large_batch = ratio};
}

}  // namespace agmm
