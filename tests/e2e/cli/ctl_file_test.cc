// agmmctl tensor load and save, as users run them.
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "client/files/tensor_file.h"
#include "kernels/base/dtype.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

class CtlFile : public Ctl {
 protected:
  void SetUp() override {
    Ctl::SetUp();
    up_ = SmallIntegers(48, 32, 1);
    down_ = SmallIntegers(32, 48, 2);
    bias_ = SmallIntegers(1, 48, 3);
    path_ = world_.Path("m.safetensors");
    const std::vector<std::pair<std::string, const TestMatrix*>> stored = {
        {"l.up.weight", &up_}, {"l.down.weight", &down_}, {"l.up.bias", &bias_}};
    std::vector<TensorToSave> tensors;
    for (const auto& [name, matrix] : stored)
      tensors.push_back({name, matrix->rows, matrix->cols, DType::kF32});
    auto writer = TensorFileWriter::Create(path_, tensors, {{"format", "pt"}});
    ASSERT_TRUE(writer.ok()) << writer.status();
    for (const auto& [name, matrix] : stored) {
      ASSERT_TRUE((*writer)
                      ->Append({reinterpret_cast<const char*>(matrix->values.data()),
                                matrix->values.size() * sizeof(float)})
                      .ok());
    }
    ASSERT_TRUE((*writer)->Commit().ok());
  }
  static TestMatrix Transpose(const TestMatrix& matrix) {
    TestMatrix out{matrix.cols, matrix.rows, std::vector<float>(matrix.values.size())};
    for (int64_t i = 0; i < matrix.rows * matrix.cols; ++i)
      out.values[i % matrix.cols * matrix.rows + i / matrix.cols] = matrix.values[i];
    return out;
  }

  std::string path_;
  TestMatrix up_, down_, bias_;
};

TEST_F(CtlFile, TensorsAreLoadedByRulesAndSavedAgain) {
  const Json loaded = OkJson({"tensor", "load", path_, "--rule", "*.up.weight=[K, N_x]", "--rule",
                              "*.weight=[M_x, K]", "--rule", "none=[M, N]", "--transpose", "*.up.*",
                              "--prefix", "q."});
  EXPECT_EQ(loaded["schema"], "agmm.load.v1");
  ASSERT_EQ(loaded["loaded"].size(), 2u) << loaded;
  EXPECT_EQ(loaded["loaded"][0]["name_in_file"], "l.up.weight");
  EXPECT_EQ(loaded["loaded"][0]["bytes"], 48 * 32 * 4);
  EXPECT_EQ(loaded["loaded"][0]["tensor"]["name"], "q.l.up.weight");
  EXPECT_EQ(loaded["loaded"][0]["tensor"]["sharding"], "[K, N_x]");
  EXPECT_EQ(loaded["loaded"][0]["tensor"]["mesh"], "x=4");
  EXPECT_EQ(loaded["skipped"], Json({"l.up.bias"}));
  EXPECT_EQ(loaded["unused_patterns"], Json({"none"}));
  EXPECT_TRUE(SameBits(Get("q.l.up.weight"), Transpose(up_)));
  EXPECT_TRUE(SameBits(Get("q.l.down.weight"), down_));
  const std::string out = world_.Path("out.safetensors");
  const Json saved = OkJson(
      {"tensor", "save", out, "q.l.down.weight", "q.l.up.weight", "--metadata", "format=pt"});
  EXPECT_EQ(saved["schema"], "agmm.save.v1");
  EXPECT_EQ(saved["tensors"].size(), 2u);
  EXPECT_THAT(ReadFile(out), HasSubstr("\"__metadata__\":{\"format\":\"pt\"}"));
  EXPECT_THAT(Ok({"tensor", "load", out, "--rule", "q.l.up*=[M, N]", "--prefix", "again."}),
              HasSubstr("out.safetensors: 1 tensor, 6 KiB in "));
  EXPECT_TRUE(SameBits(Get("again.q.l.up.weight"), Transpose(up_)));
}

TEST_F(CtlFile, AConvertedTensorHasTheDtypeOfTheFlag) {
  const std::string text =
      Ok({"tensor", "load", path_, "--rule", "*=[M, N]", "--skip", "*.weight", "--dtype", "bf16"});
  EXPECT_THAT(text, HasSubstr("bf16"));
  EXPECT_THAT(text, HasSubstr("skipped: \"l.up.weight\", \"l.down.weight\"\n"));
  EXPECT_TRUE(SameBits(Get("l.up.bias"), bias_));
  const std::string npy = world_.Path("bias.npy");
  EXPECT_THAT(Ok({"tensor", "save", npy, "l.up.bias"}), HasSubstr("bias.npy: 1 tensor\n"));
  EXPECT_TRUE(SameBits(ReadNpy(npy), bias_));
  Ok({"tensor", "load", npy, "--rule", "b*=[M, N_x]"});
  EXPECT_TRUE(SameBits(Get("bias"), bias_));
}

