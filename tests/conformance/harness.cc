#include "tests/conformance/harness.h"

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <utility>

#include "absl/strings/match.h"
#include "kernels/base/deadline.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/kernel_choice.h"

namespace agmm::test {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kGuard{0x5a};
constexpr int kPoison = 0xff;  // NaN in every dtype

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

}  // namespace

bool RowsSumAlike(GemmKernel kernel) {
  if (kernel == GemmKernel::kTiles) return true;
  const std::string code = OneDnnCode(kernel);
  return absl::StartsWith(code, "brg") && !absl::StrContains(code, "amx");
}

const std::vector<DeviceKind>& DeviceKinds() {
  static const auto* const kinds = new std::vector<DeviceKind>{
      {"cpu", [](int threads) { return *CreateCpuDevice(threads); },
       RowsSumAlike(KernelFor(DType::kF32, 1)) && RowsSumAlike(KernelFor(DType::kBF16, 1))}};
  return *kinds;
}

Cluster::Cluster(const DeviceKind& kind, const Topology& topology, const Options& options)
    : topology_(topology), network_(options.network) {
  if (network_ == nullptr) {
    auto loopback = std::make_shared<LoopbackTransport>(TestSeed(), options.max_delay);
    loopback_ = loopback.get();
    network_ = std::move(loopback);
  }
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    devices_.push_back(kind.create(options.threads));
    absl::StatusOr<std::unique_ptr<Heap>> heap = devices_.back()->CreateHeap(options.heap_bytes);
    if (!heap.ok()) Die(heap.status().ToString());
    heaps_.push_back(*std::move(heap));
  }
}

int64_t Cluster::Allocate(int64_t bytes) {
  const int64_t offset = used_;
  const int64_t guard = RoundUp(offset + bytes, kRowAlignBytes);
  used_ = guard + kGuardBytes;
  for (const auto& heap : heaps_) {
    if (used_ > heap->size_bytes()) Die("the test's heap is too small");
    std::memset(heap->host().data() + offset, kPoison, guard - offset);
    std::fill_n(heap->host().data() + guard, kGuardBytes, kGuard);
  }
  guards_.push_back(guard);
  return offset;
}

bool Cluster::GuardsAreWhole() {
  for (const auto& heap : heaps_) {
    for (int64_t guard : guards_) {
      const std::byte* begin = heap->host().data() + guard;
      if (!std::all_of(begin, begin + kGuardBytes, [](std::byte b) { return b == kGuard; }))
        return false;
    }
  }
  return true;
}

PreparedPlan::PreparedPlan(Cluster& cluster, const Problem& problem, const Schedule& schedule,
                           std::vector<int> world_ranks)
    : cluster_(cluster),
      problem_(problem),
      schedule_(std::make_shared<const Schedule>(schedule)),
      plan_([] {
        static std::atomic<uint64_t> next{1};
        return next++;
      }()) {
  const std::vector<int>& nodes = cluster.topology().node_of_rank;
  const Rank ranks = static_cast<Rank>(nodes.size());
  operands_.workspace_offset = cluster.Allocate(schedule.workspace_bytes);
  for (const Tensor& tensor : problem.tensors)
    operands_.offsets.push_back(cluster.Allocate(ShardBytes(problem.mesh, tensor)));
  for (Rank rank = 0; rank < ranks; ++rank)
    executors_.push_back(cluster.device(rank)->CreateExecutor());
  for (Rank self = 0; self < ranks; ++self) {
    Peers peers;
    peers.self = self;
    peers.nodes = nodes;
    peers.plan = plan_;
    peers.transport = cluster.network().from(nodes[self]);
    peers.world_ranks = world_ranks;
    for (Rank rank = 0; rank < ranks; ++rank) {
      const bool local = nodes[rank] == nodes[self];
      peers.executors.push_back(local ? executors_[rank].get() : nullptr);
      peers.heaps.push_back(local ? cluster.heap(rank) : nullptr);
    }
    cluster.network().Register(
        plan_, nodes[self],
        {&problem_, schedule_.get(), nodes, peers.heaps, peers.executors, operands_});
    if (absl::Status status = executors_[self]->Prepare(problem_, schedule_, peers); !status.ok())
      Die(status.ToString());
  }
}

