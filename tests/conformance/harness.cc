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
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/hidden_device.h"
#ifdef AGMM_HAS_CUDA
#include "tests/conformance/cuda_kind.h"
#endif

namespace agmm::test {
namespace {

constexpr int64_t kGuardBytes = 256;
constexpr std::byte kGuard{0x5a};
constexpr std::byte kPoison{0xff};  // NaN in every dtype

[[noreturn]] void Die(const std::string& why) {
  std::fprintf(stderr, "%s\n", why.c_str());
  std::abort();
}

void DieUnless(const absl::Status& ok) {
  if (!ok.ok()) Die(ok.ToString());
}

void PutBytes(Heap& heap, int64_t offset, std::vector<std::byte> bytes) {
  const auto size = static_cast<int64_t>(bytes.size());
  DieUnless(heap.Write({offset, 1, size, size}, {bytes.data(), 1, size, size}));
}

}  // namespace

bool RowsSumAlike(GemmKernel kernel) {
  if (kernel == GemmKernel::kTiles) return true;
  const std::string code = OneDnnCode(kernel);
  return absl::StartsWith(code, "brg") && !absl::StrContains(code, "amx");
}

const DeviceKind& CpuKind() {
  static const auto* const kind =
      new DeviceKind{"cpu", [](Rank, int threads) { return *CreateCpuDevice(threads); },
                     RowsSumAlike(KernelFor(DType::kF32)) && RowsSumAlike(KernelFor(DType::kBF16))};
  return *kind;
}

const std::vector<DeviceKind>& DeviceKinds() {
  static const auto* const kinds = [] {
    auto* const all = new std::vector<DeviceKind>{CpuKind()};
#ifdef AGMM_HAS_CUDA
    for (DeviceKind& kind : CudaKinds()) all->push_back(std::move(kind));
#endif
    return all;
  }();
  return *kinds;
}

std::vector<DeviceKind> KindsWithKernels() {
  std::vector<DeviceKind> kinds = DeviceKinds();
  std::erase_if(kinds, [](const DeviceKind& kind) { return !kind.product_kernels; });
  return kinds;
}

std::vector<DeviceKind> DeviceKindsAndHidden() {
  std::vector<DeviceKind> kinds = DeviceKinds();
  DeviceKind& hidden = kinds.emplace_back(CpuKind());
  hidden.name = "cpu_hidden";
  hidden.create = [](Rank rank, int threads) {
    return std::make_unique<HiddenDevice>(CpuKind().create(rank, threads));
  };
  return kinds;
}

Cluster::Cluster(const DeviceKind& kind, const Topology& topology, const Options& options)
    : topology_(topology), network_(options.network) {
  if (network_ == nullptr) {
    auto loopback = std::make_shared<LoopbackTransport>(TestSeed(), options.max_delay);
    loopback_ = loopback.get();
    network_ = std::move(loopback);
  }
  for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
    devices_.push_back(kind.create(rank, options.threads));
    topology_.island_of_rank.push_back(devices_.back()->info().island);
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
    PutBytes(*heap, offset, std::vector<std::byte>(guard - offset, kPoison));
    PutBytes(*heap, guard, std::vector<std::byte>(kGuardBytes, kGuard));
  }
  guards_.push_back(guard);
  return offset;
}

bool Cluster::GuardsAreWhole() {
  for (const auto& heap : heaps_) {
    for (int64_t guard : guards_) {
      std::vector<std::byte> bytes(kGuardBytes);
      DieUnless(heap->Read({guard, 1, kGuardBytes, kGuardBytes},
                           {bytes.data(), 1, kGuardBytes, kGuardBytes}));
      if (bytes != std::vector<std::byte>(kGuardBytes, kGuard)) return false;
    }
  }
  return true;
}

PreparedPlan::PreparedPlan(Cluster& cluster, const Problem& problem, const Schedule& schedule,
                           std::vector<int> world_ranks, std::vector<int64_t> offsets)
    : cluster_(cluster),
      problem_([&] {
        Problem on_world = problem;
        if (!world_ranks.empty()) on_world.mesh.ranks = std::move(world_ranks);
        return on_world;
      }()),
      schedule_(std::make_shared<const Schedule>(schedule)),
      plan_([] {
        static std::atomic<uint64_t> next{1};
        return next++;
      }()) {
  const std::vector<int>& nodes = cluster.topology().node_of_rank;
  const Rank ranks = static_cast<Rank>(nodes.size());
  operands_.workspace_offset = cluster.Allocate(schedule.workspace_bytes);
  operands_.offsets = std::move(offsets);
  if (operands_.offsets.empty()) {
    for (const Tensor& tensor : problem.tensors)
      operands_.offsets.push_back(cluster.Allocate(ShardBytes(problem.mesh, tensor)));
  }
  for (Rank rank = 0; rank < ranks; ++rank)
    executors_.push_back(cluster.device(rank)->CreateExecutor());
  for (Rank self = 0; self < ranks; ++self) {
    Peers peers;
    peers.self = self;
    peers.nodes = nodes;
    peers.islands = cluster.topology().island_of_rank;
    peers.plan = plan_;
    peers.transport = cluster.network().from(nodes[self]);
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
  // All must have drained before the first is destroyed, because they signal each other.
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [&] { return running_ == 0; });
  cluster_.network().Unregister(plan_);
}

