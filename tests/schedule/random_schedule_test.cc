#include "tests/schedule/random_schedule.h"

#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "tests/schedule/interleave.h"
#include "tests/schedule/problems.h"

namespace agmm::test {
namespace {

TEST(RandomSchedule, IsProvedRight) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 600; ++seed) {
    SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d", seed));
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 6);
    const int nodes = ranks % 2 == 0 && random() % 2 ? 2 : random() % 2 ? ranks : 1;
    const Shape shape = {1 + static_cast<int64_t>(random() % 40),
                         1 + static_cast<int64_t>(random() % 300),
                         1 + static_cast<int64_t>(random() % 300)};
    const Problem problem = MakeProblem(ranks, shape, random() % 2 ? DType::kF32 : DType::kBF16,
                                        absl::StrCat(kDefaultSpec, random() % 2 ? ":f32" : ""));
    const Topology topology = MakeTopology(ranks, nodes);
    const Schedule schedule = RandomSchedule(problem, topology, random);
    ASSERT_EQ(Verify(problem, topology, schedule), absl::OkStatus()) << Print(problem, schedule);
    const Schedule closed = Close(schedule);
    ASSERT_EQ(Verify(problem, topology, closed), absl::OkStatus()) << Print(problem, closed);
    ASSERT_EQ(Close(closed), closed) << Print(problem, closed);
  }
}

TEST(RandomSchedule, RunsExact) {
  for (uint64_t seed = TestSeed(); seed < TestSeed() + 25; ++seed) {
    SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d", seed));
    std::mt19937_64 random(seed);
    const int ranks = 1 + static_cast<int>(random() % 3);
    const Problem problem = MakeProblem(ranks, {4, 4, random() % 2 ? 70 : 3});
    const Topology topology = MakeTopology(ranks, random() % 2 ? ranks : 1);
    const Schedule schedule = RandomSchedule(problem, topology, random);
    ASSERT_EQ(Interleaver(problem, schedule).Explore(5), Outcome::kExact)
        << Print(problem, schedule);
  }
}

}  // namespace
}  // namespace agmm::test
