// The rates and latencies of a machine, from which the time of a schedule is predicted. Rates are
// in units per nanosecond: a byte per nanosecond is a GB/s, a flop per nanosecond a GFLOP/s.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/dtype_traits.h"

namespace agmm {

// A link, or the port of a device or a node, without other traffic.
struct LinkRates {
  double one_way = 0;     // bytes/ns in one direction
  double two_way = 0;     // bytes/ns of both directions together, from one_way to 2 * one_way
  double latency_ns = 0;  // from the last byte of a message sent to its signal seen by the receiver
  // Bytes that pass one direction at once after it was idle, because limits of networks are token
  // buckets. They count towards its rate all the same.
  double burst_bytes = 0;
  bool operator==(const LinkRates&) const = default;
};

// The way in which devices of a node, or nodes, are connected.
enum class Wiring {
  kSwitch,    // each has one port into a switch that limits nothing; LinkRates are those of a port
  kPairwise,  // each pair has a link of its own
  kTorus,     // each has a link to its neighbours along every axis (Torus)
};

// The exceptions of one pair, in one direction: a link that is slower than the ports at its ends.
struct PairRates {
  int from = 0, to = 0;  // nodes
  double one_way = 0;    // bytes/ns
  double latency_ns = 0;
  bool operator==(const PairRates&) const = default;
};

struct Links {
  Wiring wiring = Wiring::kSwitch;
  LinkRates rates;
  std::vector<PairRates> pairs;  // only between nodes
  bool operator==(const Links&) const = default;
};

// The rate of a product of a given size. Between two sizes, the rate is interpolated.
struct GemmRate {
  DType dtype = DType::kF32;  // of the inputs
  double flops = 0;           // multiplications and additions of one product
  double flops_per_ns = 0;
  bool operator==(const GemmRate&) const = default;
};

// The rate of memory while a device touches at most this many bytes, which caches hold.
struct CacheRate {
  double bytes = 0;
  double bytes_per_ns = 0;
  bool operator==(const CacheRate&) const = default;
};

// All times are of one device, and all costs of cores are those of its own.
struct DeviceRates {
  std::vector<GemmRate> gemm;  // by dtype, ascending sizes; at least one for every dtype
  double memory = 0;           // bytes/ns that it reads or writes, outside caches
  // Ascending sizes, rates that do not rise; empty: none. Beyond the largest, the rate falls to
  // `memory` at kBeyondCaches times its size.
  std::vector<CacheRate> caches;
  // Fixed costs. A step costs `step_ns` before it starts. A signal costs `signal_ns` until a step
  // of the same device that waits for it can start; from another device, also the latency.
  double multiply_ns = 0, step_ns = 0, signal_ns = 0;
  // The time of its cores for a message that it sends or receives, for each byte of it, and for
  // each byte that is copied within a node. 0 where hardware moves the bytes.
  double message_ns = 0, send_ns_per_byte = 0, receive_ns_per_byte = 0, copy_ns_per_byte = 0;
  // For each byte of a second operand that has arrived, which each multiply of it packs.
  double pack_ns_per_byte = 0;
  bool operator==(const DeviceRates&) const = default;
};

struct Machine {
  std::string name;
  int64_t version = 0;       // counts the measurements of a world; 0 for a preset
  int devices_per_node = 1;  // where nothing else says how ranks are spread over nodes
  // A torus wraps around along an axis whose size is a multiple of this; 0: along none.
  int wrap_multiple = 0;
  // Devices of one node that load and store each other's memory; devices of one node that do not;
  // nodes. On a torus, `within` alone counts: each device has links of its own, whatever its node.
  Links within, staged, between;
  DeviceRates device;
  // The heap of the device that has the least. No plan has a larger workspace. 0: unknown.
  int64_t heap_bytes = 0;
  bool operator==(const Machine&) const = default;
};

inline constexpr double kBeyondCaches = 8;

// Returns the rates of a device that touches `bytes` in an epoch: `memory` is that of the caches if
// they hold them, and the bytes that cores copy cost less in the same proportion. Packing moves
// single elements, which takes longer than the memory.
DeviceRates RatesWithin(const DeviceRates& device, double bytes);
// Returns the time of a product of `flops` operations in ns, without fixed costs.
double GemmNs(const DeviceRates& device, DType dtype, double flops);
// Returns the time of the cores for a product that reads and writes `bytes`. Cores that copy bytes
// also wait for those beyond the traffic of three square matrices of as many operations, which is a
// part of the measured rates: a thin product reads its large operand for little arithmetic, and a
// piece along K reads and writes all of C.
double ProductNs(const DeviceRates& device, DType dtype, double flops, double bytes);
// Returns the highest of the dtype's rates.
double PeakFlopsPerNs(const DeviceRates& device, DType dtype);

// Errors: INVALID_ARGUMENT with the field, its value and its bound. Each begins with the path of
// the field in the machine's message, such as "device.gemm[2].gflop".
absl::Status Validate(const Machine& machine);

}  // namespace agmm
