// Compares the order of a schedule with an exhaustive search of its unrolled graph.
#include "kernels/schedule/order.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/questions.h"
#include "kernels/schedule/reach.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/problems.h"
#include "tests/schedule/random_schedule.h"
#include "tests/schedule/verify_fixture.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

// Every start, end and arrival of two epochs, with edges to its direct successors.
class Unrolled {
 public:
  explicit Unrolled(const Schedule& schedule) : schedule_(schedule) {
    std::map<Slot, Event> producers;
    ForEachStep([&](Rank rank, int s, const Step& step) {
      for (int i = 0; i < static_cast<int>(step.signals.size()); ++i)
        producers[step.signals[i]] = {rank, s, IsArrival(step, rank, i) ? i : -1};
    });
    for (int epoch : {0, 1}) {
      for (Rank rank = 0; rank < Ranks(); ++rank) Link(rank, epoch);
      ForEachStep([&](Rank rank, int s, const Step& step) {
        const auto* transfer = std::get_if<Transfer>(&step.op);
        for (const Wait& wait : step.waits) {
          Event from = producers.at(wait.slot);
          from.epoch = epoch - wait.lag;
          if (from.epoch < 0) continue;
          Edge(From(from), Start({rank, s, -1, epoch}));
          if (transfer != nullptr && transfer->carrier >= 0)
            Edge(From(from), Start({rank, transfer->carrier, -1, epoch}));
        }
      });
    }
  }

  // Returns all events after the end of `x`.
  std::set<std::tuple<Rank, int, int>> Behind(const Event& x) const {
    std::set<Moment> seen;
    std::vector<Moment> left = {From(x)};
    std::set<std::tuple<Rank, int, int>> starts;
    while (!left.empty()) {
      const Moment at = left.back();
      left.pop_back();
      const auto edges = edges_.find(at);
      if (edges == edges_.end()) continue;
      for (const Moment& next : edges->second) {
        if (!seen.insert(next).second) continue;
        left.push_back(next);
        const auto& [rank, step, epoch, what] = next;
        if (what == kStart) starts.emplace(rank, step, epoch);
      }
    }
    return starts;
  }
  std::vector<Event> Events() const {
    std::vector<Event> events;
    for (int epoch : {0, 1}) {
      for (Rank rank = 0; rank < Ranks(); ++rank) events.push_back({rank, kEnvironment, -1, epoch});
      ForEachStep([&](Rank rank, int s, const Step& step) {
        events.push_back({rank, s, -1, epoch});
        for (int i = 0; i < static_cast<int>(step.signals.size()); ++i)
          if (IsArrival(step, rank, i)) events.push_back({rank, s, i, epoch});
      });
    }
    return events;
  }

 private:
  static constexpr int kStart = -2, kEnd = -1;     // else the index of an arrival
  using Moment = std::tuple<Rank, int, int, int>;  // rank, step, epoch, one of those
  static Moment Start(const Event& e) { return {e.rank, e.step, e.epoch, kStart}; }
  static Moment From(const Event& e) { return {e.rank, e.step, e.epoch, e.to < 0 ? kEnd : e.to}; }
  void Edge(const Moment& from, const Moment& to) { edges_[from].push_back(to); }
  Rank Ranks() const { return static_cast<Rank>(schedule_.ranks.size()); }
  template <typename Use>
  void ForEachStep(Use use) const {
    for (Rank rank = 0; rank < Ranks(); ++rank)
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s)
        use(rank, s, schedule_.ranks[rank][s]);
  }

  // The lanes of a rank, between its environments.
  void Link(Rank rank, int epoch) {
    const Event environment = {rank, kEnvironment, -1, epoch};
    Edge(Start(environment), From(environment));
    if (epoch == 0) Edge(From(environment), Start({rank, kEnvironment, -1, 1}));
    std::map<int, Event> last;
    const std::vector<bool> relays = RelayLanes(schedule_.ranks[rank], rank);
    if (epoch == 1) {  // relay lanes follow themselves
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        const int lane = schedule_.ranks[rank][s].lane;
        if (relays[lane]) last[lane] = {rank, s, -1, 0};
      }
    }
    for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
      const Step& step = schedule_.ranks[rank][s];
      const Event event = {rank, s, -1, epoch};
      if (!relays[step.lane]) Edge(From(environment), Start(event));
      if (const auto before = last.find(step.lane); before != last.end())
        Edge(From(before->second), Start(event));
      last[step.lane] = event;
      Edge(Start(event), From(event));
      for (int i = 0; i < static_cast<int>(step.signals.size()); ++i)
        if (IsArrival(step, rank, i)) Edge(Start(event), From({rank, s, i, epoch}));
      if (epoch == 0 && !relays[step.lane]) Edge(From(event), Start({rank, kEnvironment, -1, 1}));
    }
  }

  const Schedule& schedule_;
  std::map<Moment, std::vector<Moment>> edges_;
};

