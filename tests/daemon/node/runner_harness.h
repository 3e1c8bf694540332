// Runners of several nodes in one process, with real CPU devices and a transport that copies.
#pragma once

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "daemon/node/runner.h"
#include "gtest/gtest.h"
#include "kernels/base/hash.h"
#include "kernels/base/reason.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {

// Delivers messages in order, on one thread, from sender to receiver.
class CopyTransport {
 public:
  CopyTransport() : thread_([this] { Run(); }) {}
  ~CopyTransport() {
    {
      std::lock_guard lock(mutex_);
      stopping_ = true;
    }
    wake_.notify_one();
    thread_.join();
  }
  void SetReceiver(int node, Receiver* receiver) {
    std::lock_guard lock(mutex_);
    receivers_[node] = receiver;
  }
  // Offers `node` its parked messages again.
  void Resume(int node) {
    std::lock_guard lock(mutex_);
    ++resumes_;
    std::list<Item>& parked = parked_[node];
    items_.splice(items_.begin(), parked);
    wake_.notify_one();
  }
  // Keeps messages to `node` in flight until Release; their sends complete.
  void Hold(int node) {
    std::lock_guard lock(mutex_);
    holding_ = node;
  }
  bool WaitUntilHeld(size_t count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, std::chrono::seconds(60), [&] { return held_.size() >= count; });
  }
  // Returns when all held messages have been offered.
  void Release() {
    std::unique_lock lock(mutex_);
    holding_ = -1;
    items_.splice(items_.end(), held_);
    wake_.notify_one();
    changed_.wait(lock, [&] { return items_.empty() && idle_; });
  }
  // The transport of `node`.
  std::unique_ptr<Transport> End(int node) { return std::make_unique<Sender>(this, node); }

 private:
  struct Item {
    int from, to;
    Message message;
    Rows rows;
    std::function<void(absl::Status)> done;
    std::vector<std::byte> copy;  // of parked and held rows
  };
  class Sender : public Transport {
   public:
    Sender(CopyTransport* owner, int node) : owner_(owner), node_(node) {}
    void Send(int node, const Message& message, Rows from,
              std::function<void(absl::Status)> done) override {
      std::lock_guard lock(owner_->mutex_);
      owner_->items_.push_back({node_, node, message, from, std::move(done), {}});
      owner_->wake_.notify_one();
    }

   private:
    CopyTransport* const owner_;
    const int node_;
  };

  void Run() {
    while (true) {
      Item item;
      Receiver* receiver;
      int resumes;
      {
        std::unique_lock lock(mutex_);
        idle_ = true;
        changed_.notify_all();
        wake_.wait(lock, [this] { return stopping_ || !items_.empty(); });
        if (items_.empty()) return;
        idle_ = false;
        item = std::move(items_.front());
        items_.pop_front();
        if (item.to == holding_) {
          lock.unlock();
          Copy(&item);
          lock.lock();
          held_.push_back(std::move(item));
          continue;
        }
        receiver = receivers_.at(item.to);
        resumes = resumes_;
      }
      Arrival arrival;
      const Receiver::Verdict verdict =
          receiver->Accept(item.from, item.message, item.rows.bytes(), &arrival);
      if (verdict == Receiver::Verdict::kReceive) {
        CopyRows(item.rows, arrival.to);
        receiver->Arrived(item.from, item.message, arrival, absl::OkStatus());
      } else if (verdict == Receiver::Verdict::kPark) {
        Park(std::move(item), resumes);
        continue;
      }
      item.done(absl::OkStatus());
    }
  }

  // Completes the send.
  static void Copy(Item* item) {
    if (!item->copy.empty()) return;
    item->copy.resize(item->rows.bytes());
    const Rows copy{item->copy.data(), item->rows.rows, item->rows.row_bytes, item->rows.row_bytes};
    CopyRows(item->rows, copy);
    item->done(absl::OkStatus());
    item->done = [](absl::Status) {};
    item->rows = copy;
  }

  void Park(Item item, int resumes) {
    Copy(&item);
    std::lock_guard lock(mutex_);
    // If messages were resumed since, this one is offered again at once.
    (resumes == resumes_ ? parked_[item.to] : items_).push_back(std::move(item));
  }

  std::mutex mutex_;
  std::condition_variable wake_, changed_;
  int holding_ = -1;
  bool idle_ = false;
  std::list<Item> held_;
  std::map<int, Receiver*> receivers_;
  std::list<Item> items_;
  int resumes_ = 0;
  std::map<int, std::list<Item>> parked_;  // by the node that parked them
  bool stopping_ = false;
  std::thread thread_;
};

// A daemon's data plane, and its reports.
struct TestNode {
  std::vector<std::unique_ptr<Device>> devices;
  std::vector<std::unique_ptr<Heap>> heaps;
  std::unique_ptr<Transport> transport;
  Metrics metrics;
  std::mutex mutex;
  std::condition_variable came;
  std::deque<v1::Report> reports;
  std::unique_ptr<Runner> runner;  // destroyed first

