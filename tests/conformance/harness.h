// A world in one process: devices, heaps and a transport between them, and plans prepared on it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "kernels/base/deadline.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/device/device.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "tests/conformance/loopback_transport.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm::test {

// A kind of device on which the cases run.
struct DeviceKind {
  std::string name;
  // Creates the device of a rank of a cluster. `threads` is for kinds that run on the host's cores.
  std::function<std::unique_ptr<Device>(Rank rank, int threads)> create;
  bool rows_sum_alike = true;    // C is bit-identical for all cuts of its rows
  bool product_kernels = false;  // GPUs of an architecture with kernels of kernels/cuda/sm90
  // The largest error of its step times against CLOCK_MONOTONIC.
  int64_t clock_error_ns = 0;
};
// Returns true if the sums of a row do not depend on the other rows of its piece, so that C is
// bit-identical for all cuts of its rows. False if oneDNN uses another kernel for few rows: in bf16
// with AMX, and without AVX-512.
bool RowsSumAlike(GemmKernel kernel);
// Returns all kinds that this machine has.
const std::vector<DeviceKind>& DeviceKinds();
// Returns those of them with product_kernels.
std::vector<DeviceKind> KindsWithKernels();
// Returns all kinds, and the CPU with heaps that the host cannot address, for tests of heaps.
std::vector<DeviceKind> DeviceKindsAndHidden();
// Returns only the CPU, for its additional guarantees.
const DeviceKind& CpuKind();

// Devices and heaps of all ranks, and the transport between their nodes.
class Cluster {
 public:
  struct Options {
    int threads = 1;
    int64_t heap_bytes = 64 << 20;
    absl::Duration max_delay = absl::Microseconds(200);
    // Carries messages instead of the loopback transport.
    std::shared_ptr<Network> network;
  };
  Cluster(const DeviceKind& kind, const Topology& topology, const Options& options);
  Cluster(const DeviceKind& kind, const Topology& topology) : Cluster(kind, topology, Options()) {}

  // With the islands of the devices.
  const Topology& topology() const { return topology_; }
  Device* device(Rank rank) { return devices_[rank].get(); }
  Heap* heap(Rank rank) { return heaps_[rank].get(); }
  Network& network() { return *network_; }
  // Without Options::network.
  LoopbackTransport& loopback() { return *loopback_; }
  // Returns the same offset on every rank, with a guard of poison after it.
  int64_t Allocate(int64_t bytes);
  // Returns true if all guards are intact.
  bool GuardsAreWhole();

 private:
  Topology topology_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  LoopbackTransport* loopback_ = nullptr;
  std::shared_ptr<Network> network_;
  int64_t used_ = 0;
  std::vector<int64_t> guards_;
};

// A schedule prepared on all ranks of a cluster, with its own operands.
class PreparedPlan {
 public:
  // Dies if the schedule is refused. `world_ranks` are the mesh's ranks, which errors name; if
  // empty, they stay. `offsets` are the places of the operands; if empty, they get their own
  // places.
  PreparedPlan(Cluster& cluster, const Problem& problem, const Schedule& schedule,
               std::vector<int> world_ranks = {}, std::vector<int64_t> offsets = {});
  // Cancels running epochs and waits for their end.
  ~PreparedPlan();

  const Problem& problem() const { return problem_; }
  const Schedule& schedule() const { return *schedule_; }
  Executor* executor(Rank rank) { return executors_[rank].get(); }
  int rank_count() const { return static_cast<int>(executors_.size()); }

  // Writes `rank`'s shard of an operand; the rest of its place becomes poison (NaN).
  void Write(Rank rank, Operand operand, const TestMatrix& whole);
  void Poison(Rank rank, Operand operand);
  void PoisonWorkspace(Rank rank);
  // Writes A and B on all ranks, and poisons C.
  void Fill(const TestMatrix& a, const TestMatrix& b);
  // Fills A and B on the devices with uniform values from `seed`.
  void FillInputs(uint64_t seed);
  // Returns the number of elements of the rank's shard that differ in bits from `whole`, rounded to
  // the operand's dtype.
  int64_t CountWrong(Rank rank, const TestMatrix& whole, Operand operand = kC) const;
  // Copies the shard of the result that `rank` holds into `whole`.
  void ReadResult(Rank rank, TestMatrix* whole) const;

  // Queues an epoch on one rank. `b_version` names the contents of B.
  void Run(Rank rank, uint64_t epoch, uint64_t b_version, Deadline deadline,
           Executor::DoneCallback done);
  // Runs one epoch on all ranks; returns their reports.
  std::vector<EpochReport> RunAll(uint64_t epoch, uint64_t b_version = 1,
                                  absl::Duration timeout = absl::Seconds(60));

 private:
  // Returns `rank`'s rows of an operand, dense.
  std::vector<std::byte> ReadShard(Rank rank, Operand operand) const;

  std::mutex mutex_;
  std::condition_variable ended_;
  int running_ = 0;  // epochs whose callback has not returned
  Cluster& cluster_;
  const Problem problem_;
  const std::shared_ptr<const Schedule> schedule_;
  const uint64_t plan_;
  Operands operands_;  // without versions
  std::vector<std::unique_ptr<Executor>> executors_;
};

// Prepares rank 0 of a cluster of two on one node, for a schedule that may be refused. `peer`: rank
// 1's heap in place of the cluster's.
absl::Status PrepareRank0(Cluster& cluster, const Problem& problem, const Schedule& schedule,
                          Heap* peer = nullptr);

// Gathers the reports of several callbacks, in the order of their keys.
class Reports {
 public:
  explicit Reports(int count) : left_(count), reports_(count) {}
  Executor::DoneCallback At(int index);
  // Waits for all; dies if that takes minutes.
  const std::vector<EpochReport>& Wait();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int left_;
  std::vector<EpochReport> reports_;
};

}  // namespace agmm::test
