// Closed forms of the times of collectives and products, in ns. `rule` has the estimates of the
// scaling book ("How to Scale Your Model", part 3, Sharded Matrices); `exact` has the times of
// collectives that pass whole messages on; the last part is about products.
//
// In all forms `bytes` is V, the bytes of the whole array at one device: after a gather, or before
// a reduce-scatter or an all-reduce. In an all-to-all, V is the array that all devices hold
// together. Along axes that do not take part, an array may be cut; V is then the bytes of a part.
// `sizes` are the devices along each axis that takes part (X_i; at least one axis), N their
// product. `links` are the rates of one link of a device, w = one_way, W = two_way, and
// T_min = latency_ns, the latency of a hop.
#pragma once

#include <vector>

#include "kernels/predict/machine.h"

namespace agmm {

// The way in which shards pass from neighbour to neighbour along an axis.
enum class Passing {
  kOneWay,          // around a ring in one direction
  kBothWays,        // around a ring; each shard takes the shorter way to each device
  kHalvesBothWays,  // around a ring; the halves of each shard in opposite directions
  kLine,            // in both directions, from end to end, because the axis does not wrap around
};

namespace rule {

// One of X/2 hops of a gather both ways: max(T_min, 2V / (X W)).
double HopNs(double bytes, int size, const LinkRates& links);

// A gather or a reduce-scatter. Both ways: max(T_min sum(X_i) / 2, V / (W axes)); of the two, the
// longer is exact on one axis of even size, and asymptotic in X_i on others. One way and on lines:
// max(T_min sum(X_i - 1), V (N - 1) / (N w axes)), from the book's "chunks of bytes / N over N - 1
// hops"; the longer is exact on one axis. Halves: the bandwidth of both ways, the latency of one
// way.
double GatherNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                Passing passing = Passing::kBothWays);

// Twice a gather, because it is a reduce-scatter and a gather.
double AllReduceNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                   Passing passing = Passing::kBothWays);

// Bandwidth alone. Both ways: V max(X_i) / (4 N W), V / 4W on one axis; exact for even sizes if
// half of the bytes for the opposite device go either way. One way: V max(X_i - 1) / (2 N w), half
// a gather on one axis; exact. Lines: V floor(X / 2) ceil(X / 2) / (X N w) for the largest X;
// exact, the link in the middle. Halves: half of the bytes of one way.
double AllToAllNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                  Passing passing = Passing::kBothWays);

// The size of a message below which its latency takes longer than its bytes: w T_min.
double LatencyBoundBytes(const LinkRates& links);

}  // namespace rule

namespace exact {

// Bytes on one link, in its busier direction, of a gather along one axis: V / X times X - 1 one
// way and on a line (the last link), floor(X / 2) both ways, (X - 1) / 2 for halves.
double GatherLinkBytes(double bytes, int size, Passing passing);
// The same of an all-to-all, on the busiest axis: V / (X N) times X (X - 1) / 2 one way, half of
// that for halves, floor(X / 2) (floor(X / 2) + 1) / 2 both ways, floor(X / 2) ceil(X / 2) on a
// line.
double AllToAllLinkBytes(double bytes, const std::vector<int>& sizes, Passing passing);

// A gather or a reduce-scatter whose shards are messages, without the time of additions. An
// all-reduce takes twice as long. The array is cut into `parts`; part p passes along one axis after
// the other and begins with axis p modulo their number. One axis, one part: exact, hops * (V / X /
// rate + latency), hops = X - 1, or floor(X / 2) both ways. Several axes or parts: the longer of
// the busiest link and of the longest chain of hops; a lower bound, exact without latency and if
// latency alone counts.
double GatherNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                Passing passing, int parts = 1);

// An all-to-all along one axis in rounds: in each round a device sends everything that has not yet
// arrived, in one message for each direction. Exact: the bytes of the busiest link at its rate, and
// a latency for each hop of the longest way. `passing` is not kLine, because a line's rounds differ
// from link to link.
double AllToAllNs(double bytes, int size, const LinkRates& links, Passing passing);
// A lower bound of an all-to-all whose blocks of V / N^2 bytes pass alone, along one axis after the
// other: the longer of the busiest link and of the longest chain of hops. Exact if latency alone
// counts, and on one ring without latency.
double AllToAllPipelinedNs(double bytes, const std::vector<int>& sizes, const LinkRates& links,
                           Passing passing);

