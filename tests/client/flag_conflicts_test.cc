#include "client/ctl/flag_conflicts.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_split.h"
#include "client/ctl/verbs.h"
#include "gmock/gmock.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

TEST(FlagConflicts, APairIsRefusedOnlyIfBothAreGiven) {
  for (const char* text : {"", "--mode", "--flag", "--other --mode", "--mode --flag"}) {
    CLI::App app;
    bool mode = false, flag = false, other = false;
    const CLI::Option* of_mode = app.add_flag("--mode", mode);
    const CLI::Option* of_flag = app.add_flag("--flag", flag);
    app.add_flag("--other", other);
    app.parse(text);
    FlagConflicts conflicts;
    conflicts.Add(of_mode, {of_flag});
    EXPECT_EQ(conflicts.Check(), mode && flag ? absl::InvalidArgumentError(
                                                    "--flag has no effect beside --mode; leave out "
                                                    "one of them")
                                              : absl::OkStatus())
        << text;
    FlagConflicts all;
    all.AddAllBut({of_flag}, of_mode, &app);
    EXPECT_EQ(all.Check().ok(), !(mode && other)) << text;
  }
}

// Runs agmmctl with these words as arguments, where no daemon answers.
absl::Status RunWords(const std::string& text) {
  CLI::App app("", "agmmctl");
  Command command;
  command.options.endpoint = "unix:/nonexistent/agmm.sock";
  for (const auto add : {AddBench, AddMatmul, AddPlan, AddSimulate, AddTensor, AddTune})
    add(&app, &command);
  std::vector<std::string> words = absl::StrSplit(text, ' ');
  std::reverse(words.begin(), words.end());  // parse takes them from the end
  app.parse(words);
  const absl::Status conflict = command.conflicts.Check();
  return conflict.ok() ? command.run() : conflict;
}

TEST(FlagConflicts, AFlagWithoutEffectIsRefused) {
  const std::string product = " --shape M=64,N=64,K=64 --mesh x=4";
  for (const auto& [text, error] : std::vector<std::pair<std::string, std::string>>{
           {"tune --list --budget 5s", "--budget has no effect beside --list"},
           {"tune --list --rounds 3", "--rounds has no effect beside --list"},
           {"tune --list --mesh x=2", "--mesh has no effect beside --list"},
           {"tune --list --suite", "--suite has no effect beside --list"},
           {"tune --list M=8,N=8,K=8", "SPEC has no effect beside --list"},
           {"simulate --seeds --mesh x=4", "--mesh has no effect beside --seeds"},
           {"simulate --seeds --preset h800", "--preset has no effect beside --seeds"},
           {"simulate --algorithm ring --tuning none" + product,
            "--tuning has no effect beside --algorithm ring"},
           {"simulate --preset tpu-v5e --nodes 2" + product, "leave out --nodes"},
           {"plan --preset tpu-v5e --devices-per-node 2" + product, "leave out --nodes"},
           {"plan --mesh x=4 --shape M=64,K=64 --split M=x --spec A[M_x,K]->B[M,K]",
            "a split needs a product"},
           {"bench --quick --rounds 5", "--quick has no effect beside --rounds"},
           {"tensor fill A --shape 8x8 --kind constant --value 1 --seed 3",
            "--seed has no effect beside --kind constant"},
           {"tensor load m.npy --list --mesh x=2", "--mesh has no effect beside --list"},
           {"tensor load m.npy --list --ranks 0", "--ranks has no effect beside --list"},
           {"tensor load m.npy --list --strict", "--strict has no effect beside --list"},
           {"matmul a b --out c --compare --repeat 1", "at least --repeat 2"}}) {
    const absl::Status status = RunWords(text);
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << text;
    EXPECT_THAT(std::string(status.message()), HasSubstr(error)) << text;
  }
}

TEST(FlagConflicts, AListOfPlansCanBeSaved) {
  EXPECT_EQ(RunWords("tune --list --save plans.textproto").code(), Code::kUnavailable);
}

}  // namespace
}  // namespace agmm
