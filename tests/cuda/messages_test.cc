// The bytes of messages lie in a rank's staging until they have left. On the model, which is set up
// once per process, so each test runs in its own process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <future>
#include <iterator>
#include <latch>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "kernels/base/deadline.h"
#include "kernels/schedule/verify.h"
#include "tests/conformance/cases.h"
#include "tests/conformance/cuda_kind.h"
#include "tests/support/patience.h"

namespace agmm::test {
namespace {

// Keeps the messages of node 0 with bytes, all except those of the first epoch of the first plan,
// until they are let go. Notices what happens to their bytes meanwhile.
class HeldNetwork final : public Network {
 public:
  Transport* from(int node) override {
    std::lock_guard lock(mutex_);
    auto& port = ports_[node];
    if (port == nullptr) port = std::make_unique<Port>(*this, node, inner_.from(node));
    return port.get();
  }
  void Register(uint64_t plan, int node, Endpoint endpoint) override {
    inner_.Register(plan, node, std::move(endpoint));
  }
  void Unregister(uint64_t plan) override { inner_.Unregister(plan); }
  absl::Status first_misfit() const override { return inner_.first_misfit(); }

  int held() const {
    std::lock_guard lock(mutex_);
    return static_cast<int>(held_.size());
  }
  // Lets the oldest messages go; returns once their bytes have left.
  void LetGo(int count) {
    std::vector<Held> going;
    {
      std::lock_guard lock(mutex_);
      const auto end = held_.begin() + count;
      std::move(held_.begin(), end, std::back_inserter(going));
      held_.erase(held_.begin(), end);
      for (const Held& message : going) changed_ += BytesOf(message.rows) != message.bytes;
    }
    std::latch left(count);
    for (const Held& message : going) {
      message.port->Send(message.node, message.message, message.rows,
                         [&left, done = message.done](absl::Status status) {
                           done(std::move(status));
                           left.count_down();
                         });
    }
    left.wait();
  }
  // Does not send the oldest message.
  void Refuse() {
    std::function<void(absl::Status)> done;
    {
      std::lock_guard lock(mutex_);
      done = std::move(held_.front().done);
      held_.erase(held_.begin());
    }
    done(absl::UnavailableError("the node has left"));
  }
  // Messages that shared bytes with another one, and messages whose bytes changed.
  int overlaps() const {
    std::lock_guard lock(mutex_);
    return overlaps_;
  }
  int changed() const {
    std::lock_guard lock(mutex_);
    return changed_;
  }

 private:
  struct Held {
    Transport* port = nullptr;
    int node = 0;
    Message message;
    Rows rows;
    std::vector<std::byte> bytes;
    std::function<void(absl::Status)> done;
  };
  class Port final : public Transport {
   public:
    Port(HeldNetwork& network, int from, Transport* inner)
        : network_(network), from_(from), inner_(inner) {}
    void Send(int node, const Message& message, Rows from,
              std::function<void(absl::Status)> done) override {
      if (from_ != 0 || !network_.Keep({inner_, node, message, from, {}, done}))
        inner_->Send(node, message, from, std::move(done));
    }

   private:
    HeldNetwork& network_;
    const int from_;
    Transport* const inner_;
  };

  static std::vector<std::byte> BytesOf(const Rows& rows) {
    std::vector<std::byte> bytes;
    for (int64_t row = 0; row < rows.rows; ++row) {
      const std::byte* const begin = rows.data + row * rows.pitch_bytes;
      bytes.insert(bytes.end(), begin, begin + rows.row_bytes);
    }
    return bytes;
  }
  static bool Overlap(const Rows& a, const Rows& b) {
    return a.data < b.data + b.rows * b.pitch_bytes && b.data < a.data + a.rows * a.pitch_bytes;
  }
  bool Keep(Held held) {
    std::lock_guard lock(mutex_);
    if (first_plan_ == 0) first_plan_ = held.message.plan;
    const bool first = held.message.plan == first_plan_ && held.message.epoch == 1;
    if (first || held.rows.rows == 0) return false;
    // A step that sends its bytes to several nodes has them once.
    overlaps_ += std::any_of(held_.begin(), held_.end(), [&](const Held& other) {
      const bool same_step = other.message.plan == held.message.plan &&
                             other.message.epoch == held.message.epoch &&
                             other.message.step == held.message.step;
      return !same_step && Overlap(other.rows, held.rows);
    });
    held.bytes = BytesOf(held.rows);
    held_.push_back(std::move(held));
    return true;
  }

