#include "daemon/measure/world_machine.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "daemon/measure/preset.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/machine_text.h"
#include "tests/support/seed.h"

namespace agmm::measure {
namespace {

using testing::Contains;
using testing::DoubleNear;
using testing::Not;
using Kind = Probe::Kind;

Site NodesOf(std::vector<int> nodes) {
  Site site;
  site.kind_of_rank.assign(nodes.size(), "cpu");
  site.island_of_rank.assign(nodes.size(), 0);
  site.node_of_rank = std::move(nodes);
  site.max_bytes = 64 << 20;
  return site;
}

// A world with known rates.
struct KnownWorld {
  std::function<double(int from, int to)> bytes_per_ns = [](int, int) { return 1.0; };
  double both_factor = 1;  // both directions, each with this part of its rate
  double signal_ns = 40'000;
  double flops_per_ns = 100;
  double copy_bytes_per_ns = 8;
  double cache_bytes = 0, cached_bytes_per_ns = 40;  // copies of up to cache_bytes
  double byte_ns = 0.25;  // of the cores, for each byte that moves while they multiply
  double message_ns = 4000, pack_ns = 0.1, burst_bytes = 0, whole_noise_ns = 0;

  double TimeOf(const Probe& probe, int rank) const {
    const double size = static_cast<double>(probe.size);
    switch (probe.kind) {
      case Kind::kOneWay:
        return signal_ns +
               (size <= kLeastBytes ? 0 : size / bytes_per_ns(probe.ranks[0], probe.ranks[1]));
      case Kind::kMessages: return signal_ns + (kPieces - 1) * (kStepNs + message_ns);
      case Kind::kBothWays:
        return signal_ns + size / bytes_per_ns(probe.ranks[0], probe.ranks[1]) / both_factor;
      case Kind::kCopy:
        return kStepNs + size / (size > cache_bytes ? copy_bytes_per_ns : cached_bytes_per_ns);
      case Kind::kRows: return RowsNs(probe);
      case Kind::kMovingRows: return MovingNs(probe, size);
      case Kind::kWholeRows:
        return RowsNs(probe) + signal_ns / 2 + whole_noise_ns +
               std::max(0.0, size * kDepth - burst_bytes) /
                   bytes_per_ns(probe.ranks[0], probe.ranks[1]);
      case Kind::kMovingColumns: {
        const double columns = static_cast<double>(probe.width);
        return MovingNs(probe, columns) + columns * kDepth * pack_ns;
      }
      case Kind::kProduct: break;
    }
    // Every second rank is slower.
    return kMultiplyNs + 2 * size * size * size / flops_per_ns * (rank % 2 == 0 ? 1 : 1.5);
  }
  static constexpr double kStepNs = 1000, kMultiplyNs = 2000;  // and its step
  double RowsNs(const Probe& probe) const {
    return 2.0 * kDepth * static_cast<double>(probe.size * probe.width) / flops_per_ns;
  }
  // Half of the rows or columns arrive in one message, and as many are sent.
  double MovingNs(const Probe& probe, double count) const {
    return RowsNs(probe) + kMultiplyNs + 2 * message_ns + count * kDepth * 2 * byte_ns;
  }
};

Survey Measured(const Site& site, const KnownWorld& world) {
  Survey survey(site);
  while (const std::optional<Probe> probe = survey.Next()) {
    EpochTimes times;
    for (int rank : probe->ranks) times[rank] = world.TimeOf(*probe, rank);
    survey.Add(times, "a wire");
  }
  return survey;
}

v1::WorldMachine MachineFor(const Site& site, const KnownWorld& world) {
  return MachineOf(Measured(site, world), PresetFor("cpu"));
}

std::vector<std::string> PresetFields(const v1::WorldMachine& world) {
  return {world.preset_fields().begin(), world.preset_fields().end()};
}

TEST(WorldMachine, HasTheRatesOfItsLinks) {
  KnownWorld world;
  world.bytes_per_ns = [](int, int) { return 1.25; };
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  const v1::MachineLinks& between = machine.machine().between();
  EXPECT_THAT(between.one_way_gb_per_s(), DoubleNear(1.25, 0.01));
  EXPECT_THAT(between.two_way_gb_per_s(), DoubleNear(2.5, 0.02));
  EXPECT_TRUE(between.pairs().empty());
  ASSERT_EQ(machine.paths_size(), 2);
  EXPECT_EQ(machine.paths(0).path(), "a wire");
  EXPECT_DOUBLE_EQ(machine.paths(0).latency_us(), 20);
  // The model adds what a step, a signal and a message cost.
  const v1::MachineDevice& device = machine.machine().device();
  EXPECT_NEAR(between.latency_us() + device.step_us() + device.signal_us() + device.message_us(),
              20, 0.01);
  EXPECT_NEAR(between.latency_us(), 10, 0.01);
}

TEST(WorldMachine, ASharedLinkHasLessInBothDirectionsTogether) {
  KnownWorld world;
  world.both_factor = 0.6;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  EXPECT_THAT(machine.machine().between().two_way_gb_per_s(), DoubleNear(1.2, 0.03));
  world.both_factor = 0.3;  // less than one direction alone
  EXPECT_THAT(MachineFor(NodesOf({0, 1}), world).machine().between().two_way_gb_per_s(),
              DoubleNear(1.0, 0.02));
}

TEST(WorldMachine, ASlowerPairIsAnException) {
  KnownWorld world;
  world.bytes_per_ns = [](int from, int to) { return from == 2 || to == 2 ? 0.125 : 1.25; };
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1, 2}), world);
  const v1::MachineLinks& between = machine.machine().between();
  EXPECT_THAT(between.one_way_gb_per_s(), DoubleNear(1.25, 0.02));
  ASSERT_EQ(between.pairs_size(), 4);
  for (const v1::MachineLinks::Pair& pair : between.pairs()) {
    EXPECT_TRUE(pair.from_node() == 2 || pair.to_node() == 2);
    EXPECT_THAT(pair.one_way_gb_per_s(), DoubleNear(0.125, 0.002));
  }
}

