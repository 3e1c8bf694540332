// Machines as messages and as text: what may be left out, equal copies, and errors that point at a
// line and a column.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "absl/strings/str_replace.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/machine_text.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kText[] = R"(name: "small"
within { wiring: SWITCH one_way_gb_per_s: 10 latency_us: 2.5 }
between {
  wiring: PAIRWISE
  one_way_gb_per_s: 1
  two_way_gb_per_s: 1.5
  pairs { from_node: 0 to_node: 1 one_way_gb_per_s: 0.5 latency_us: 7 }
  pairs { from_node: 1 to_node: 0 one_way_gb_per_s: 0.25 }
}
device {
  gemm { dtype: DTYPE_F32 gflop: 1 gflop_per_s: 100 }
  gemm { dtype: DTYPE_BF16 gflop: 1 gflop_per_s: 200 }
  gemm { dtype: DTYPE_F16 gflop: 1 gflop_per_s: 100 }
  gemm { dtype: DTYPE_F16 gflop: 2 gflop_per_s: 150 }
  memory_gb_per_s: 20
  signal_us: 0.1
}
)";

// kText with one piece of it replaced.
std::string Changed(const char* from, const char* to) {
  const std::string text = absl::StrReplaceAll(kText, {{from, to}});
  EXPECT_NE(text, kText) << from;
  return text;
}

Machine Parsed(const std::string& text) {
  const auto machine = MachineFromText(text, "small.textproto");
  EXPECT_TRUE(machine.ok()) << machine.status();
  return machine.ok() ? *machine : Machine{};
}

std::string Refusal(const std::string& text) {
  const auto machine = MachineFromText(text, "small.textproto");
  EXPECT_EQ(machine.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(machine.status().message());
}

TEST(MachineText, HasUnitsOfItsOwn) {
  const Machine machine = Parsed(kText);
  EXPECT_EQ(machine.name, "small");
  EXPECT_EQ(machine.within.wiring, Wiring::kSwitch);
  EXPECT_EQ(machine.within.rates.one_way, 10);
  EXPECT_EQ(machine.within.rates.latency_ns, 2500);
  EXPECT_EQ(machine.between.rates.two_way, 1.5);
  ASSERT_EQ(machine.between.pairs.size(), 2);
  EXPECT_EQ(machine.between.pairs[0], (PairRates{0, 1, 0.5, 7000}));
  ASSERT_EQ(machine.device.gemm.size(), 4);
  EXPECT_EQ(machine.device.gemm[3], (GemmRate{DType::kF16, 2e9, 150}));
  EXPECT_EQ(machine.device.signal_ns, 100);
}

TEST(MachineText, FillsInWhatIsLeftOut) {
  const Machine machine = Parsed(kText);
  EXPECT_EQ(machine.within.rates.two_way, 20);
  EXPECT_EQ(machine.staged, machine.within);
  EXPECT_EQ(machine.devices_per_node, 1);
}

TEST(MachineText, NeedsNoLinksBetweenNodesOfATorus) {
  std::string text = Changed("SWITCH", "TORUS");
  const size_t begin = text.find("between"), end = text.find("device");
  text.erase(begin, end - begin);
  EXPECT_EQ(Parsed(text).between, Parsed(text).within);
  EXPECT_EQ(Refusal(absl::StrReplaceAll(text, {{"TORUS", "SWITCH"}})),
            "small.textproto: between.wiring is missing; give SWITCH, PAIRWISE or TORUS");
}

TEST(MachineText, ComesBackAsItWas) {
  const Machine machine = Parsed(kText);
  EXPECT_EQ(Parsed(MachineText(machine)), machine);
}

// A machine whose numbers have as many digits as ToProto keeps.
Machine RandomMachine(std::mt19937_64& random) {
  const auto number = [&](double most) {
    return most * std::uniform_real_distribution<double>(1e-6, 1)(random);
  };
  const auto time_ns = [&] { return std::round(number(1e15)) / 1e6; };
  Machine machine{.name = "random \"\n\x01", .version = 7, .devices_per_node = 3};
  machine.wrap_multiple = 4;
  machine.heap_bytes = static_cast<int64_t>(number(1e15));
  for (Links* links : {&machine.within, &machine.staged, &machine.between}) {
    const double rate = number(1e3);
    links->wiring = random() % 2 == 0 ? Wiring::kSwitch : Wiring::kPairwise;
    links->rates = {rate, rate + number(rate), time_ns(), std::floor(number(1e9))};
  }
  machine.between.pairs = {{0, 2, number(10), time_ns()}, {2, 0, number(10), time_ns()}};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    machine.device.gemm.push_back({dtype, std::ceil(number(1e15)), number(1e6)});
  machine.device.memory = number(1e4);
  for (double* time : {&machine.device.multiply_ns, &machine.device.step_ns,
                       &machine.device.signal_ns, &machine.device.message_ns})
    *time = time_ns();
  for (double* cost : {&machine.device.send_ns_per_byte, &machine.device.receive_ns_per_byte,
                       &machine.device.copy_ns_per_byte, &machine.device.pack_ns_per_byte})
    *cost = number(1);
  return machine;
}

TEST(MachineText, KeepsEveryDigit) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    const Machine machine = RandomMachine(random);
    ASSERT_EQ(Parsed(MachineText(machine)), machine) << MachineText(machine);
  }
}