PreparedPlan::~PreparedPlan() {
  for (const auto& executor : executors_)
    executor->Cancel(absl::CancelledError("the test is over"));
  // All have drained before the first goes: they signal each other.
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return running_ == 0; });
  cluster_.network().Unregister(plan_);
}

std::byte* PreparedPlan::At(Rank rank, Operand operand) const {
  return cluster_.heap(rank)->host().data() + operands_.offsets[operand];
}

void PreparedPlan::Poison(Rank rank, Operand operand) {
  std::memset(At(rank, operand), kPoison, ShardBytes(problem_.mesh, problem_.tensors[operand]));
}

void PreparedPlan::Write(Rank rank, Operand operand, const TestMatrix& whole) {
  Poison(rank, operand);
  const Tensor& tensor = problem_.tensors[operand];
  const Block shard = ShardBlock(problem_, operand, rank);
  const int64_t pitch = ShardPitchBytes(problem_.mesh, tensor);
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertFromF32(tensor.dtype, &whole.values[row * whole.cols + shard.cols.begin],
                   At(rank, operand) + (row - shard.rows.begin) * pitch, shard.cols.size());
  }
}

int64_t PreparedPlan::CountWrong(Rank rank, const TestMatrix& whole) const {
  const Tensor& tensor = problem_.tensors[kC];
  const Block shard = ShardBlock(problem_, kC, rank);
  const int64_t pitch = ShardPitchBytes(problem_.mesh, tensor), bytes = SizeOf(tensor.dtype);
  std::vector<std::byte> expected(shard.cols.size() * bytes);
  int64_t wrong = 0;
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertFromF32(tensor.dtype, &whole.values[row * whole.cols + shard.cols.begin],
                   expected.data(), shard.cols.size());
    const std::byte* found = At(rank, kC) + (row - shard.rows.begin) * pitch;
    for (int64_t col = 0; col < shard.cols.size(); ++col)
      wrong += std::memcmp(found + col * bytes, expected.data() + col * bytes, bytes) != 0;
  }
  return wrong;
}

void PreparedPlan::ReadC(Rank rank, TestMatrix* whole) const {
  const Tensor& tensor = problem_.tensors[kC];
  const Block shard = ShardBlock(problem_, kC, rank);
  const int64_t pitch = ShardPitchBytes(problem_.mesh, tensor);
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertToF32(tensor.dtype, At(rank, kC) + (row - shard.rows.begin) * pitch,
                 &whole->values[row * whole->cols + shard.cols.begin], shard.cols.size());
  }
}

void PreparedPlan::Run(Rank rank, uint64_t epoch, uint64_t b_version, Deadline deadline,
                       Executor::DoneCallback done) {
  Operands operands = operands_;
  operands.versions = {epoch, b_version, epoch};
  {
    std::lock_guard lock(mutex_);
    ++running_;
  }
  executors_[rank]->Run(epoch, operands, deadline,
                        [this, done = std::move(done)](const EpochReport& report) {
                          done(report);
                          std::lock_guard lock(mutex_);
                          if (--running_ == 0) ended_.notify_all();
                        });
}

std::vector<EpochReport> PreparedPlan::RunAll(uint64_t epoch, uint64_t b_version,
                                              absl::Duration timeout) {
  Reports reports(rank_count());
  for (Rank rank = 0; rank < rank_count(); ++rank)
    Run(rank, epoch, b_version, Deadline::After(timeout), reports.At(rank));
  return reports.Wait();
}

Executor::DoneCallback Reports::At(int index) {
  return [this, index](const EpochReport& report) {
    std::lock_guard lock(mutex_);
    reports_[index] = report;
    if (--left_ == 0) changed_.notify_all();
  };
}

const std::vector<EpochReport>& Reports::Wait() {
  std::unique_lock lock(mutex_);
  if (!changed_.wait_for(lock, std::chrono::minutes(5), [&] { return left_ == 0; }))
    Die("some epoch never ended, neither well nor badly");
  return reports_;
}

}  // namespace agmm::test