TEST(WorldMachine, RanksOfANodeHaveTheLinksWithinIt) {
  KnownWorld world;
  world.bytes_per_ns = [](int, int) { return 12.0; };
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 0}), world);
  EXPECT_THAT(machine.machine().within().one_way_gb_per_s(), DoubleNear(12, 0.2));
  EXPECT_THAT(PresetFields(machine), Contains("between"));
  EXPECT_THAT(PresetFields(machine), Not(Contains("within")));
  // Only between nodes does the model add a message.
  const v1::MachineDevice& device = machine.machine().device();
  EXPECT_NEAR(machine.machine().within().latency_us() + device.step_us() + device.signal_us(), 20,
              0.01);
}

TEST(WorldMachine, ASignalThatLinksLeaveNoTimeForStillCosts) {
  KnownWorld world;
  world.signal_ns = 5000;
  const v1::MachineDevice device = MachineFor(NodesOf({0, 1}), world).machine().device();
  EXPECT_DOUBLE_EQ(device.signal_us(), 0.1);
}

TEST(WorldMachine, ProductsHaveARateForEachSizeWithoutFixedCosts) {
  KnownWorld world;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  ASSERT_EQ(machine.devices_size(), 2);
  EXPECT_EQ(machine.devices(0).gemm_size(), 9);
  for (const v1::MachineGemm& gemm : machine.devices(0).gemm())
    EXPECT_THAT(gemm.gflop_per_s(), DoubleNear(100, 1)) << gemm.ShortDebugString();
  for (const v1::MachineGemm& gemm : machine.devices(1).gemm())
    EXPECT_THAT(gemm.gflop_per_s(), DoubleNear(100 / 1.5, 1)) << gemm.ShortDebugString();
  // The mean time of all devices.
  EXPECT_EQ(machine.machine().device().gemm_size(), 9);
  for (const v1::MachineGemm& gemm : machine.machine().device().gemm())
    EXPECT_THAT(gemm.gflop_per_s(), DoubleNear(80, 1)) << gemm.ShortDebugString();
}

TEST(WorldMachine, AProductThatTakesLongerThanALargerOneIsLeftOut) {
  const Site site = NodesOf({0, 1});
  const KnownWorld world;
  Survey survey(site);
  while (const std::optional<Probe> probe = survey.Next()) {
    // The next product takes 0.14 ms.
    const bool slow = probe->kind == Kind::kProduct && probe->size == 128;
    EpochTimes times;
    for (int rank : probe->ranks) times[rank] = slow ? 0.6e6 : world.TimeOf(*probe, rank);
    survey.Add(times, "a wire");
  }
  const v1::WorldMachine machine = MachineOf(survey, PresetFor("cpu"));
  EXPECT_TRUE(FromProto(machine.machine()).ok()) << FromProto(machine.machine()).status();
  EXPECT_EQ(machine.machine().device().gemm_size(), 6);
  for (const v1::MachineGemm& gemm : machine.machine().device().gemm())
    EXPECT_THAT(gemm.gflop_per_s(), DoubleNear(80, 1)) << gemm.ShortDebugString();
}

