// While a node is missing, tensors on the others are read, multiplied and deleted as before.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int kUnavailable = 3;

class PartialWorld : public ::testing::Test {
 protected:
  // Runs agmmctl with a daemon of a node that stays.
  Ran Ctl(int node, const std::vector<std::string>& arguments) {
    return world_.Ctl(node, arguments);
  }
  void Succeeds(int node, const std::vector<std::string>& arguments) {
    const Ran ran = Ctl(node, arguments);
    ASSERT_EQ(ran.exit_code, 0) << ran.err;
  }
  void Holds(int node, const std::string& tensor, const TestMatrix& want) {
    ASSERT_NO_FATAL_FAILURE(Succeeds(node, {"tensor", "get", tensor, world_.Path("got.npy")}));
    EXPECT_TRUE(SameBits(ReadNpy(world_.Path("got.npy")), want)) << tensor;
  }
  World world_{{.nodes = 3}};
};

TEST_F(PartialWorld, TensorsOnTheOtherNodesKeepTheirBitsThroughLossesAndReturns) {
  ASSERT_NO_FATAL_FAILURE(world_.StartAll());
  const TestMatrix a = SmallIntegers(96, 40, 1), b = SmallIntegers(40, 72, 2);
  WriteNpy(world_.Path("A.npy"), a);
  WriteNpy(world_.Path("B.npy"), b);
  const auto put = [&](const std::string& name, const std::string& ranks) {
    Succeeds(0, {"tensor", "put", absl::StrCat("A", name), world_.Path("A.npy"), "--sharding",
                 "[M_x, K]", "--ranks", ranks});
    Succeeds(0, {"tensor", "put", absl::StrCat("B", name), world_.Path("B.npy"), "--sharding",
                 "[K, N_x]", "--ranks", ranks});
  };
  const auto submit = [](const std::string& name, const std::string& c) {
    return std::vector<std::string>{"job", "submit", "--bind",
                                    absl::StrCat("A=A", name, ",B=B", name, ",C=", c), "--wait"};
  };
  ASSERT_NO_FATAL_FAILURE(put("01", "0,1"));
  ASSERT_NO_FATAL_FAILURE(put("02", "0,2"));
  for (const int lost : {2, 1, 2}) {
    const int left = 3 - lost;  // beside node 0
    const std::string on_left = absl::StrCat("0", left), on_lost = absl::StrCat("0", lost);
    const std::string c = absl::StrCat("C", on_left);
    world_.Kill(lost);
    for (const int node : {0, left}) {
      ASSERT_TRUE(
          world_.WaitFor(node, "the others to go on", [&](const v1::GetStatusResponse& status) {
            return status.reason().find(absl::StrCat("ranks 0", left == 1 ? "-" : ",", left,
                                                     " can be used meanwhile")) !=
                   std::string::npos;
          }));
      Holds(node, absl::StrCat("A", on_left), a);
    }
    ASSERT_NO_FATAL_FAILURE(Succeeds(left, submit(on_left, c)));
    Holds(left, c, MatrixProduct(a, b));
    const Ran missing =
        Ctl(0, {"tensor", "fill", "T", "--shape", "8x8", "--ranks", absl::StrCat("0,", lost)});
    EXPECT_EQ(missing.exit_code, kUnavailable);
    EXPECT_THAT(missing.err, HasSubstr(absl::StrCat("waiting for node n", lost)));
    EXPECT_THAT(Ctl(0, {"tensor", "get", absl::StrCat("A", on_lost), world_.Path("no.npy")}).err,
                HasSubstr("is lost: node n"));
    Succeeds(left, {"tensor", "rm", absl::StrCat("B", on_left)});
    world_.Start(lost);
    ASSERT_TRUE(world_.WaitReady(0));
    Holds(lost, absl::StrCat("A", on_left), a);
    Holds(lost, c, MatrixProduct(a, b));
    Succeeds(0, {"tensor", "rm", c});
    ASSERT_NO_FATAL_FAILURE(put(on_left, absl::StrCat("0,", left)));
    ASSERT_NO_FATAL_FAILURE(put(on_lost, absl::StrCat("0,", lost)));
  }
  Succeeds(1, submit("02", "C"));
  Holds(1, "C", MatrixProduct(a, b));
}

}  // namespace
}  // namespace agmm