  // Returns the next report, or nothing if none arrives within `patience`.
  std::optional<v1::Report> Next(absl::Duration patience = kPatience) {
    std::unique_lock lock(mutex);
    if (!came.wait_for(lock, absl::ToChronoNanoseconds(patience),
                       [this] { return !reports.empty(); }))
      return std::nullopt;
    v1::Report report = std::move(reports.front());
    reports.pop_front();
    return report;
  }
  // Returns the error of the next report, which must be the end of `job`.
  absl::Status DoneOf(uint64_t job, v1::LaunchDone* done = nullptr) {
    const std::optional<v1::Report> report = Next();
    if (!report.has_value()) return absl::UnknownError("no report came");
    if (!report->has_launch_done() || report->launch_done().job_id() != job)
      return absl::UnknownError("another report: " + report->ShortDebugString());
    if (done != nullptr) *done = report->launch_done();
    return FromProto(report->launch_done().error());
  }
};

// `nodes` nodes of `devices` devices each. Problems are over all ranks; operands lie at fixed
// offsets.
class RunnerWorld {
 public:
  static constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
  static constexpr int64_t kHeapBytes = 4 << 20;

  RunnerWorld(int nodes, int devices, int threads = 1) : devices_(devices) {
    for (int node = 0; node < nodes; ++node)
      for (int i = 0; i < devices; ++i) node_of_rank_.push_back(node);
    for (int node = 0; node < nodes; ++node) {
      auto& made = nodes_.emplace_back(std::make_unique<TestNode>());
      std::vector<LocalDevice> local;
      for (int i = 0; i < devices; ++i) {
        made->devices.push_back(*CreateCpuDevice(threads));
        made->heaps.push_back(*made->devices.back()->CreateHeap(kHeapBytes));
        local.push_back({made->devices.back().get(), made->heaps.back().get()});
      }
      TestNode* raw = made.get();
      made->runner = std::make_unique<Runner>(node, node * devices, local, node_of_rank_,
                                              &made->metrics, [raw](v1::Report report) {
                                                std::lock_guard lock(raw->mutex);
                                                raw->reports.push_back(std::move(report));
                                                raw->came.notify_one();
                                              });
      if (nodes > 1) made->transport = wire_.End(node);
      made->runner->SetTransport(made->transport.get(), [this, node] { wire_.Resume(node); });
      wire_.SetReceiver(node, made->runner.get());
    }
  }
  // Drains, because no message may be in flight when the wire is destroyed.
  ~RunnerWorld() {
    EndGeneration();
    wire_.Release();
  }

  TestNode& node(int index) { return *nodes_[index]; }
  int ranks() const { return static_cast<int>(node_of_rank_.size()); }

  void EndGeneration(const absl::Status& reason = absl::AbortedError("the generation ended")) {
    std::list<Notification> drained;
    for (auto& node : nodes_) {
      Notification& one = drained.emplace_back();
      node->runner->EndGeneration(reason, [&one] { one.Notify(); });
    }
    for (Notification& one : drained) EXPECT_TRUE(one.WaitFor(kPatience)) << "not drained";
  }