TEST(WorldMachine, CopiesGiveTheRateOfMemory) {
  KnownWorld world;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  EXPECT_THAT(machine.machine().device().memory_gb_per_s(), DoubleNear(16, 0.1));
  EXPECT_THAT(machine.machine().device().copy_ns_per_byte(), DoubleNear(1.0 / 8, 0.001));
  EXPECT_THAT(machine.devices(0).copy_gb_per_s(), DoubleNear(8, 0.1));
}

TEST(WorldMachine, SmallerCopiesGiveTheRatesOfCaches) {
  KnownWorld world;
  world.cache_bytes = 5e6;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  const v1::MachineDevice& device = machine.machine().device();
  EXPECT_THAT(device.memory_gb_per_s(), DoubleNear(16, 0.1));
  ASSERT_GE(device.caches_size(), 1);
  EXPECT_THAT(device.caches().rbegin()->mb(), DoubleNear(2 * 4.194304, 1e-6));
  for (const v1::MachineCache& cache : device.caches())
    EXPECT_THAT(cache.gb_per_s(), DoubleNear(80, 2)) << cache.ShortDebugString();
  EXPECT_TRUE(FromProto(machine.machine()).ok()) << FromProto(machine.machine()).status();
}

TEST(WorldMachine, ProductsWhoseRowsMoveGiveTheCoreTimeOfAByte) {
  for (const double byte_ns : {0.0, 0.25, 0.7}) {
    for (const double rate : {0.1, 0.5, 2.0}) {
      KnownWorld world;
      world.byte_ns = byte_ns;
      world.bytes_per_ns = [&](int, int) { return rate; };
      const v1::WorldMachine machine = MachineFor(NodesOf({0, 0, 1}), world);
      // Cores that need more would not reach the rate of the link in both directions.
      const double most_ns = std::min(byte_ns, 1 / (2 * rate));
      EXPECT_THAT(machine.machine().device().send_ns_per_byte(), DoubleNear(most_ns, 0.01)) << rate;
      EXPECT_THAT(machine.machine().device().receive_ns_per_byte(), DoubleNear(most_ns, 0.01));
      EXPECT_THAT(PresetFields(machine), Not(Contains("device.send_ns_per_byte")));
    }
  }
}

TEST(WorldMachine, MoreMessagesGiveTheCoreTimeOfOne) {
  for (const double message_ns : {500.0, 5e3, 50e3}) {
    KnownWorld world;
    world.message_ns = message_ns;
    const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
    EXPECT_THAT(machine.machine().device().message_us(), DoubleNear(message_ns / 1e3, 0.1));
    EXPECT_THAT(PresetFields(machine), Not(Contains("device.message_us")));
  }
}

TEST(WorldMachine, MessagesThatTakeNoTimeTogetherKeepThePresetsFigure) {
  KnownWorld world;
  world.message_ns = -1;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  EXPECT_EQ(machine.machine().device().message_us(), PresetFor("cpu").device().message_us());
  EXPECT_THAT(PresetFields(machine), Contains("device.message_us"));
}

TEST(WorldMachine, ColumnsThatMoveGiveTheTimeOfPacking) {
  for (const double pack_ns : {0.05, 0.5, 2.0}) {
    KnownWorld world;
    world.pack_ns = pack_ns;
    const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
    EXPECT_THAT(machine.machine().device().pack_ns_per_byte(), DoubleNear(pack_ns, 0.03));
    EXPECT_THAT(PresetFields(machine), Not(Contains("device.pack_ns_per_byte")));
  }
}

// Another program makes products of a kind longer by a factor in one round.
struct Disturbance {
  Kind kind;
  int round;
  double factor;
};

Survey Disturbed(const KnownWorld& world, const std::vector<Disturbance>& disturbances) {
  Survey survey(NodesOf({0, 1}));
  int round = -1;  // begins with the product whose rows stay
  int64_t rows = 0;
  while (const std::optional<Probe> probe = survey.Next()) {
    if (probe->kind == Kind::kRows && rows == 0) rows = probe->size;
    if (probe->kind == Kind::kRows && probe->size == rows) ++round;
    double factor = 1;
    for (const Disturbance& one : disturbances)
      if (one.kind == probe->kind && one.round == round) factor = one.factor;
    EpochTimes times;
    for (int rank : probe->ranks) times[rank] = world.TimeOf(*probe, rank) * factor;
    survey.Add(times, "a wire");
  }
  EXPECT_EQ(round, kRounds - 1);
  return survey;
}

