#include "client/ctl/arguments.h"

#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(Arguments, ATensorIsNamedOrNumbered) {
  EXPECT_EQ(ParseTensorRef("W")->ref.name(), "W");
  EXPECT_EQ(ParseTensorRef("#12")->ref.tensor_id(), 12);
  EXPECT_EQ(ParseTensorRef("#12")->sequencer, "");
  EXPECT_FALSE(ParseTensorRef("W")->ref.has_tensor_id());
  EXPECT_FALSE(ParseTensorRef("#12")->ref.has_name());
  EXPECT_EQ(ParseTensorRef("#12@3d3e")->ref.tensor_id(), 12);
  EXPECT_EQ(ParseTensorRef("#12@3d3e")->sequencer, "3d3e");
  for (const char* bad :
       {"", "#", "#0", "#-1", "#W", "#1 ", "#18446744073709551616", "#12@", "#@3d", "#1@\n"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseTensorRef(bad).status())) << bad;
}

TEST(Arguments, RanksAreListsOfRanges) {
  EXPECT_THAT(*ParseRanks("0-3"), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(*ParseRanks("0,2,4"), ElementsAre(0, 2, 4));
  EXPECT_THAT(*ParseRanks("4-5,1"), ElementsAre(4, 5, 1));
  for (const char* bad :
       {"", "a", "3-1", "0-", "-1", "0,,1", "0-1-2", "0,0", "1-2,2", "0-99999999"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseRanks(bad).status())) << bad;
  EXPECT_EQ(FormatRanks({0, 1, 2, 3}), "0-3");
  EXPECT_EQ(FormatRanks({0, 2, 4, 5}), "0,2,4-5");
  EXPECT_EQ(FormatRanks({}), "");
}

TEST(Arguments, DimensionsAreRowsAndColumns) {
  EXPECT_EQ(ParseDimensions("4096x512")->rows, 4096);
  EXPECT_EQ(ParseDimensions("4096x512")->cols, 512);
  for (const char* bad : {"", "4096", "0x1", "1x0", "-1x1", "1x2x3", "1 x 2", "999999999999x1"})
    EXPECT_TRUE(absl::IsInvalidArgument(ParseDimensions(bad).status())) << bad;
}

TEST(Arguments, AMeshCoversTheGivenRanksOrAllRanks) {
  const std::vector<int> kEight = {0, 1, 2, 3, 4, 5, 6, 7};
  EXPECT_EQ(MeshOfFlags("", "", {0, 1, 2, 3})->ToString(), "x=4");
  EXPECT_EQ(MeshOfFlags("", "4-5", kEight)->ToString(), "x=2");
  EXPECT_THAT(MeshOfFlags("", "4-5", kEight)->ranks, ElementsAre(4, 5));
  EXPECT_EQ(MeshOfFlags("dp=2,tp=2", "", kEight)->ToString(), "dp=2,tp=2");
  EXPECT_THAT(MeshOfFlags("dp=2,tp=2", "4-7", kEight)->ranks, ElementsAre(4, 5, 6, 7));
  EXPECT_THAT(MeshOfFlags("", "", {1, 3})->ranks, ElementsAre(1, 3));
  EXPECT_THAT(MeshOfFlags("x=2", "", {1, 3, 5})->ranks, ElementsAre(1, 3));
  EXPECT_THAT(MeshOfFlags("x=2", "", {})->ranks, ElementsAre(0, 1));
  EXPECT_THAT(MeshOfFlags("x=3", "", {1, 3})->ranks, ElementsAre(0, 1, 2));
  EXPECT_TRUE(absl::IsInvalidArgument(MeshOfFlags("x=3", "4-5", kEight).status()));
}

TEST(Arguments, BindingsComeInTheSpecsOrder) {
  const auto refs = ParseBindings("A[M_x,K] * B[K,N_x] -> C[M,N_x]", "C=Y, A=X,B=#3");
  ASSERT_TRUE(refs.ok()) << refs.status();
  EXPECT_EQ((*refs)[0].ref.name(), "X");
  EXPECT_EQ((*refs)[1].ref.tensor_id(), 3);
  EXPECT_EQ((*refs)[2].ref.name(), "Y");
  EXPECT_EQ(ParseBindings("X[I,J]*W[J,K]->Out[I,K]", "X=a,W=b,Out=c")->at(2).ref.name(), "c");
  const char* spec = "A[M_x,K] * B[K,N_x] -> C[M,N_x]";
  EXPECT_EQ(ParseBindings(spec, "A=layer=3,B=W,C=Y")->at(0).ref.name(), "layer=3");
  EXPECT_THAT(ParseBindings(spec, "A=X,B=W").status().message(), HasSubstr("add C=NAME"));
  EXPECT_THAT(ParseBindings(spec, "A=X,B=W,C=Y,D=Z").status().message(), HasSubstr("\"D=Z\""));
  EXPECT_THAT(ParseBindings(spec, "A=X,A=Y,B=W,C=Y").status().message(), HasSubstr("A twice"));
  EXPECT_THAT(ParseBindings(spec, "A,B=W,C=Y").status().message(), HasSubstr("\"A\""));
  EXPECT_THAT(ParseBindings("A[M,K]", "A=X").status().message(), HasSubstr("has 1 operand, but"));
}

TEST(Arguments, TimeoutsAreFromAboveZeroToADay) {
  EXPECT_EQ(*ParseTimeout("30s"), absl::Seconds(30));
  EXPECT_EQ(*ParseTimeout("1h30m"), absl::Minutes(90));
  for (const char* bad : {"", "30", "0s", "-1s", "25h", "inf", "soon"})
    EXPECT_THAT(ParseTimeout(bad).status().message(), HasSubstr("--timeout")) << bad;
}

class Verbs : public ::testing::Test {
 protected:
  Verbs() : app_("", "agmmctl") {
    app_.require_subcommand(1);
    app_.fallthrough();
    app_.add_subcommand("status", "");
    for (const char* name : {"tensor", "job"}) {
      CLI::App* group = app_.add_subcommand(name, "");
      group->require_subcommand(1);
      group->add_subcommand("list", "");
      group->add_subcommand("show", "");
    }
  }
  std::string MistakeIn(std::vector<std::string> words) {
    std::reverse(words.begin(), words.end());
    try {
      app_.parse(words);
    } catch (const CLI::ParseError&) {
      return MistakeOf(app_, "refused");
    }
    return "no mistake";
  }
  CLI::App app_;
};

TEST_F(Verbs, AWrongVerbIsNamedWithTheNearest) {
  EXPECT_EQ(MistakeIn({"stauts"}), "unknown command \"stauts\"; did you mean \"status\"?");
  EXPECT_EQ(MistakeIn({"list"}),
            "unknown command \"list\"; did you mean \"tensor list\" or \"job list\"?");
  EXPECT_EQ(MistakeIn({"tensor", "lst", "W"}),
            "unknown command \"lst\" of \"agmmctl tensor\"; did you mean \"list\"?");
  EXPECT_EQ(MistakeIn({"frobnicate"}),
            "unknown command \"frobnicate\"; use one of status, tensor, job");
}

TEST_F(Verbs, AMissingVerbIsReported) {
  EXPECT_EQ(MistakeIn({"job"}),
            "a command is missing after \"agmmctl job\"; use one of list, show");
  EXPECT_EQ(MistakeIn({}),
            "a command is missing after \"agmmctl\"; use one of status, tensor, job");
}

TEST_F(Verbs, OtherMistakesAreNotAboutVerbs) {
  EXPECT_EQ(MistakeIn({"tensor", "list", "W"}), "refused; see agmmctl tensor list --help");
  EXPECT_EQ(MistakeIn({"status"}), "no mistake");
}

TEST_F(Verbs, AWrongFlagIsNamedWithTheNearest) {
  app_.add_flag("--json");
  app_.get_subcommand("status")->add_option("--timeout", "")->required();
  EXPECT_EQ(MistakeIn({"status", "--timeuot=3s"}),
            "\"agmmctl status\" has no flag --timeuot; did you mean \"--timeout\"?");
  EXPECT_EQ(MistakeIn({"status", "--jsn"}),
            "\"agmmctl status\" has no flag --jsn; did you mean \"--json\"?");
  EXPECT_EQ(MistakeIn({"tensor", "list", "--js"}),
            "\"agmmctl tensor list\" has no flag --js; did you mean \"--json\"?");
  EXPECT_EQ(MistakeIn({"tensor", "list", "--colour"}),
            "\"agmmctl tensor list\" has no flag --colour; see agmmctl tensor list --help");
}

TEST(Bindings, ACollectiveHasTwo) {
  const auto refs = ParseBindings("A[M_x,K] -> B[M,K]", "B=Y,A=#7");
  ASSERT_TRUE(refs.ok()) << refs.status();
  ASSERT_EQ(refs->size(), 2u);
  EXPECT_EQ(refs->at(0).ref.tensor_id(), 7u);
  EXPECT_EQ(refs->at(1).ref.name(), "Y");
  const absl::Status more = ParseBindings("A[M_x,K] -> B[M,K]", "A=X,B=Y,C=Z").status();
  EXPECT_THAT(std::string(more.message()), testing::HasSubstr("write A=TENSOR,B=TENSOR"));
}

TEST(EditDistance, CountsSingleLetters) {
  EXPECT_EQ(EditDistance("", "abc"), 3);
  EXPECT_EQ(EditDistance("list", "lst"), 1);
  EXPECT_EQ(EditDistance("watch", "match"), 1);
  EXPECT_EQ(EditDistance("stauts", "status"), 2);
}

}  // namespace
}  // namespace agmm