// Asks for the events after each of `xs`; none: after each event. Returns the number of answers
// that a few gates did not give.
int ExpectSame(const Schedule& schedule, std::vector<Event> xs = {}) {
  const auto order = Order::Build(schedule);
  EXPECT_TRUE(order.ok()) << order.status();
  const Unrolled unrolled(schedule);
  const std::vector<Event> events = unrolled.Events();
  if (xs.empty()) xs = events;
  Questions questions(*order);
  int unknown = 0;
  for (const Event& x : xs)
    for (const Event& y : events) unknown += questions.Before(x, y) == Known::kUnknown;
  questions.Settle();
  int differ = 0;
  for (const Event& x : xs) {
    const auto behind = unrolled.Behind(x);
    for (const Event& y : events) {
      const bool before = behind.count({y.rank, y.step, y.epoch}) > 0;
      differ += questions.Before(x, y) != (before ? Known::kYes : Known::kNo);
    }
  }
  EXPECT_EQ(differ, 0) << "of " << xs.size() * events.size();
  return unknown;
}

TEST(Order, EqualsTheUnrolledGraph) {
  int unknown = 0;
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 40; ++seed) {
    SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d", seed));
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 4);
    const Problem problem = MakeProblem(ranks, {6, 4, 70});
    const Schedule schedule =
        RandomSchedule(problem, MakeTopology(ranks, random() % 2 ? ranks : 1), random);
    unknown += ExpectSame(schedule);
    unknown += ExpectSame(Close(schedule));
  }
  EXPECT_GT(unknown, 1000);
}

TEST(Order, EqualsTheUnrolledGraphWithManyLanes) {
  for (const char* algorithm : {"ring", "direct", "peer", "serial"}) {
    SCOPED_TRACE(algorithm);
    constexpr int kRanks = 9;
    const bool peer = std::string(algorithm) == "peer";
    const absl::StatusOr<Schedule> plan =
        Plan(MakeProblem(kRanks, {9, 9, 4}), MakeTopology(kRanks, peer ? 1 : kRanks), {algorithm});
    ASSERT_TRUE(plan.ok()) << plan.status();
    ExpectSame(*plan);
  }
}

// Uses more environments and relay lanes than one block of Reach has: rows of B go around a ring.
TEST(Order, EqualsTheUnrolledGraphOfManyRanks) {
  constexpr int kRanks = 140;
  const absl::StatusOr<Schedule> plan =
      Plan(MakeProblem(kRanks, {kRanks, kRanks, 4}), MakeTopology(kRanks, kRanks), {"ring"});
  ASSERT_TRUE(plan.ok()) << plan.status();
  const auto order = Order::Build(*plan);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_GT(Reach(*order).blocks(), 1);
  std::vector<Event> xs;
  for (const Rank rank : {0, kRanks - 1})
    xs.push_back({rank, static_cast<int>(plan->ranks[rank].size()) / 2, -1, 0});
  ExpectSame(*plan, xs);
}

// Ranks in a row. In each epoch, the first step of a rank follows the one of the rank before. The
// step of its relay lane follows, one epoch later, the one of the rank behind.
Schedule Row(int ranks) {
  Schedule schedule;
  for (Rank rank = 0; rank < ranks; ++rank) {
    Step first, relay;
    relay.lane = 1;
    if (rank > 0) first.waits.push_back({{rank, 0}, 0});
    if (rank + 1 < ranks) {
      first.signals.push_back({rank + 1, 0});
      relay.waits.push_back({{rank, 1}, 1});
    } else {
      first.signals.push_back({rank, 1});
      relay.waits.push_back({{rank, 1}, 0});
    }
    if (rank > 0) relay.signals.push_back({rank - 1, 1});
    schedule.ranks.push_back({first, relay});
  }
  return schedule;
}

// The numbers of its environments are in two blocks of Reach, those of its relay lanes in a third.
TEST(Order, EqualsTheUnrolledGraphFromTheEnvironmentsOfManyRanks) {
  constexpr int kRanks = 300;
  const Schedule row = Row(kRanks);
  const auto order = Order::Build(row);
  ASSERT_TRUE(order.ok()) << order.status();
  EXPECT_EQ(Reach(*order).blocks(), 3);
  std::vector<Event> xs;
  for (const Rank rank : {0, 1, 63, 64, 254, 255, 256, 257, kRanks - 1}) {
    for (const int epoch : {0, 1}) {
      for (const int step : {kEnvironment, 0, 1}) xs.push_back({rank, step, -1, epoch});
    }
  }
  EXPECT_GT(ExpectSame(row, xs), 1000);
}

