#include "client/ctl/load_report.h"

#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(LoadReport, ARuleEndsInTheShardingAfterItsLastEqualsSign) {
  const auto flags = ParseRules({"*=[M, N]", "[a-c]=[x]=[K, N_x]"}, {"skip*"}, {"t*"}, "p.", "f16");
  ASSERT_TRUE(flags.ok()) << flags.status();
  ASSERT_EQ(flags->rules.size(), 3u);
  EXPECT_EQ(flags->rules[0].pattern, "skip*");
  EXPECT_TRUE(flags->rules[0].skip);
  EXPECT_EQ(flags->rules[1].pattern, "*");
  EXPECT_EQ(flags->rules[1].name, "p.*");
  EXPECT_EQ(flags->rules[1].dtype, DType::kF16);
  EXPECT_EQ(flags->rules[2].pattern, "[a-c]=[x]");
  EXPECT_THAT(flags->shardings, ElementsAre("", "[M, N]", "[K, N_x]"));
  EXPECT_THAT(flags->transposed, ElementsAre("t*"));
}

TEST(LoadReport, ARuleWithoutAPatternOrAShardingIsRefused) {
  for (const char* rule : {"", "*", "=[M, N]", "*=M", "*[M, N]"}) {
    const auto flags = ParseRules({rule}, {}, {}, "", "");
    EXPECT_EQ(flags.status().code(), absl::StatusCode::kInvalidArgument) << rule;
    EXPECT_THAT(std::string(flags.status().message()), HasSubstr("is not PATTERN=SHARDING"));
  }
  EXPECT_FALSE(ParseRules({"*=[M, N]"}, {}, {}, "", "f64").ok());
}

LoadReport SomeReport() {
  LoadReport report;
  report.file = "m.safetensors";
  for (const char* name : {"a", "b"}) {
    LoadReport::Loaded& loaded = report.loaded.emplace_back();
    loaded.name_in_file = name;
    loaded.tensor.set_name(std::string("p.") + name);
    loaded.tensor.mutable_spec()->set_rows(256);
    loaded.tensor.mutable_spec()->set_cols(512);
    loaded.tensor.mutable_spec()->set_sharding("[K, N_x]");
    loaded.bytes = 1 << 19;
    loaded.seconds = 0.5;
  }
  return report;
}

TEST(LoadReport, TheTextEndsWithAllTensorsAndTheRest) {
  LoadReport report = SomeReport();
  EXPECT_THAT(LoadText(report), HasSubstr("\nm.safetensors: 2 tensors, 1 MiB in 1 s\n"));
  EXPECT_THAT(LoadText(report), Not(HasSubstr("skipped")));
  report.skipped = {"c\x1b"};
  report.unused_patterns = {"*.bias"};
  EXPECT_THAT(LoadText(report), HasSubstr("skipped: \"c\\x1b\"\n"));
  EXPECT_THAT(LoadText(report), HasSubstr("patterns that match no tensor: \"*.bias\"\n"));
}

TEST(LoadReport, TheJsonHasATensorForEachUpload) {
  const Json json = ToJson(SomeReport());
  EXPECT_EQ(json["schema"], "agmm.load.v1");
  ASSERT_EQ(json["loaded"].size(), 2u);
  EXPECT_EQ(json["loaded"][1]["name_in_file"], "b");
  EXPECT_EQ(json["loaded"][1]["bytes"], 1 << 19);
  EXPECT_EQ(json["loaded"][1]["tensor"]["name"], "p.b");
  EXPECT_EQ(json["skipped"].size(), 0u);
}

}  // namespace
}  // namespace agmm
