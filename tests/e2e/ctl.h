// agmmctl on a real world of two daemons, by default with two devices each.
#pragma once

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {

// Far more epochs than can run during a test.
inline constexpr char kForever[] = "1000000";

class Ctl : public ::testing::Test {
 protected:
  Ctl() : Ctl({.nodes = 2, .devices = 2}) {}
  explicit Ctl(WorldOptions options) : world_(std::move(options)) {}
  void SetUp() override { ASSERT_NO_FATAL_FAILURE(world_.StartAll()); }

  // Connects to the node that is not the sequencer. The output is piped, so only errors may be on
  // stderr.
  Ran Run(std::vector<std::string> arguments) { return world_.Ctl(1, std::move(arguments)); }
  std::string Ok(std::vector<std::string> arguments) {
    const Ran ran = Run(std::move(arguments));
    EXPECT_EQ(ran.exit_code, 0) << ran.err;
    EXPECT_EQ(ran.err, "");
    return ran.out;
  }
  nlohmann::json OkJson(std::vector<std::string> arguments) {
    arguments.push_back("--json");
    const std::string out = Ok(std::move(arguments));
    const nlohmann::json json = nlohmann::json::parse(out, nullptr, /*allow_exceptions=*/false);
    EXPECT_FALSE(json.is_discarded()) << out;
    return json;
  }
  // Runs `tune` until it stores a plan of each shape. On a busy host, runs may differ too much.
  std::string Stored(const std::vector<std::string>& tune) {
    for (int attempt = 0; attempt < 20; ++attempt) {
      const Ran ran = Run(tune);
      EXPECT_EQ(ran.exit_code, 0) << ran.err;
      if (!absl::StrContains(ran.out, "runs differ by")) return ran.out;
    }
    ADD_FAILURE() << "no plan is stored; the host is busy";
    return "";
  }
  void ExpectNothingIsLeft() {
    const nlohmann::json list = OkJson({"tensor", "list"});
    EXPECT_EQ(list["tensors"].size(), 0u) << list;
  }
  // Waits until a session that has ended has taken its tensors with it; fails the test if it lasts.
  void AwaitNoTensors() {
    const Deadline give_up = Deadline::After(kPatience);
    while (!OkJson({"tensor", "list"})["tensors"].empty()) {
      ASSERT_FALSE(give_up.HasPassed()) << "tensors of the session are left";
      absl::SleepFor(absl::Milliseconds(20));
    }
  }
  void ExpectError(std::vector<std::string> arguments, int code, const std::string& what) {
    const Ran ran = Run(std::move(arguments));
    EXPECT_EQ(ran.exit_code, code) << ran.err;
    EXPECT_THAT(ran.err, ::testing::StartsWith("agmmctl: "));
    EXPECT_THAT(ran.err, ::testing::HasSubstr(what));
    EXPECT_EQ(std::count(ran.err.begin(), ran.err.end(), '\n'), 1) << ran.err;
  }
  nlohmann::json Put(const std::string& name, const TestMatrix& matrix,
                     std::vector<std::string> flags) {
    const std::string path = world_.Path(name + ".npy");
    WriteNpy(path, matrix);
    std::vector<std::string> arguments = {"tensor", "put", name, path};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    return OkJson(arguments);
  }
  TestMatrix Get(const std::string& name) {
    const std::string path = world_.Path(absl::StrCat("got", ++files_, ".npy"));
    Ok({"tensor", "get", name, path});
    return ReadNpy(path);
  }
  // A = X and B = W of small integers, for the default spec; returns their product.
  TestMatrix PutOperands(int64_t m = 96, int64_t n = 64, int64_t k = 80) {
    const TestMatrix a = SmallIntegers(m, k, 1), b = SmallIntegers(k, n, 2);
    Put("X", a, {"--sharding", "[M_x, K]"});
    Put("W", b, {"--sharding", "[K, N_x]"});
    return MatrixProduct(a, b);
  }
  // Submits a job that runs until it is stopped; returns its id.
  std::string SubmitForever() {
    return absl::StrCat(OkJson({"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever})
                            .value("job_id", 0));
  }
  ::testing::AssertionResult Reaches(const std::string& job, const std::string& state) {
    std::string last;
    for (const Deadline give_up = Deadline::After(kPatience); !give_up.HasPassed();
         absl::SleepFor(absl::Milliseconds(20))) {
      last = OkJson({"job", "show", job}).value("state", "");
      if (last == state) return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "job " << job << " is " << last << ", not " << state;
  }
  static ::testing::AssertionResult Prints(Process* process, const std::string& what) {
    for (const Deadline give_up = Deadline::After(kPatience); !give_up.HasPassed();
         absl::SleepFor(absl::Milliseconds(20))) {
      if (absl::StrContains(process->out(), what)) return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure() << "no \"" << what << "\" in " << process->out();
  }

  World world_;
  int files_ = 0;
};

}  // namespace agmm