TEST(WorldMachine, ARoundThatIsTooLongAndOneThatIsTooShortChangeNoCost) {
  KnownWorld world;
  world.bytes_per_ns = [](int, int) { return 0.5; };
  world.burst_bytes = 100e3;
  for (const Kind kind : {Kind::kMovingRows, Kind::kWholeRows, Kind::kMovingColumns}) {
    for (const double factor : {1.3, 2.5}) {
      for (int round = 0; round < kRounds; ++round) {
        SCOPED_TRACE(testing::Message()
                     << static_cast<int>(kind) << ", " << factor << " times in " << round);
        // The difference is too large in one round, and too small in the next.
        const Survey survey =
            Disturbed(world, {{kind, round, factor}, {Kind::kRows, (round + 1) % kRounds, 1.3}});
        const v1::Machine machine = MachineOf(survey, PresetFor("cpu")).machine();
        EXPECT_THAT(machine.device().send_ns_per_byte(), DoubleNear(world.byte_ns, 0.01));
        EXPECT_THAT(machine.device().pack_ns_per_byte(), DoubleNear(world.pack_ns, 0.03));
        EXPECT_THAT(machine.between().burst_kb(), DoubleNear(world.burst_bytes / 1e3, 5));
      }
    }
  }
}

// The noise of a product may hide the little that is left of the wait.
TEST(WorldMachine, AllBytesInABurstAreABurst) {
  KnownWorld world;
  world.bytes_per_ns = [](int, int) { return 0.5; };
  world.burst_bytes = 1e9;
  const double all_kb = MachineFor(NodesOf({0, 1}), world).machine().between().burst_kb();
  EXPECT_GT(all_kb, 100);
  world.whole_noise_ns = -20e3;
  EXPECT_NEAR(MachineFor(NodesOf({0, 1}), world).machine().between().burst_kb(), all_kb, 1e-6);
}

TEST(WorldMachine, TheSmallestCopyAndProductGiveTheFixedCosts) {
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), {});
  const v1::MachineDevice& device = machine.machine().device();
  EXPECT_THAT(device.step_us(), DoubleNear(1, 0.02));
  EXPECT_THAT(device.step_us() + device.multiply_us(),
              DoubleNear(KnownWorld::kMultiplyNs / 1e3, 0.15));
  EXPECT_THAT(PresetFields(machine), Not(Contains("device.step_us")));
  EXPECT_THAT(PresetFields(machine), Not(Contains("device.multiply_us")));
}

TEST(WorldMachine, AProductThatWaitsForItsRowsGivesTheBurstOfALink) {
  for (const double burst_bytes : {0.0, 100e3, 200e3}) {
    KnownWorld world;
    world.bytes_per_ns = [](int, int) { return 0.5; };
    world.burst_bytes = burst_bytes;
    EXPECT_THAT(MachineFor(NodesOf({0, 1}), world).machine().between().burst_kb(),
                DoubleNear(burst_bytes / 1e3, 5));
  }
}

TEST(WorldMachine, AWaitThatNoiseHidesGivesNoBurst) {
  KnownWorld world;
  // The links move the rows in a hundredth of the product's time.
  world.bytes_per_ns = [](int, int) { return 50.0; };
  world.burst_bytes = 100e3;
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  EXPECT_EQ(machine.machine().between().burst_kb(), PresetFor("cpu").between().burst_kb());
  EXPECT_THAT(PresetFields(machine), Contains("between.burst_kb"));
  // The product was faster while it waited.
  world.bytes_per_ns = [](int, int) { return 0.5; };
  world.whole_noise_ns = -1e6;
  EXPECT_EQ(MachineFor(NodesOf({0, 1}), world).machine().between().burst_kb(),
            PresetFor("cpu").between().burst_kb());
}

// Products as wide as that would take longer than a probe may.
TEST(WorldMachine, LinksThatNoProductHidesKeepThePresetsCoreTime) {
  KnownWorld world;
  world.bytes_per_ns = [](int, int) { return 0.001; };
  const v1::WorldMachine machine = MachineFor(NodesOf({0, 1}), world);
  EXPECT_EQ(machine.machine().device().send_ns_per_byte(),
            PresetFor("cpu").device().send_ns_per_byte());
  EXPECT_THAT(PresetFields(machine), Contains("device.send_ns_per_byte"));
  EXPECT_EQ(machine.errors_size(), 0);
}

