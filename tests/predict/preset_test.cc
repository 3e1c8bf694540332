// The presets: deploy/machines is what the program contains, and each number has a source.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "kernels/predict/seeds.h"
#include "proto/convert/machine_text.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::string FileOf(const std::string& name) {
  std::ifstream file(AGMM_MACHINES_DIR "/" + name + ".textproto");
  std::stringstream text;
  text << file.rdbuf();
  return text.str();
}

Machine PresetOf(const std::string& name) {
  const auto machine = Preset(name);
  EXPECT_TRUE(machine.ok()) << machine.status();
  return machine.ok() ? *machine : Machine{};
}

TEST(Preset, HasAFileForEachName) {
  EXPECT_THAT(PresetNames(), ElementsAre("a100", "b200", "cpu-tcp", "h100-nvlink", "h800",
                                         "tpu-v4p", "tpu-v5e", "tpu-v5p"));
  std::set<std::string> files;
  for (const auto& file : std::filesystem::directory_iterator(AGMM_MACHINES_DIR))
    files.insert(file.path().stem());
  const auto names = PresetNames();
  EXPECT_EQ(files, std::set<std::string>(names.begin(), names.end()));
}

TEST(Preset, IsTheMachineOfItsFile) {
  for (const std::string& name : PresetNames()) {
    const Machine preset = PresetOf(name);
    const auto read = MachineFromText(FileOf(name), name);
    ASSERT_TRUE(read.ok()) << read.status();
    EXPECT_EQ(preset, *read) << name;
    EXPECT_EQ(preset.name, name);
    EXPECT_EQ(preset.version, 0);
  }
}

TEST(Preset, ComesBackFromItsText) {
  for (const std::string& name : PresetNames()) {
    const auto again = MachineFromText(MachineText(PresetOf(name)), name);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, PresetOf(name));
  }
}

TEST(Preset, IsRefusedWithAllNames) {
  const auto machine = Preset("h200");
  EXPECT_EQ(machine.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(machine.status().message()),
              HasSubstr("\"h200\" is not a preset; use one of a100, b200, cpu-tcp, h100-nvlink, "
                        "h800, tpu-v4p, tpu-v5e, tpu-v5p, or"));
}

// The lines of a preset with a number whose comment, beside it or above it, names neither a
// reference of the file, [1], nor the reason of a choice; and references that no number uses.
std::vector<std::string> WithoutSource(const std::string& text) {
  static const std::regex kNumber(R"(^\s*\w+: [-\d.].*)"), kChosen("# chosen: .{4,}"),
      kReference(R"(\[(\d+)\])"), kDefined(R"(^# \[(\d+)\] .{10,})");
  std::set<std::string> defined, used;
  std::vector<std::string> wrong;
  std::string above;
  const std::vector<std::string> lines = absl::StrSplit(text, '\n');
  for (const std::string& line : lines) {
    std::smatch match;
    if (std::regex_search(line, match, kDefined)) defined.insert(match[1]);
    if (absl::StartsWith(absl::StripLeadingAsciiWhitespace(line), "#")) {
      above += line;
      continue;
    }
    if (std::regex_match(line, kNumber)) {
      const size_t at = line.find('#');
      const std::string comment = at == std::string::npos ? above : line.substr(at);
      bool sourced = std::regex_search(comment, kChosen);
      for (std::sregex_iterator it(comment.begin(), comment.end(), kReference), end; it != end;
           ++it) {
        used.insert((*it)[1]);
        sourced = sourced || defined.count((*it)[1]) > 0;
      }
      if (!sourced) wrong.push_back(line);
    }
    above.clear();
  }
  for (const std::string& reference : defined)
    if (used.count(reference) == 0) wrong.push_back("[" + reference + "] is not used");
  for (const std::string& reference : used)
    if (defined.count(reference) == 0) wrong.push_back("[" + reference + "] is not defined");
  return wrong;
}

TEST(Preset, HasASourceForEachNumber) {
  for (const std::string& name : PresetNames())
    EXPECT_THAT(WithoutSource(FileOf(name)), ElementsAre()) << name;
}

TEST(Preset, IsSearchedForNumbersWithoutSource) {
  EXPECT_THAT(WithoutSource("# [1] a long datasheet\n"
                            "a: 1  # [1]\n"
                            "b: 2  # a rate\n"
                            "# chosen: as b\n"
                            "c: 0.5\n"
                            "d: -1\n"
                            "e: 3  # [2]\n"),
              ElementsAre("b: 2  # a rate", "d: -1", "e: 3  # [2]", "[2] is not defined"));
}

TEST(Preset, MultipliesThePallasUnitShapeIn43Microseconds) {
  const DeviceRates device = PresetOf("h100-nvlink").device;
  EXPECT_NEAR(GemmNs(device, DType::kF16, 2.0 * 1024 * 4096 * 4096), 43000, 1);
}

TEST(Preset, HasTheLinksOfTheTorusFormulas) {
  // "Sharded Matrices and How to Multiply Them": below 45 kB, latency dominates on v5e.
  const LinkRates v5e = PresetOf("tpu-v5e").within.rates;
  EXPECT_EQ(v5e.one_way * v5e.latency_ns, 45e3);
  EXPECT_EQ(PresetOf("tpu-v4p").within.rates.two_way, 90);
}

TEST(Preset, HasTheMemoryOfADevice) {
  EXPECT_EQ(PresetOf("tpu-v5e").heap_bytes, 16'000'000'000);
  for (const std::string& name : PresetNames())
    EXPECT_EQ(PresetOf(name).heap_bytes > 0, name != "cpu-tcp") << name;
}

TEST(Seeds, OfSimulatedSchedulesAgreeOrSayWhy) {
  const SeedMachines machines = {Preset("tpu-v4p").value(), Preset("tpu-v5e").value(),
                                 Preset("tpu-v5p").value(), Preset("h100-nvlink").value()};
  const absl::StatusOr<SimulatedFigures> simulated = SimulateFigures(machines);
  ASSERT_TRUE(simulated.ok()) << simulated.status();
  for (const SeedRow& row : SeedRows(machines, *simulated)) {
    EXPECT_EQ(Agrees(row), row.why.empty()) << row.source << ": " << row.question << ": "
                                            << row.seed << " and " << row.ours << ", " << row.why;
  }
  const SimulatedFigures forms = FiguresOfForms();
  EXPECT_NEAR(simulated->elements.gather_one_way, forms.elements.gather_one_way, 1);
  EXPECT_NEAR(simulated->elements.all_to_all_one_way, forms.elements.all_to_all_one_way, 1);
  EXPECT_NEAR(simulated->elements.gather_both_ways, forms.elements.gather_both_ways, 1);
  EXPECT_NEAR(simulated->elements.all_to_all_both_ways, forms.elements.all_to_all_both_ways, 1);
  // With two devices, each waits for the other's last read of the epoch before.
  const double credits_us[] = {6, 0, 0};
  for (size_t i = 0; i < forms.pallas_ring_us.size(); ++i)
    EXPECT_NEAR(simulated->pallas_ring_us[i], forms.pallas_ring_us[i] + credits_us[i], 0.5);
}

}  // namespace
}  // namespace agmm::test