// All of `size` devices send straight to all others through a port each, at the same time in and
// out. Exact. A gather or a reduce-scatter: V (X - 1) / (X rate) + latency. An all-to-all:
// V (X - 1) / (X^2 rate) + latency.
double SwitchGatherNs(double bytes, int size, const LinkRates& ports);
double SwitchAllToAllNs(double bytes, int size, const LinkRates& ports);
// The same with a link for each pair of devices: V / (X rate) + latency; V / (X^2 rate) + latency.
double PairwiseGatherNs(double bytes, int size, const LinkRates& links);
double PairwiseAllToAllNs(double bytes, int size, const LinkRates& links);

// A gather, or backwards a reduce-scatter, over nodes of `ranks_per_node` ranks that share the
// node's port: a shard enters each node once, and the rank that receives it sends it to the others
// through its own port inside the node. With s = V / N and r ranks a node: the longer of (nodes -
// 1) r s / between + latency + (r - 1) s / within + latency, and of nodes (r - 1) s / within +
// latency. Exact while a shard's fan-out takes no longer than the arrival of the next; else a lower
// bound.
double HierarchicalGatherNs(double bytes, int nodes, int ranks_per_node, const LinkRates& between,
                            const LinkRates& within);

}  // namespace exact

// Bytes of a device's shard of an array of `bytes` (elements times the bytes of one, of any type)
// that is cut along mesh axes of these sizes; exact if they divide it.
double ShardBytes(double bytes, const std::vector<int>& cuts);
// The bytes of all shards on a mesh of `devices`, with their copies.
double TotalBytes(double bytes, const std::vector<int>& cuts, int devices);
// The time to read bytes from a device's memory.
double LoadNs(double bytes, const DeviceRates& device);

// The lower bound of the guide "Collective matrix multiplication" of Pallas:MGPU for a ring of
// `devices`: D T_shard + round_ns (D - 1). `shard_product_ns` is the product of one shard. Exact if
// each shard arrives during the product before it.
double RingProductBoundNs(double shard_product_ns, int devices, double round_ns = 6000);

// The number of columns N of a product [M,K] x [K,N], N cut over the devices, above which the
// gather of A with 2 bytes an element is hidden: chips (flops / bw), of the guide "Pallas
// Collectives". It lets all of A travel; HiddenColumns leaves out the device's own shard.
double HiddenColumnsOfAll(int devices, double flops_per_ns, double bytes_per_ns);
// Exact: (P - 1) s F / (2 B), at which the products of a rank take as long as the shards that it
// receives at B bytes/ns; s bytes an element, F flop/ns.
double HiddenColumns(int ranks, double element_bytes, double flops_per_ns, double bytes_per_ns);

// The two strategies of the scaling book's question 4 for X[B, D] * Y[D_x, F] -> Z[B, F].
struct StrategyQuestion {
  double batch = 0, depth = 0, width = 0;  // B, D, F
  int size = 1;                            // devices along x
  double element_bytes = 2;
  double flops_per_ns = 0;  // C
  double bytes_per_ns = 0;  // W, of both directions
};
struct StrategyTimes {
  double compute_ns = 0, comm_ns = 0;
  double TotalNs() const { return compute_ns > comm_ns ? compute_ns : comm_ns; }
};
// Strategy 1 gathers Y and multiplies whole matrices: max(2BDF / C, sDF / W).
StrategyTimes GatherThenMultiply(const StrategyQuestion& question);
// Strategy 2 multiplies shards and all-reduces Z: max(2BDF / (X C), 2sBF / W).
StrategyTimes MultiplyThenAllReduce(const StrategyQuestion& question);

// With s = 2: C/W, 2B, 2C/W. They assume that strategy 2 is bound by communication.
struct StrategyThresholds {
  double comm_bound_batch = 0;   // strategy 1 is bound by communication below this B
  double depth_small_batch = 0;  // below it, strategy 2 is faster above this D
  double depth_large_batch = 0;  // above it, strategy 2 is faster above this D
};
StrategyThresholds ThresholdsOf(const StrategyQuestion& question);

}  // namespace agmm