  mutable std::mutex mutex_;
  std::map<int, std::unique_ptr<Port>> ports_;
  std::vector<Held> held_;
  uint64_t first_plan_ = 0;
  int overlaps_ = 0, changed_ = 0;
  LoopbackTransport inner_{/*seed=*/1, /*max_delay=*/absl::ZeroDuration()};  // ends first
};

class HeldMessages : public testing::Test {
 protected:
  // Makes the cluster: c.ranks nodes with one rank each.
  void Open(const Case& c) {
    setenv("AGMM_MODEL", "gpus=3", /*overwrite=*/1);
    Cluster::Options options;
    options.network = network_;
    cluster_ = std::make_unique<Cluster>(CudaKinds()[0], c.topology(), options);
  }
  std::unique_ptr<PreparedPlan> Prepare(const Case& c, const Schedule& schedule) {
    EXPECT_EQ(Verify(c.problem(), c.topology(), schedule), absl::OkStatus());
    auto plan = std::make_unique<PreparedPlan>(*cluster_, c.problem(), schedule);
    plan->FillInputs(plans_++);
    return plan;
  }
  // Queues an epoch on all ranks.
  static void Run(PreparedPlan& plan, uint64_t epoch, Reports& reports) {
    for (Rank rank = 0; rank < plan.rank_count(); ++rank)
      plan.Run(rank, epoch, 1, Deadline::After(kPatience), reports.At(rank));
  }
  // Returns rank 0's state once the thread of its GPU has obeyed all earlier requests.
  static RankState Observe(PreparedPlan& plan) {
    std::promise<RankState> state;
    plan.executor(0)->Observe(false, [&](const RankState& seen) { state.set_value(seen); });
    return state.get_future().get();
  }
  bool WillHold(int count) {
    return Eventually([&] { return network_->held() == count; });
  }
  // Lets all messages go; expects that the epochs succeed and that no message's bytes changed.
  void ExpectIntact(std::vector<Reports*> epochs) {
    network_->LetGo(network_->held());
    for (Reports* const reports : epochs)
      for (const EpochReport& report : reports->Wait()) EXPECT_EQ(report.status, absl::OkStatus());
    EXPECT_EQ(network_->overlaps(), 0);
    EXPECT_EQ(network_->changed(), 0);
  }