TEST_F(CtlFile, AListShowsWhatEachRuleTakesAndAsksNoDaemon) {
  const auto listed = [&](const std::string& log, const std::vector<std::string>& flags) {
    std::vector<std::string> command = {Program("agmmctl"), "--endpoint",
                                        "unix:/nonexistent/agmm.sock"};
    const std::vector<std::string> load = {
        "tensor", "load", path_, "--list", "--rule", "*.weight=[K, N_x]", "--transpose", "*.up.*"};
    command.insert(command.end(), load.begin(), load.end());
    command.insert(command.end(), flags.begin(), flags.end());
    Process process(command, world_.Path(log));
    EXPECT_EQ(process.Wait(kPatience), 0) << process.err();
    return process.out();
  };
  const std::string text = listed("text", {});
  EXPECT_THAT(text, HasSubstr("*.weight=[K, N_x]"));
  EXPECT_THAT(text, HasSubstr("32x48 f32"));
  const Json json = Json::parse(listed("json", {"--json"}), nullptr, false);
  ASSERT_FALSE(json.is_discarded());
  EXPECT_EQ(json["schema"], "agmm.tensor_file.v1");
  ASSERT_EQ(json["tensors"].size(), 3u);
  EXPECT_EQ(json["tensors"][0]["shape_in_file"], Json({48, 32}));
  EXPECT_EQ(json["tensors"][0]["rows"], 32);
  EXPECT_EQ(json["tensors"][2]["rule"], nullptr);
  EXPECT_EQ(json["tensors"][2]["loaded"], false);
  ExpectNothingIsLeft();
}

TEST_F(CtlFile, ALoadThatCannotBeFinishedLoadsNothing) {
  const auto load = [&](std::vector<std::string> flags) {
    std::vector<std::string> arguments = {"tensor", "load", path_};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return arguments;
  };
  ExpectError(load({}), 2, "no rule loads a tensor; the file has \"l.up.weight\"");
  ExpectError(load({"--rule", "*.weight"}), 2, "--rule \"*.weight\" is not PATTERN=SHARDING");
  ExpectError(load({"--rule", "=[M, N]"}), 2, "is not PATTERN=SHARDING");
  ExpectError(load({"--rule", "none=[M, N]"}), 2, "the rules for \"none\"");
  ExpectError(load({"--rule", "*=[M, N]", "--transpose", "none"}), 2,
              "--transpose \"none\" matches no tensor");
  ExpectError(load({"--rule", "*.bias=[M, N]", "--strict"}), 2, "no rule matches \"l.up.weight\"");
  ExpectError(load({"--rule", "*=[M, N]", "--dtype", "f64"}), 2, "f64");
  ExpectError(load({"--rule", "*=[M, N]", "--ranks", "7"}), 2, "7");
  const Ran ran = Run(load({"--rule", "*=[M, N_y]"}));
  EXPECT_EQ(ran.exit_code, 2);
  EXPECT_THAT(ran.err, HasSubstr("tensor \"l.up.weight\" cannot be loaded: sharding"));
  ExpectError({"tensor", "load", world_.Path("m.bin"), "--rule", "*=[M, N]"}, 2,
              "ends neither in .npy nor in .safetensors");
  std::filesystem::resize_file(path_, 9000);
  ExpectError(load({"--rule", "*=[M, N]"}), 2, "it may be truncated");
  ExpectNothingIsLeft();
}

TEST_F(CtlFile, AnErrorNamesItsTensorAndThoseLoadedBefore) {
  // The world is too small for the second tensor.
  const std::string path = world_.Path("large.safetensors");
  auto writer = TensorFileWriter::Create(
      path, {{"a", 2, 2, DType::kF32}, {"b", 1, 1 << 24, DType::kF32}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(std::string(16 + (1 << 26), '\0')).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  ExpectError({"tensor", "load", path, "--rule", "*=[M, N]"}, 8,
              "tensor \"b\" was not loaded (loaded before it: \"a\"): ");
  EXPECT_EQ(OkJson({"tensor", "list"})["tensors"].size(), 1u);
}

TEST_F(CtlFile, ASaveThatFailsLeavesTheOldFile) {
  Ok({"tensor", "load", path_, "--rule", "*=[M, N]"});
  const std::string out = world_.Path("out.safetensors");
  WriteFile(out, "old");
  ExpectError({"tensor", "save", out, "l.up.bias", "none"}, 4, "\"none\"");
  ExpectError({"tensor", "save", out, "l.up.bias", "l.up.bias"}, 2, "is given twice");
  ExpectError({"tensor", "save", out, "l.up.bias", "--metadata", "pt"}, 2, "is not KEY=VALUE");
  ExpectError({"tensor", "save", world_.Path("two.npy"), "l.up.bias", "l.up.weight"}, 2,
              "has one tensor");
  ExpectError({"tensor", "save", "-", "l.up.bias"}, 2, "\"-\" ends neither in");
  EXPECT_EQ(ReadFile(out), "old");
  EXPECT_FALSE(std::filesystem::exists(world_.Path("two.npy")));
}

}  // namespace
}  // namespace agmm