TEST(WorldMachine, ACopyWithinACacheIsNotTheRateOfMemory) {
  Site site = NodesOf({0});
  site.max_bytes = 8 << 20;
  KnownWorld world;
  world.copy_bytes_per_ns = 50;
  const v1::WorldMachine small = MachineFor(site, world);
  EXPECT_EQ(small.machine().device().memory_gb_per_s(),
            PresetFor("cpu").device().memory_gb_per_s());
  EXPECT_THAT(PresetFields(small), Contains("device.memory_gb_per_s"));
  // A slow memory needs no large copies.
  world.copy_bytes_per_ns = 1;
  EXPECT_THAT(MachineFor(site, world).machine().device().memory_gb_per_s(), DoubleNear(2, 0.01));
}

TEST(WorldMachine, KeepsThePresetWhereAProbeFailed) {
  Survey survey(NodesOf({0, 1}));
  while (survey.Next().has_value()) survey.Fail("no room");
  const v1::Machine preset = PresetFor("cpu");
  const v1::WorldMachine machine = MachineOf(survey, preset);
  EXPECT_EQ(machine.errors_size(), survey.count());
  EXPECT_EQ(machine.machine().SerializeAsString(), preset.SerializeAsString());
  EXPECT_TRUE(machine.paths().empty());
  for (const char* field : {"between", "within", "device.memory_gb_per_s", "device.gemm DTYPE_F16"})
    EXPECT_THAT(PresetFields(machine), Contains(field));
}

TEST(WorldMachine, IsAMachineThatTheModelAccepts) {
  for (const auto& nodes : {std::vector{0}, {0, 0}, {0, 1}, {0, 0, 1, 1, 2}}) {
    for (const double bytes_per_ns : {0.01, 1.0, 50.0}) {
      KnownWorld world;
      world.bytes_per_ns = [&](int from, int) { return bytes_per_ns * (from == 0 ? 0.5 : 1); };
      world.signal_ns = 5000;
      const v1::WorldMachine machine = MachineFor(NodesOf(nodes), world);
      const absl::StatusOr<Machine> valid = FromProto(machine.machine());
      EXPECT_TRUE(valid.ok()) << valid.status() << machine.DebugString();
    }
  }
}

// With a scan of all pairs for each pair, this takes minutes.
TEST(WorldMachine, AWorldOfManyNodesHasAnExceptionForEachSlowLink) {
  constexpr int kNodes = 400;
  std::vector<int> nodes(kNodes);
  std::iota(nodes.begin(), nodes.end(), 0);
  KnownWorld world;
  // Only links of node 0 are fast.
  world.bytes_per_ns = [](int from, int to) { return from == 0 || to == 0 ? 1.0 : 0.25; };
  const v1::WorldMachine machine = MachineFor(NodesOf(nodes), world);
  EXPECT_EQ(machine.paths_size(), kNodes * (kNodes - 1));
  EXPECT_EQ(machine.devices_size(), kNodes);
  for (const v1::MeasuredPath& path : machine.paths())
    ASSERT_NEAR(path.two_way_gb_per_s(), 2 * path.one_way_gb_per_s(), 0.02);
  const absl::StatusOr<Machine> valid = FromProto(machine.machine());
  ASSERT_TRUE(valid.ok()) << valid.status();
  EXPECT_EQ(valid->between.pairs.size(), static_cast<size_t>((kNodes - 1) * (kNodes - 2)));
}

// Nodes may report any times, and none for some ranks.
TEST(WorldMachine, AnyTimesMakeAMachineThatTheModelAccepts) {
  std::mt19937_64 random(TestSeed());
  const auto any_time_ns = [&random] {
    const uint64_t choice = random() % 40;
    if (choice == 0) return 0.0;
    if (choice == 1) return -1e6;
    if (choice == 2) return std::numeric_limits<double>::infinity();
    return std::pow(10.0, 3 + static_cast<double>(random() % 4000) / 1000);
  };
  for (int trial = 0; trial < 500; ++trial) {
    Survey survey(NodesOf({0, 0, 1}));
    while (const std::optional<Probe> probe = survey.Next()) {
      EpochTimes times;
      for (int rank : probe->ranks)
        if (random() % 20 != 0) times[rank] = any_time_ns();
      survey.Add(times, "a wire");
    }
    const v1::WorldMachine machine = MachineOf(survey, PresetFor("cpu"));
    const absl::StatusOr<Machine> valid = FromProto(machine.machine());
    ASSERT_TRUE(valid.ok()) << valid.status() << machine.DebugString();
  }
}

}  // namespace
}  // namespace agmm::measure
