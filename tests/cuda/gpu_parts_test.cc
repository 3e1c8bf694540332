// The parts of a device that need no driver: the topology of a machine, the health of a GPU, and
// slots.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "kernels/cuda/cuda_slots.h"
#include "kernels/cuda/gpu_health.h"
#include "kernels/cuda/gpu_topology.h"

namespace agmm::test {
namespace {

// GPUs with these neighbours: '1' where both have access to each other.
GpuTopology Machine(const std::vector<std::string>& rows) {
  std::vector<std::vector<bool>> access;
  for (const std::string& row : rows) {
    std::vector<bool>& gpu = access.emplace_back();
    for (const char connected : row) gpu.push_back(connected == '1');
  }
  return GpuTopology(access);
}

TEST(GpuTopology, EachPairOfAnIslandIsConnected) {
  // GPU 1 reaches 0 and 2, which do not reach each other.
  const GpuTopology chain = Machine({"110", "111", "011"});
  EXPECT_EQ(chain.island(0), 0);
  EXPECT_EQ(chain.island(1), 0);
  EXPECT_EQ(chain.island(2), 2);
  const GpuTopology halves = Machine({"1010", "0101", "1010", "0101"});
  EXPECT_EQ(halves.island(2), 0);
  EXPECT_EQ(halves.island(3), 1);
  EXPECT_TRUE(halves.AreConnected(1, 3));
  EXPECT_FALSE(halves.AreConnected(1, 2));
}

TEST(GpuTopology, SaysItsRangesOfGpus) {
  const GpuTopology machine = Machine({"10111", "01000", "10111", "10111", "10111"});
  EXPECT_EQ(machine.ReachText(0), "reaches GPUs 2 to 4");
  EXPECT_EQ(machine.ReachText(1), "reaches no other GPU");
  EXPECT_EQ(machine.ReachText(3), "reaches GPUs 0, 2, 4");
  EXPECT_EQ(Machine({"11", "11"}).ReachText(1), "reaches GPU 0");
}

TEST(GpuHealth, TheFirstFailureIsReportedOnce) {
  GpuHealth health("GPU 2");
  std::vector<std::string> reported;
  health.Watch([&](const std::string& why) { reported.push_back(why); });
  EXPECT_EQ(health.failure(), "");
  health.GiveUp(absl::UnavailableError("a copy has not ended"));
  health.GiveUp(absl::UnavailableError("another copy has not ended"));
  EXPECT_EQ(health.lost(), absl::OkStatus());
  EXPECT_TRUE(health.Lose(absl::UnavailableError("an illegal address")));
  EXPECT_FALSE(health.Lose(absl::UnavailableError("a later error")));
  EXPECT_EQ(health.given_up(), absl::UnavailableError("a copy has not ended"));
  EXPECT_EQ(health.lost(), absl::UnavailableError("an illegal address"));
  EXPECT_EQ(health.failure(), "GPU 2 is given up: a copy has not ended");
  EXPECT_THAT(reported, testing::ElementsAre(health.failure()));
}

CUevent Numbered(uint64_t number) { return reinterpret_cast<CUevent>(number); }

// A rank has up to four epochs in progress, and a wait with lag 1 means the epoch before. Another
// rank may be in the last one when the first one waits.
TEST(CudaSlots, AnEventStandsForItsOwnEpoch) {
  CudaSlots slots(1);
  const Wait now{{0, 0}, 0}, credit{{0, 0}, 1};
  EXPECT_EQ(slots.EventOf(credit, 1), nullptr);
  for (uint64_t epoch = 1; epoch <= 30; ++epoch) {
    slots.Raise(0, epoch, Numbered(epoch));
    for (uint64_t waiting = std::max<uint64_t>(epoch, 4) - 3; waiting <= epoch; ++waiting) {
      EXPECT_EQ(slots.EventOf(now, waiting), Numbered(waiting)) << "raised to " << epoch;
      EXPECT_EQ(slots.EventOf(credit, waiting), Numbered(waiting - 1)) << "raised to " << epoch;
    }
  }
}

TEST(CudaSlots, ASlotRaisedByAMessageHasNoEvent) {
  CudaSlots slots(1);
  const Wait now{{0, 0}, 0};
  slots.Raise(0, 1, Numbered(1));
  slots.Raise(0, 2, nullptr);
  EXPECT_TRUE(slots.Holds(now, 2));
  EXPECT_EQ(slots.EventOf(now, 1), Numbered(1));
  EXPECT_EQ(slots.EventOf(now, 2), nullptr);
}

}  // namespace
}  // namespace agmm::test