void PreparedPlan::Poison(Rank rank, Operand operand) {
  const int64_t bytes = ShardBytes(problem_.mesh, problem_.tensors[operand]);
  PutBytes(*cluster_.heap(rank), operands_.offsets[operand],
           std::vector<std::byte>(bytes, kPoison));
}

void PreparedPlan::PoisonWorkspace(Rank rank) {
  PutBytes(*cluster_.heap(rank), operands_.workspace_offset,
           std::vector<std::byte>(schedule_->workspace_bytes, kPoison));
}

void PreparedPlan::Write(Rank rank, Operand operand, const TestMatrix& whole) {
  const Tensor& tensor = problem_.tensors[operand];
  const Block shard = ShardBlock(problem_, operand, rank);
  const int64_t pitch = ShardPitchBytes(problem_.mesh, tensor);
  std::vector<std::byte> bytes(ShardBytes(problem_.mesh, tensor), kPoison);
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertFromF32(tensor.dtype, &whole.values[row * whole.cols + shard.cols.begin],
                   &bytes[(row - shard.rows.begin) * pitch], shard.cols.size());
  }
  PutBytes(*cluster_.heap(rank), operands_.offsets[operand], std::move(bytes));
}

void PreparedPlan::Fill(const TestMatrix& a, const TestMatrix& b) {
  for (Rank rank = 0; rank < rank_count(); ++rank) {
    Write(rank, kA, a);
    Write(rank, kB, b);
    Poison(rank, kC);
  }
}

void PreparedPlan::FillInputs(uint64_t seed) {
  for (Rank rank = 0; rank < rank_count(); ++rank) {
    for (Operand operand : {kA, kB}) {
      const Tensor& tensor = problem_.tensors[operand];
      const Block shard = ShardBlock(problem_, operand, rank);
      const HeapRows rows = {operands_.offsets[operand], shard.rows.size(),
                             shard.cols.size() * SizeOf(tensor.dtype),
                             ShardPitchBytes(problem_.mesh, tensor)};
      DieUnless(cluster_.heap(rank)->Fill(rows, {FillKind::kUniform, seed + operand}, tensor.dtype,
                                          shard.rows.begin * tensor.cols + shard.cols.begin,
                                          tensor.cols, [] { return false; }));
    }
  }
}

std::vector<std::byte> PreparedPlan::ReadShard(Rank rank, Operand operand) const {
  const Tensor& tensor = problem_.tensors[operand];
  const Block shard = ShardBlock(problem_, operand, rank);
  const int64_t row_bytes = shard.cols.size() * SizeOf(tensor.dtype);
  std::vector<std::byte> bytes(shard.rows.size() * row_bytes);
  DieUnless(cluster_.heap(rank)->Read({operands_.offsets[operand], shard.rows.size(), row_bytes,
                                       ShardPitchBytes(problem_.mesh, tensor)},
                                      {bytes.data(), shard.rows.size(), row_bytes, row_bytes}));
  return bytes;
}

int64_t PreparedPlan::CountWrong(Rank rank, const TestMatrix& whole, Operand operand) const {
  const Tensor& tensor = problem_.tensors[operand];
  const Block shard = ShardBlock(problem_, operand, rank);
  const int64_t bytes = SizeOf(tensor.dtype);
  const std::vector<std::byte> shard_bytes = ReadShard(rank, operand);
  std::vector<std::byte> expected(shard.cols.size() * bytes);
  int64_t wrong = 0;
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertFromF32(tensor.dtype, &whole.values[row * whole.cols + shard.cols.begin],
                   expected.data(), shard.cols.size());
    const std::byte* found =
        shard_bytes.data() + (row - shard.rows.begin) * static_cast<int64_t>(expected.size());
    for (int64_t col = 0; col < shard.cols.size(); ++col)
      wrong += std::memcmp(found + col * bytes, expected.data() + col * bytes, bytes) != 0;
  }
  return wrong;
}

void PreparedPlan::ReadResult(Rank rank, TestMatrix* whole) const {
  const Operand result = ResultOf(problem_);
  const Tensor& tensor = problem_.tensors[result];
  const Block shard = ShardBlock(problem_, result, rank);
  const std::vector<std::byte> bytes = ReadShard(rank, result);
  const int64_t row_bytes = shard.cols.size() * SizeOf(tensor.dtype);
  for (int64_t row = shard.rows.begin; row < shard.rows.end && !shard.cols.empty(); ++row) {
    ConvertToF32(tensor.dtype, &bytes[(row - shard.rows.begin) * row_bytes],
                 &whole->values[row * whole->cols + shard.cols.begin], shard.cols.size());
  }
}

void PreparedPlan::Run(Rank rank, uint64_t epoch, uint64_t b_version, Deadline deadline,
                       Executor::DoneCallback done) {
  Operands operands = operands_;
  operands.versions.assign(problem_.tensors.size(), epoch);
  operands.versions[kB] = b_version;
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

absl::Status PrepareRank0(Cluster& cluster, const Problem& problem, const Schedule& schedule,
                          Heap* peer) {
  const auto executor = cluster.device(0)->CreateExecutor(),
             other = cluster.device(1)->CreateExecutor();
  Peers peers;
  peers.executors = {executor.get(), other.get()};
  peers.heaps = {cluster.heap(0), peer == nullptr ? cluster.heap(1) : peer};
  peers.nodes = {0, 0};
  return executor->Prepare(problem, std::make_shared<const Schedule>(schedule), peers);
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
