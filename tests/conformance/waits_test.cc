// If any event wait of a CUDA device that orders something is left out, the model finds a race.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bitset>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "tests/conformance/cases.h"
#include "tests/model/history_calls.h"

namespace agmm::test {
namespace {

// A plan, and its owner's accesses on each rank between two epochs. The owner is modelled by plans
// that wait for no other rank: one reads C and writes A and B, one reads A and B and writes C.
class Owned {
 public:
  Owned(Cluster& cluster, const Case& c)
      : problem_(c.problem()),
        schedule_(c.schedule(cluster.topology())),
        inputs_bytes_(BufferBytes(kA) + BufferBytes(kB)),
        half_bytes_(std::max(inputs_bytes_, BufferBytes(kC))),
        base_(cluster.Allocate(2 * half_bytes_)),
        plan_(cluster, problem_, schedule_, {},
              {base_, base_ + BufferBytes(kA), base_ + half_bytes_}),
        owner_case_(OwnerCase(c, half_bytes_)),
        one_(cluster.Allocate(kRowAlignBytes)),
        writes_inputs_(cluster, owner_case_.problem(), OwnerSchedule(cluster), {},
                       {one_, base_ + half_bytes_, base_}),
        writes_c_(cluster, owner_case_.problem(), OwnerSchedule(cluster), {},
                  {one_, base_, base_ + half_bytes_}) {}

  // Queues on every rank two epochs of the plan, each behind one of its owner, and waits for their
  // ends. As soon as a rank's last one is over, its memory is written.
  void RunFour(bool inputs_first);

 private:
  int64_t BufferBytes(Operand operand) const {
    return RoundUp(ShardBytes(problem_.mesh, problem_.tensors[operand]), kRowAlignBytes);
  }
  // One multiply per rank: a row of f32 (the form in which A and B are stored) from a row at C.
  static Case OwnerCase(const Case& c, int64_t bytes) {
    Case owner{"serial", DType::kF32, c.ranks, c.nodes};
    owner.mesh = c.mesh;
    owner.spec = "A[M, K] * B[K, N] -> C[M, N]";
    owner.m = owner.k = 1;
    owner.n = bytes / SizeOf(DType::kF32);
    return owner;
  }
  // In a lane that the plan does not have.
  Schedule OwnerSchedule(const Cluster& cluster) const {
    Schedule schedule = owner_case_.schedule(cluster.topology());
    int lane = 0;
    for (const std::vector<Step>& steps : schedule_.ranks) lane = std::max(lane, LaneCount(steps));
    for (std::vector<Step>& steps : schedule.ranks)
      for (Step& step : steps) step.lane = lane;
    return schedule;
  }