TEST(MachineText, IsStableAfterOneRounding) {
  std::mt19937_64 random(TestSeed());
  for (int i = 0; i < 1000; ++i) {
    Machine machine = RandomMachine(random);
    machine.device.step_ns = std::uniform_real_distribution<double>(0, 1e6)(random);
    const Machine once = Parsed(MachineText(machine));
    EXPECT_NEAR(once.device.step_ns, machine.device.step_ns, 1e-6);
    ASSERT_EQ(Parsed(MachineText(once)), once);
  }
}

TEST(MachineText, PointsAtTextThatIsNoMachine) {
  EXPECT_THAT(
      Refusal(Changed("memory_gb_per_s", "memory")),
      StartsWith("small.textproto:15:9: Message type \"agmm.v1.MachineDevice\" has no field "
                 "named \"memory\""));
  // protobuf points behind an unknown name.
  EXPECT_EQ(
      Refusal(Changed("PAIRWISE", "MESH")),
      "small.textproto:5:3: Unknown enumeration value of \"MESH\" for field \"wiring\"; correct "
      "this text of agmm.v1.Machine");
  EXPECT_THAT(Refusal(Changed("gflop: 2", "gflop: many")),
              StartsWith("small.textproto:14:34: Expected double, got: many; correct"));
  EXPECT_THAT(Refusal(std::string(kText) + "}"), StartsWith("small.textproto:18:1: "));
}

TEST(MachineText, PointsAtNumbersThatAreWrong) {
  EXPECT_EQ(Refusal(Changed("memory_gb_per_s: 20", "memory_gb_per_s: -20")),
            "small.textproto:15:3: device.memory_gb_per_s is -20, but a rate is above 0, from "
            "1e-06 to 1e+09; give it such a "
            "value");
  EXPECT_THAT(Refusal(Changed("two_way_gb_per_s: 1.5", "two_way_gb_per_s: 3")),
              StartsWith("small.textproto:6:3: between.two_way_gb_per_s is 3, outside [1, 2]"));
  EXPECT_THAT(Refusal(Changed("0.25", "nan")),
              StartsWith("small.textproto:8:35: between.pairs[1].one_way_gb_per_s is nan"));
  EXPECT_THAT(Refusal(Changed("from_node: 1 to_node: 0", "from_node: 0 to_node: 1")),
              StartsWith("small.textproto:8:3: between.pairs[1] is from node 0 to node 1, as "
                         "pairs[0] is; leave one out"));
  EXPECT_THAT(Refusal(Changed("gflop: 2", "gflop: 0.5")),
              StartsWith("small.textproto:14:3: device.gemm[3] of 0.5 Gflop in f16 comes after one "
                         "of 1 Gflop"));
  EXPECT_THAT(Refusal(Changed("DTYPE_BF16", "DTYPE_UNSPECIFIED")),
              StartsWith("small.textproto:12:10: device.gemm[1].dtype: dtype 0 is not known"));
  EXPECT_THAT(Refusal(Changed("memory_gb_per_s: 20", "")),
              StartsWith("small.textproto:10:1: device.memory_gb_per_s is 0"));
  EXPECT_THAT(Refusal(Changed("PAIRWISE", "TORUS")),
              StartsWith("small.textproto:4:3: between.wiring is TORUS"));
  EXPECT_THAT(Refusal(Changed("name", "devices_per_node: -1 name")),
              StartsWith("small.textproto:1:1: devices_per_node is -1, but"));
  EXPECT_THAT(Refusal(Changed("name", "wrap_multiple: -1 name")),
              StartsWith("small.textproto:1:1: wrap_multiple is -1, but"));
  EXPECT_THAT(Refusal(Changed("name", "heap_bytes: -1 name")),
              StartsWith("small.textproto:1:1: heap_bytes is -1, but"));
  EXPECT_THAT(Refusal(Changed("latency_us: 2.5", "pairs { to_node: 1 one_way_gb_per_s: 1 }")),
              StartsWith("small.textproto:2:46: within.pairs[0] is between devices of a node"));
}

TEST(MachineText, IsNeverEmpty) {
  EXPECT_EQ(Refusal(""),
            "small.textproto: within.wiring is missing; give SWITCH, PAIRWISE or TORUS");
}

}  // namespace
}  // namespace agmm::test