// Two ranks on two nodes; each sends its shard of A to the other one. Rank 1 reads the arrived
// bytes only after 64 other steps. `late`: it gives its credit after the read; else at once, so
// that the next epoch may overwrite the bytes.
Schedule ReadsLate(const Problem& problem, bool late) {
  constexpr int kRows = 64;
  const int64_t pitch = ShardPitchBytes(problem.mesh, problem.tensors[kA]);
  const auto work = [&](Rank rank, int64_t row) {
    return Place{rank, kWorkspace, row * pitch, pitch, DType::kF32};
  };
  const auto send = [&](Rank from, Rank to) {
    const Block shard = ShardBlock(problem, kA, from);
    return Transfer{shard, ResidentPlace(problem, shard, from), {work(to, 0)}};
  };
  const auto product = [&](Rank rank, Range rows, const Place& a_place) {
    Multiply multiply;
    multiply.a = {kA, rows, {0, ShapeOf(problem).k}};
    multiply.b = ShardBlock(problem, kB, rank);
    multiply.c = {kC, rows, multiply.b.cols};
    multiply.a_place = a_place;
    multiply.b_place = ResidentPlace(problem, multiply.b, rank);
    multiply.out = ResidentPlace(problem, multiply.c, rank);
    return multiply;
  };
  const auto own = [&](Rank rank, int64_t row) {
    const Block block = {kA, {row, row + 1}, {0, ShapeOf(problem).k}};
    return product(rank, block.rows, ResidentPlace(problem, block, rank));
  };
  Schedule schedule;
  schedule.algorithm = "hand";
  schedule.workspace_bytes = kRows * pitch;
  schedule.ranks.resize(2);
  auto& first = schedule.ranks[0];
  auto& second = schedule.ranks[1];
  first.push_back({send(0, 1), 1, {{{0, 0}, 1}}, {{1, 0}}});
  for (int i = 0; i < kRows; ++i) first.push_back({own(0, i), 0});
  for (int i = 0; i < kRows; ++i)
    first.push_back({product(0, {kRows + i, kRows + i + 1}, work(0, i)), 0});
  first[1 + kRows].waits.push_back({{0, 1}});
  first.back().signals.push_back({1, 1});
  second.push_back({send(1, 0), 2, {{{1, 1}, 1}}, {{0, 1}}});
  second.push_back({Join(), 1, {{{1, 0}}}, {{1, 2}}});
  for (int i = 0; i < kRows; ++i) second.push_back({own(1, kRows + i), 0});
  second[2].waits.push_back({{1, 2}});
  second.push_back({product(1, {0, kRows}, work(1, 0)), 0});
  second[late ? second.size() - 1 : 1].signals.push_back({0, 0});
  return schedule;
}

// A few gates do not order the two accesses, and only the answer raises the question about the
// next epoch.
TEST(Order, AQuestionThatAnAnswerRaisesIsAskedToo) {
  const Problem problem = MakeProblem(2, {128, 4, 2});
  const Topology topology = MakeTopology(2, 2);
  EXPECT_EQ(Verify(problem, topology, ReadsLate(problem, true)), absl::OkStatus());
  EXPECT_EQ(Verify(problem, topology, ReadsLate(problem, false)).code(),
            absl::StatusCode::kFailedPrecondition);
}

TEST(Order, DoesNotOrderRelayLanesWithEpochs) {
  // Rank 0 copies its shard to a stage and pushes it from there, in a lane that touches no operand.
  for (bool credit : {false, true}) {
    Hand h = Hand::Push();
    const Place stage = Hand::Work(0, 4096);
    h.Op<Transfer>(0, 2).from = stage;
    h.At(0, 2).waits.push_back({{0, 3}});
    h.At(0, 2).signals.push_back({0, 4});
    h.Add(0, Transfer{h.A(0), h.Own(h.A(0), 0), {stage}}, 2, {}, {{0, 3}});
    EXPECT_EQ(RelayLanes(h.schedule.ranks[0], 0), (std::vector<bool>{false, true, false}));
    if (credit) {
      h.At(0, 3).waits.push_back({{0, 4}, 1});
      EXPECT_EQ(h.Check(), absl::OkStatus());
    } else {
      EXPECT_THAT(h.Check().ToString(),
                  testing::HasSubstr("in the next epoch, with no order between them"));
    }
    // The same steps in the lane of the copy, which reads the shard, need no credit.
    h.At(0, 2).lane = 2;
    EXPECT_EQ(h.Check().ok(), false);  // waits for itself
    std::swap(h.At(0, 2), h.At(0, 3));
    EXPECT_EQ(h.Check(), absl::OkStatus());
  }
}

}  // namespace
}  // namespace agmm::test
