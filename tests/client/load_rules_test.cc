#include "client/files/load_rules.h"

#include <filesystem>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Code = absl::StatusCode;

class LoadRules : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/rulesXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
    file_ = Make({{"l.0.up.weight", 3, 2, DType::kBF16},
                  {"l.0.down.weight", 2, 3, DType::kBF16},
                  {"norm", 1, 2, DType::kBF16}});
    ASSERT_NE(file_, nullptr);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::unique_ptr<TensorFile> Make(const std::vector<TensorToSave>& tensors) const {
    const std::string path = folder_ + "/m.safetensors";
    auto writer = TensorFileWriter::Create(path, tensors, {}).value();
    for (const TensorToSave& tensor : writer->tensors()) {
      EXPECT_TRUE(
          writer->Append(std::string(tensor.rows * tensor.cols * SizeOf(tensor.dtype), '\0')).ok());
    }
    EXPECT_TRUE(writer->Commit().ok());
    auto file = TensorFile::Open(path);
    EXPECT_TRUE(file.ok()) << file.status();
    return file.ok() ? *std::move(file) : nullptr;
  }
  absl::Status Check(const std::vector<FileRule>& rules, bool strict = false) const {
    return CheckPlan(*file_, rules, PlanLoad(*file_, rules), strict);
  }
  void ExpectRefused(const std::vector<FileRule>& rules, bool strict, const char* what) const {
    const absl::Status status = Check(rules, strict);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << what;
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
    EXPECT_THAT(std::string(status.message()), HasSubstr("m.safetensors: "));
  }

  std::string folder_;
  std::unique_ptr<TensorFile> file_;
};

TEST_F(LoadRules, TheFirstRuleThatMatchesDecides) {
  const std::vector<FileRule> rules = {{.pattern = "*.down.*", .skip = true},
                                       {.pattern = "*.weight", .transpose = true, .name = "x.*"},
                                       {.pattern = "l.*", .dtype = DType::kF32}};
  const LoadPlan plan = PlanLoad(*file_, rules);
  ASSERT_EQ(plan.tensors.size(), 3u);
  EXPECT_TRUE(plan.tensors[0].taken);
  EXPECT_EQ(plan.tensors[0].rule, 1);
  EXPECT_EQ(plan.tensors[0].name, "x.l.0.up.weight");
  EXPECT_EQ(plan.tensors[0].layout.rows, 2);
  EXPECT_EQ(plan.tensors[0].layout.cols, 3);
  EXPECT_TRUE(plan.tensors[0].layout.by_columns);
  EXPECT_EQ(plan.tensors[0].dtype, DType::kBF16);
  EXPECT_EQ(plan.tensors[1].rule, 0);
  EXPECT_FALSE(plan.tensors[1].taken);
  EXPECT_EQ(plan.tensors[2].rule, -1);
  EXPECT_FALSE(plan.tensors[2].taken);
  EXPECT_EQ(plan.bytes(), 12);
  EXPECT_TRUE(CheckPlan(*file_, rules, plan, /*strict=*/false).ok());
}

TEST_F(LoadRules, AnotherDtypeCountsInBytes) {
  const LoadPlan plan = PlanLoad(*file_, {{.pattern = "norm", .dtype = DType::kF32}});
  EXPECT_EQ(plan.tensors[2].name, "norm");
  EXPECT_EQ(plan.tensors[2].dtype, DType::kF32);
  EXPECT_EQ(plan.bytes(), 8);
}

TEST_F(LoadRules, ARuleThatMatchesNothingIsListed) {
  const LoadPlan plan =
      PlanLoad(*file_, {{.pattern = "norm"}, {.pattern = "*.bias"}, {.pattern = "*"}});
  EXPECT_THAT(plan.unused_rules, ElementsAre(1));
}

TEST_F(LoadRules, AStrictPlanNeedsARuleForEachTensorAndATensorForEachRule) {
  EXPECT_TRUE(Check({{.pattern = "*.weight"}}).ok());
  ExpectRefused({{.pattern = "*.weight"}}, true, "no rule matches \"norm\"");
  ExpectRefused({{.pattern = "*"}, {.pattern = "*.bias"}}, true,
                "the pattern \"*.bias\" matches none of 3 tensors");
  EXPECT_TRUE(Check({{.pattern = "norm", .skip = true}, {.pattern = "*"}}, true).ok());
}

TEST_F(LoadRules, ALoadOfNothingIsRefusedWithTheNames) {
  ExpectRefused({}, false, "no rule loads a tensor; the file has \"l.0.up.weight\", ");
  ExpectRefused({{.pattern = "*", .skip = true}}, false, "no rule loads a tensor");
  ExpectRefused({{.pattern = "*.bias"}}, false, "the rules for \"*.bias\"");
  file_ = Make({});
  ExpectRefused({{.pattern = "*"}}, false, "the file has no tensors");
}

TEST_F(LoadRules, TwoTensorsCannotTakeOneName) {
  ExpectRefused({{.pattern = "*.weight", .name = "w"}}, false,
                "tensors \"l.0.up.weight\" and \"l.0.down.weight\" would both become \"w\"");
}

TEST_F(LoadRules, ATensorCannotTakeANameThatDaemonsRefuse) {
  const std::string tensor = "tensor \"norm\" cannot be loaded: its name on the devices ";
  const std::vector<std::pair<std::string, std::string>> names = {
      {std::string(253, 'n') + "*", "has 257 bytes; at most 256 are taken"},
      {"#*", "begins with '#'"},
      {"a,*", "has ',' at byte 1"},
      {"* ", "begins or ends with a space"},
      {"a\n*", "has the control character U+000A at byte 1"},
      {"*\xff", "is not UTF-8 from byte 4 on"}};
  for (const auto& [name, what] : names) {
    ExpectRefused({{.pattern = "norm", .name = name}, {.pattern = "*"}}, false,
                  (tensor + what).c_str());
  }
  EXPECT_TRUE(Check({{.pattern = "norm", .name = std::string(252, 'n') + "*"}}).ok());
  file_ = Make({{"", 1, 1, DType::kF32}});
  ExpectRefused({{.pattern = "*"}}, false,
                "tensor \"\" cannot be loaded: its name on the devices is empty");
}

TEST_F(LoadRules, ANameWithANullByteMatchesNoPattern) {
  file_ = Make({{std::string("a\0b", 3), 1, 1, DType::kF32}, {"c", 1, 1, DType::kF32}});
  const LoadPlan plan = PlanLoad(*file_, {{.pattern = "a"}, {.pattern = "*"}});
  EXPECT_FALSE(plan.tensors[0].taken);
  EXPECT_TRUE(plan.tensors[1].taken);
}

TEST_F(LoadRules, LongListsOfNamesAreCut) {
  EXPECT_EQ(NamesText({"a", "b", "c"}, 3), "\"a\", \"b\", \"c\"");
  EXPECT_EQ(NamesText({"a", "b", "c"}, 1), "\"a\" and 2 more");
}

}  // namespace
}  // namespace agmm