  const std::shared_ptr<HeldNetwork> network_ = std::make_shared<HeldNetwork>();
  std::unique_ptr<Cluster> cluster_;
  uint64_t plans_ = 0;
};

// If the first epoch returned its staging again when it ends, the second plan would take that of
// the second epoch.
TEST_F(HeldMessages, ShareNoStaging) {
  const Case c{"ring", DType::kF32, 2, 2, 4, 64, 12, 20, 1};
  Open(c);
  const auto first = Prepare(c, c.schedule()), second = Prepare(c, c.schedule());
  Reports one(2), two(2), other(2);
  Run(*first, 1, one);
  Run(*first, 2, two);
  Run(*second, 1, other);
  // Four chunks of each.
  EXPECT_TRUE(WillHold(8)) << network_->held();
  ExpectIntact({&one, &two, &other});
}

// Makes one step of rank 0's first two transfers, which send the same rows to two ranks.
Schedule WithOneSend(Schedule schedule) {
  std::vector<Step>& steps = schedule.ranks[0];
  const auto sends = [](const Step& step) { return std::holds_alternative<Transfer>(step.op); };
  const auto one = std::find_if(steps.begin(), steps.end(), sends);
  const auto other = std::find_if(one + 1, steps.end(), sends);
  const auto append = [](auto& to, const auto& from) {
    to.insert(to.end(), from.begin(), from.end());
  };
  append(std::get<Transfer>(one->op).to, std::get<Transfer>(other->op).to);
  append(one->waits, other->waits);
  append(one->signals, other->signals);
  steps.erase(other);
  return schedule;
}

TEST_F(HeldMessages, OfOneStepKeepTheirStagingTogether) {
  const Case c{"direct", DType::kF32, 3, 3, 1, 63, 12, 20, 1};
  Open(c);
  const Schedule schedule = WithOneSend(c.schedule());
  const auto first = Prepare(c, schedule), second = Prepare(c, schedule);
  Reports one(3), two(3), other(3);
  Run(*first, 1, one);
  Run(*first, 2, two);
  ASSERT_TRUE(WillHold(2)) << network_->held();
  network_->LetGo(1);
  Run(*second, 1, other);
  EXPECT_TRUE(WillHold(3)) << network_->held();
  ExpectIntact({&one, &two, &other});
}

// The second plan takes the staging of a message that has left, before the epoch of that message is
// over. If the end of this epoch returned it again, the third plan would take it, too.
TEST_F(HeldMessages, KeepStagingThatAnEarlierEpochHasReturned) {
  const Case c{"ring", DType::kF32, 2, 2, 4, 64, 12, 20, 1};
  Open(c);
  const auto first = Prepare(c, c.schedule()), second = Prepare(c, c.schedule()),
             third = Prepare(c, c.schedule());
  Reports one(2), two(2), other(2), last(2);
  Run(*first, 1, one);
  Run(*first, 2, two);
  ASSERT_TRUE(WillHold(4)) << network_->held();
  network_->LetGo(1);
  Run(*second, 1, other);
  ASSERT_TRUE(WillHold(7)) << network_->held();
  network_->LetGo(3);
  for (const EpochReport& report : two.Wait()) EXPECT_EQ(report.status, absl::OkStatus());
  Run(*third, 1, last);
  EXPECT_TRUE(WillHold(8)) << network_->held();
  ExpectIntact({&one, &other, &last});
}

// As EpochsBehindAFailedStep, for an epoch that fails once its steps have ended.
TEST_F(HeldMessages, OfWhichOneIsNotSentFailTheirPlan) {
  const Case c{"ring", DType::kF32, 2, 2, 4, 64, 12, 20, 1};
  Open(c);
  const auto plan = Prepare(c, c.schedule());
  Reports one(2), two(2), behind(1);
  Run(*plan, 1, one);
  Run(*plan, 2, two);
  ASSERT_TRUE(WillHold(4)) << network_->held();
  // Only its messages are left.
  ASSERT_TRUE(Eventually([&] {
    const RankState state = Observe(*plan);
    return state.epoch == 2 && state.lanes.empty();
  }));
  network_->Refuse();
  plan->Run(0, 3, 1, Deadline::After(kPatience), behind.At(0));
  // Epoch 3 would begin in these turns.
  for (int turn = 0; turn < 2; ++turn) Observe(*plan);
  network_->LetGo(3);
  EXPECT_EQ(behind.Wait()[0].status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(behind.Wait()[0].steps, testing::IsEmpty());
  plan->executor(1)->Cancel(absl::CancelledError("the test is over"));
  EXPECT_EQ(two.Wait()[0].status, behind.Wait()[0].status);
}

// The two halves of a copy without peer access, of which the second one is made for each GPU.
TEST(PinnedCopies, OfOneStepReachTwoGpus) {
  setenv("AGMM_MODEL", "gpus=3,peers=none", /*overwrite=*/1);
  const Case c{"direct", DType::kF32, 3, 1, 1, 63, 12, 20, 1};
  Cluster cluster(CudaKinds()[0], c.topology());
  const Schedule schedule = WithOneSend(c.schedule(cluster.topology()));
  ASSERT_EQ(Verify(c.problem(), cluster.topology(), schedule), absl::OkStatus());
  PreparedPlan plan(cluster, c.problem(), schedule);
  const TestMatrix a = SmallIntegers(c.m, c.k, 1), b = SmallIntegers(c.k, c.n, 2);
  plan.Fill(a, b);
  for (const EpochReport& report : plan.RunAll(1)) ASSERT_EQ(report.status, absl::OkStatus());
  for (Rank rank = 0; rank < 3; ++rank) EXPECT_EQ(plan.CountWrong(rank, MatrixProduct(a, b)), 0);
}

}  // namespace
}  // namespace agmm::test
