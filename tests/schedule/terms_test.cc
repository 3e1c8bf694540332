#include "kernels/schedule/terms.h"

#include <gtest/gtest.h>

namespace agmm {
namespace {

TEST(Terms, AreEqualInAnyOrderOfAdding) {
  Terms up, down;
  for (int64_t i = 0; i < 4; ++i) {
    EXPECT_TRUE(up.Add(Terms({2 * i, 2 * i + 2})));
    EXPECT_TRUE(down.Add(Terms({6 - 2 * i, 8 - 2 * i})));
  }
  EXPECT_EQ(up, down);
  EXPECT_EQ(up, Terms({0, 8}));
}

TEST(Terms, AreUnchangedByTermsThatOverlapThem) {
  Terms terms({0, 4});
  ASSERT_TRUE(terms.Add(Terms({8, 12})));
  EXPECT_FALSE(terms.Add(Terms({3, 5})));
  EXPECT_FALSE(terms.Add(Terms({11, 20})));
  EXPECT_EQ(terms.ToString(), "0:4+8:12");
}

TEST(Terms, OfAnEmptyRangeAreNone) {
  EXPECT_TRUE(Terms({3, 3}).empty());
  EXPECT_EQ(Terms({3, 3}), Terms());
}

}  // namespace
}  // namespace agmm