  const Problem problem_;
  const Schedule schedule_;
  const int64_t inputs_bytes_, half_bytes_, base_;
  PreparedPlan plan_;
  const Case owner_case_;
  const int64_t one_;  // rows are multiplied by the value at this offset
  PreparedPlan writes_inputs_, writes_c_;
  std::map<PreparedPlan*, uint64_t> epochs_;  // so far
};

void Owned::RunFour(bool inputs_first) {
  PreparedPlan* const order[] = {inputs_first ? &writes_inputs_ : &writes_c_, &plan_,
                                 inputs_first ? &writes_c_ : &writes_inputs_, &plan_};
  const int ranks = plan_.rank_count();
  Reports reports(4 * ranks);
  for (int i = 0; i < 4; ++i) {
    PreparedPlan* const plan = order[i];
    const uint64_t epoch = ++epochs_[plan];
    for (Rank rank = 0; rank < ranks; ++rank) {
      plan->Run(rank, epoch, 1, Deadline::After(absl::Seconds(60)),
                [this, i, rank, done = reports.At(i * ranks + rank)](const EpochReport& report) {
                  if (i == 3) {
                    for (Operand operand : {kA, kB, kC}) plan_.Poison(rank, operand);
                    plan_.PoisonWorkspace(rank);
                  }
                  done(report);
                });
    }
  }
  for (const EpochReport& report : reports.Wait()) ASSERT_EQ(report.status, absl::OkStatus());
}

template <typename Function>
Function* OfTheModel(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

// The waits of a device. Equal waits of all epochs count as one: those with the same waiting
// operation and the same awaited one. Such a wait is needed if some epoch needs it, because epochs
// differ in what the host happens to see, and in the owner's accesses before and after them.
class Findings {
 public:
  // Adds the waits of a recorded stretch in which each stream had the same work twice, or none.
  void Look(bool inputs_first) {
    auto* const waits = OfTheModel<decltype(agmmModelWaits)>("agmmModelWaits");
    auto* const without = OfTheModel<decltype(agmmModelWithout)>("agmmModelWithout");
    ASSERT_TRUE(waits != nullptr && without != nullptr);
    int count = 0;
    const agmmModelWait* const wait = waits(&count);
    for (int i = 0; i < count; ++i) {
      const auto& [behind, awaited] = wait[i];
      ASSERT_TRUE(behind.operations % 2 == 0 && awaited.operations % 2 == 0);
      const long long steps = behind.operations / 2, awaited_steps = awaited.operations / 2;
      // The place in an epoch, and the epoch of the stretch; a stream without work has none.
      const auto [step, epoch] = InEpoch(behind.operation, steps);
      const auto [awaited_step, awaited_epoch] = InEpoch(awaited.operation - 1, awaited_steps);
      Wait& at = waits_[absl::StrFormat(
          "stream %d, behind %d of %d operations, for stream %d, the end of %d of %d, %d epochs "
          "ago",
          behind.stream, step, steps, awaited.stream, awaited_step, awaited_steps,
          steps == 0 || awaited_steps == 0 ? 0 : epoch - awaited_epoch)];
      if (at.needed) continue;
      const agmmModelLoss loss = without(i);
      at.needed = loss == kLosesToARace;
      // Whichever stream counts them, the two epochs of a wait have different parity.
      const bool odd = (steps == 0 ? awaited_epoch : epoch) & 1;
      const int kind = 2 * inputs_first + odd;
      if (loss == kLosesOrder) at.orders_in.set(kind);
      // The host has seen the end of all work before the stretch.
      const bool seen_before = awaited_steps > 0 && awaited.operation <= 0;
      if (!seen_before) at.may_order_in.set(kind);
    }
  }
  int count() const { return static_cast<int>(waits_.size()); }
  // The number of waits that order operations in every possible kind of epoch, and without which no
  // race is found.
  int Spare() const { return Count(IsSpare); }
  // The number of all other waits without which no race is found: in some kind of epoch they order
  // nothing, because the host has already seen the end, or other waits imply the same.
  int Idle() const {
    return Count([](const Wait& wait) { return !wait.needed && !IsSpare(wait); });
  }
  std::string List() const {
    std::string list;
    for (const auto& [where, wait] : waits_)
      if (IsSpare(wait)) absl::StrAppend(&list, "no race without: ", where, "\n");
    return list;
  }

 private:
  struct Wait {
    bool needed = false;
    // One bit for each kind of epoch: the first or the second of a stretch, with the owner's reads
    // or writes first. An order may matter in some kinds only, because one may read what the next
    // one writes.
    std::bitset<4> may_order_in, orders_in;
  };
  static bool IsSpare(const Wait& wait) {
    return !wait.needed && wait.may_order_in.any() && wait.orders_in == wait.may_order_in;
  }
  template <typename Which>
  int Count(Which which) const {
    return static_cast<int>(std::count_if(waits_.begin(), waits_.end(),
                                          [&](const auto& at) { return which(at.second); }));
  }
  static std::pair<long long, long long> InEpoch(long long operation, long long steps) {
    if (steps == 0) return {0, 0};
    const long long step = (operation % steps + steps) % steps;
    return {step, (operation - step) / steps};
  }
  std::map<std::string, Wait> waits_;  // by place
};

// Returns the cases of this algorithm: those of the list, and some on routes that the list lacks.
std::vector<Case> CasesOf(const std::string& algorithm) {
  std::vector<Case> cases = Cases();
  for (int nodes : {1, 2}) {
    for (const char* more : {"bidirectional_ring", "split_ring", "hierarchical", "torus"}) {
      cases.push_back({more, DType::kBF16, 4, nodes, 1, 23, 13, 29, 1});
      cases.push_back({more, DType::kF32, 4, nodes, 3, 23, 13, 29, 1});
      cases.back().mesh = "x=2,y=2";
      cases.back().spec = "A[M_xy, K] * B[K, N] -> C[M, N]";
    }
  }
  std::erase_if(cases, [&](const Case& c) { return c.algorithm != algorithm; });
  return cases;
}

// Each wait costs a call, so at most one in this many may be idle, that is, order nothing in some
// kind of epoch. In `ring`, 7 % are idle.
constexpr int kOneIdleIn = 10;

class Waits : public testing::TestWithParam<std::string> {};

TEST_P(Waits, AreNeeded) {
  const DeviceKind& kind = DeviceKinds().back();
  if (std::getenv("AGMM_TEST_GPU") != nullptr) GTEST_SKIP() << "the model alone can tell";
  ASSERT_EQ(kind.name, "cuda_model");
  int waits = 0, idle = 0, spare = 0;
  for (const Case& c : CasesOf(GetParam())) {
    SCOPED_TRACE(c.name());
    Cluster cluster(kind, c.topology());
    auto* const record = OfTheModel<decltype(agmmModelRecord)>("agmmModelRecord");
    ASSERT_NE(record, nullptr);
    Owned owned(cluster, c);
    Findings found;
    // From the second epoch on a plan waits for all that it ever waits for.
    ASSERT_NO_FATAL_FAILURE(owned.RunFour(/*inputs_first=*/true));
    // A round may not need a wait: its producer may have ended if that GPU is fast, and the host
    // may have seen the end if the machine is busy. So each GPU is the slow one in turn.
    const auto goes_on = [&](int round) {
      if (round < 2 * c.ranks) return round < 2 || found.Spare() > 0 || found.Idle() > 0;
      return round < 8 * c.ranks && found.Spare() > 0;
    };
    for (int i = 0; goes_on(i); ++i) {
      record(/*slow_gpu=*/i / 2 % c.ranks);
      ASSERT_NO_FATAL_FAILURE(owned.RunFour(/*inputs_first=*/i % 2 == 0));
      ASSERT_NO_FATAL_FAILURE(found.Look(i % 2 == 0));
    }
    EXPECT_GT(found.count(), 0);
    EXPECT_EQ(found.Spare(), 0) << c.name() << "\n" << found.List();
    waits += found.count();
    idle += found.Idle();
    spare += found.Spare();
  }
  EXPECT_LE(kOneIdleIn * idle, waits) << "too many waits order nothing in some kind of epoch";
  std::cout << waits << " waits, a race without each of " << waits - idle - spare << ", " << idle
            << " that order nothing in some kind of epoch, " << spare << " spare\n";
}

INSTANTIATE_TEST_SUITE_P(All, Waits,
                         testing::Values("serial", "ring", "direct", "peer", "bidirectional_ring",
                                         "split_ring", "hierarchical", "torus"),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace agmm::test