  Problem ProblemOf(int64_t m, int64_t n, int64_t k, DType dtype = DType::kF32) const {
    const Mesh mesh = *ParseMesh("x=" + std::to_string(ranks()));
    return *ParseProblem(kSpec, mesh, {m, n, k}, dtype);
  }
  v1::PreparePlan PrepareOf(uint64_t plan, const Problem& problem,
                            const std::string& algorithm = "ring", int chunks = 1) const {
    const PlanOptions options{algorithm, chunks};
    v1::PreparePlan command;
    command.set_plan_id(plan);
    SetProblem(problem, &command);
    *command.mutable_recipe() =
        ToProto(ResolveOptions(problem, Topology{node_of_rank_}, options)->recipe);
    command.set_plan_hash(HashHex(PlanHash(problem, ScheduleOf(problem, options))));
    return command;
  }
  Schedule ScheduleOf(const Problem& problem, const PlanOptions& options) const {
    return *Plan(problem, Topology{node_of_rank_}, options);
  }
  // Prepares on all nodes, which must agree.
  void Prepare(const v1::PreparePlan& command) {
    for (auto& node : nodes_) node->runner->Prepare(command);
    for (auto& node : nodes_) {
      const auto report = node->Next();
      ASSERT_TRUE(report.has_value() && report->has_plan_prepared());
      ASSERT_EQ(report->plan_prepared().error().code(), 0) << report->ShortDebugString();
      ASSERT_EQ(report->plan_prepared().plan_hash(), command.plan_hash());
    }
  }
  static constexpr int64_t kOffsets[3] = {0, 256 << 10, 512 << 10};
  static v1::LaunchJob LaunchOf(uint64_t job, uint64_t plan, uint64_t first_epoch, int epochs = 1,
                                absl::Duration timeout = absl::Seconds(60)) {
    v1::LaunchJob command;
    command.set_job_id(job);
    command.set_plan_id(plan);
    command.set_first_epoch(first_epoch);
    command.set_epoch_count(epochs);
    for (int64_t offset : kOffsets) command.add_offset_bytes(offset);
    // A quarter of the heap for each of the first plans.
    command.set_workspace_offset_bytes(kHeapBytes / 2 + kHeapBytes / 4 * (plan % 2));
    for (int i = 0; i < 3; ++i) command.add_versions(1);
    command.mutable_timeout()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(timeout % absl::Seconds(1))));
    command.mutable_timeout()->set_seconds(absl::ToInt64Seconds(timeout));
    return command;
  }
  void LaunchEverywhere(const v1::LaunchJob& command) {
    for (auto& node : nodes_) node->runner->Launch(command);
  }
  void HoldMessagesTo(int node) { wire_.Hold(node); }
  bool WaitUntilHeld(size_t count) { return wire_.WaitUntilHeld(count); }
  void LetMessagesGo() { wire_.Release(); }
  static v1::CancelLaunch CancelOf(uint64_t job) {
    v1::CancelLaunch command;
    command.set_job_id(job);
    *command.mutable_reason() =
        ToProto(WithReason(absl::CancelledError("on request"), kReasonCancelled));
    return command;
  }

  static float ValueOf(Operand operand, int64_t row, int64_t col) {
    return static_cast<float>((row * (operand == kA ? 3 : 5) + col * 7 + operand) % 5 - 2);
  }
  // Small integers in A and B, poison in C.
  void Fill(const Problem& problem) {
    for (Rank rank = 0; rank < ranks(); ++rank) {
      for (Operand operand : {kA, kB}) {
        const Block shard = ShardBlock(problem, operand, rank);
        for (int64_t row = shard.rows.begin; row < shard.rows.end; ++row) {
          for (int64_t col = shard.cols.begin; col < shard.cols.end; ++col) {
            const float value = ValueOf(operand, row, col);
            ConvertFromF32(problem.tensors[operand].dtype, &value,
                           At(problem, operand, rank, row, col), 1);
          }
        }
      }
      std::memset(Base(rank) + kOffsets[kC], 0xa5, ShardBytes(problem.mesh, problem.tensors[kC]));
    }
  }
  static constexpr std::byte kPoison{0x5a};
  // The second half of every heap, which holds the workspaces.
  void PoisonWorkspaces() {
    for (Rank rank = 0; rank < ranks(); ++rank)
      std::fill(Base(rank) + kHeapBytes / 2, Base(rank) + kHeapBytes, kPoison);
  }
  // Returns true if any byte in [begin, end) of any heap is not poison.
  bool WorkspaceWritten(int64_t begin, int64_t end) {
    for (Rank rank = 0; rank < ranks(); ++rank) {
      if (std::any_of(Base(rank) + begin, Base(rank) + end,
                      [](std::byte value) { return value != kPoison; }))
        return true;
    }
    return false;
  }
  // Returns the number of elements of C that differ from the product.
  int64_t WrongElements(const Problem& problem) {
    int64_t wrong = 0;
    for (Rank rank = 0; rank < ranks(); ++rank) {
      const Block shard = ShardBlock(problem, kC, rank);
      for (int64_t row = shard.rows.begin; row < shard.rows.end; ++row) {
        for (int64_t col = shard.cols.begin; col < shard.cols.end; ++col) {
          float sum = 0, found = 0;
          for (int64_t i = 0; i < ShapeOf(problem).k; ++i)
            sum += ValueOf(kA, row, i) * ValueOf(kB, i, col);
          ConvertToF32(problem.tensors[kC].dtype, At(problem, kC, rank, row, col), &found, 1);
          wrong += found != sum;
        }
      }
    }
    return wrong;
  }

 private:
  std::byte* Base(int rank) {
    return nodes_[node_of_rank_[rank]]->heaps[rank % devices_]->host().data();
  }
  std::byte* At(const Problem& problem, Operand operand, Rank rank, int64_t row, int64_t col) {
    const Tensor& tensor = problem.tensors[operand];
    const Block shard = ShardBlock(problem, operand, rank);
    return Base(rank) + kOffsets[operand] +
           (row - shard.rows.begin) * ShardPitchBytes(problem.mesh, tensor) +
           (col - shard.cols.begin) * SizeOf(tensor.dtype);
  }

  const int devices_;
  std::vector<int> node_of_rank_;
  CopyTransport wire_;
  std::vector<std::unique_ptr<TestNode>> nodes_;  // before the wire
};

}  // namespace agmm
