// kernels/base: conversions, sizes, cancellation, failpoints.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/cancel.h"
#include "kernels/base/dtype.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/hash.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/host_port.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

TEST(DType, EveryHalfSurvivesARoundTripThroughF32) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    if (!std::isnan(BF16ToF32(half)))
      EXPECT_EQ(F32ToBF16(BF16ToF32(half)), half);
    else
      EXPECT_TRUE(std::isnan(BF16ToF32(F32ToBF16(BF16ToF32(half)))));
    if (!std::isnan(F16ToF32(half)))
      EXPECT_EQ(F32ToF16(F16ToF32(half)), half);
    else
      EXPECT_TRUE(std::isnan(F16ToF32(F32ToF16(F16ToF32(half)))));
  }
}

TEST(Cores, OfAQuotaAreRoundedDownToAtLeastOne) {
  EXPECT_EQ(CoresOfQuota("200000 100000"), 2);
  EXPECT_EQ(CoresOfQuota("250000 100000\n"), 2);
  EXPECT_EQ(CoresOfQuota("50000 100000"), 1);
  for (const char* none :
       {"max 100000", "", "200000", "0 100000", "-1 100000", "200000 0", "x y", "1 2 3"})
    EXPECT_EQ(CoresOfQuota(none), 0) << none;
}

TEST(Cores, AreLimitedByTheSmallestQuotaOfTheEnclosingGroups) {
  const TempFolder root("cgroups");
  const auto limit = [&](const std::string& group, const std::string& cpu_max) {
    std::filesystem::create_directories(root / group);
    std::ofstream(root / (group + "/cpu.max")) << cpu_max << "\n";
  };
  limit(".", "max 100000");
  EXPECT_EQ(CoresOfGroup(root.path(), "/a/b"), 0);
  limit("a", "300000 100000");
  limit("a/b", "800000 100000");
  EXPECT_EQ(CoresOfGroup(root.path(), "/a/b"), 3);
  EXPECT_EQ(CoresOfGroup(root.path(), "/"), 0);
  EXPECT_EQ(CoresOfGroup(root.path(), "/no/such"), 0);
  limit(".", "200000 100000");
  EXPECT_EQ(CoresOfGroup(root.path(), "/a/b"), 2);
  EXPECT_EQ(CoresOfGroup(root.path(), ""), 2);
}

TEST(DType, TiesRoundToEven) {
  EXPECT_EQ(F32ToBF16(1.0f + 1.0f / 256), F32ToBF16(1.0f));               // half way, even below
  EXPECT_EQ(F32ToBF16(1.0f + 3.0f / 256), F32ToBF16(1.0f + 4.0f / 256));  // half way, even above
  EXPECT_EQ(F32ToF16(1.0f + 1.0f / 2048), F32ToF16(1.0f));
  EXPECT_EQ(F32ToF16(1.0f + 3.0f / 2048), F32ToF16(1.0f + 4.0f / 2048));
}

TEST(DType, NaNsBecomeQuietAndTheEdgesOfTheRangeRound) {
  EXPECT_EQ(F32ToBF16(FloatOf(0x7f800001)), 0x7fc0);  // signalling
  EXPECT_EQ(F32ToBF16(FloatOf(0xff800001)), 0xffc0);
  EXPECT_EQ(F32ToBF16(FloatOf(0x7fffffff)), 0x7fff);
  EXPECT_EQ(F32ToBF16(FloatOf(0x7f7fffff)), 0x7f80);
  EXPECT_EQ(F32ToF16(FloatOf(0x7f800001)), 0x7e00);
  EXPECT_EQ(F32ToF16(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(F32ToF16(65520.0f), 0x7c00);
  EXPECT_EQ(F32ToF16(0x1p-25f), 0);
  EXPECT_EQ(F32ToF16(std::nextafter(0x1p-25f, 1.0f)), 1);
}

TEST(DType, TooLargeBecomesInfinity) {
  EXPECT_TRUE(std::isinf(F16ToF32(F32ToF16(70000.0f))));
  EXPECT_TRUE(std::isinf(BF16ToF32(F32ToBF16(std::numeric_limits<float>::max()))));
  EXPECT_EQ(F16ToF32(F32ToF16(65504.0f)), 65504.0f);
}

TEST(DType, BulkConversionsEqualThoseOfSingleElements) {
  // Every half, and the floats at and around the points half way between two.
  std::vector<uint16_t> halves;
  std::vector<float> floats;
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    halves.push_back(static_cast<uint16_t>(bits));
    const float value = F16ToF32(halves.back());
    const float next = F16ToF32(static_cast<uint16_t>(bits + 1));
    const float middle = value / 2 + next / 2;
    floats.insert(floats.end(),
                  {value, middle, std::nextafter(middle, value), std::nextafter(middle, next)});
  }
  for (DType dtype : {DType::kBF16, DType::kF16}) {
    std::vector<float> wide(halves.size());
    ConvertToF32(dtype, halves.data(), wide.data(), static_cast<int64_t>(halves.size()));
    for (size_t i = 0; i < halves.size(); ++i) {
      const float one = dtype == DType::kF16 ? F16ToF32(halves[i]) : BF16ToF32(halves[i]);
      ASSERT_TRUE(wide[i] == one || (std::isnan(wide[i]) && std::isnan(one))) << halves[i];
    }
    std::vector<uint16_t> narrow(floats.size());
    ConvertFromF32(dtype, floats.data(), narrow.data(), static_cast<int64_t>(floats.size()));
    for (size_t i = 0; i < floats.size(); ++i) {
      if (std::isnan(floats[i])) continue;
      ASSERT_EQ(narrow[i], dtype == DType::kF16 ? F32ToF16(floats[i]) : F32ToBF16(floats[i]))
          << floats[i];
    }
  }
}

// An empty vector has a null pointer, which memcpy does not allow; the address sanitizer reports
// it.
TEST(DType, AnEmptyRangeMayHaveNullPointers) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    float one = 1;
    ConvertToF32(dtype, &one, /*to=*/nullptr, 0);
    ConvertFromF32(dtype, /*from=*/nullptr, &one, 0);
    EXPECT_EQ(one, 1);
  }
}

TEST(DType, UnknownNameListsTheKnownOnes) {
  EXPECT_EQ(*ParseDType("bf16"), DType::kBF16);
  EXPECT_THAT(std::string(ParseDType("int8").status().message()),
              testing::AllOf(testing::HasSubstr("int8"), testing::HasSubstr("f32, bf16 or f16")));
}

TEST(Units, SizesParseAndPrint) {
  EXPECT_EQ(*ParseBytes("4GiB"), int64_t{4} << 30);
  EXPECT_EQ(*ParseBytes("512MiB"), int64_t{512} << 20);
  EXPECT_EQ(*ParseBytes("17"), 17);
  EXPECT_EQ(FormatBytes(int64_t{3} << 29), "1.50 GiB");
  EXPECT_EQ(FormatBytes(17), "17 B");
}

TEST(Units, ACountOfOneIsSingular) {
  EXPECT_EQ(Counted(0, "node"), "0 nodes");
  EXPECT_EQ(Counted(1, "node"), "1 node");
  EXPECT_EQ(Counted(2, "node"), "2 nodes");
}

TEST(Units, InvalidSizesAreRefused) {
  for (const char* text : {"", "GiB", "-1MiB", "4GB", "1.5GiB", "9999999999GiB", "8388608TiB"})
    EXPECT_FALSE(ParseBytes(text).ok()) << text;
}

TEST(Status, AnnotateKeepsCodeAndPayload) {
  absl::Status status = absl::AbortedError("gone");
  status.SetPayload("url", absl::Cord("x"));
  const absl::Status annotated = Annotate(status, "rank 3");
  EXPECT_EQ(annotated.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(annotated.message(), "rank 3: gone");
  EXPECT_EQ(*annotated.GetPayload("url"), "x");
}

TEST(CancelToken, FirstReasonWinsAndEachCallbackRunsOnce) {
  CancelToken token;
  int early = 0, late = 0;
  token.OnCancel([&](const absl::Status& reason) {
    ++early;
    EXPECT_EQ(reason.message(), "first");
  });
  EXPECT_TRUE(token.status().ok());
  token.Cancel(absl::CancelledError("first"));
  token.Cancel(absl::CancelledError("second"));
  token.OnCancel([&](const absl::Status& reason) {
    ++late;
    EXPECT_EQ(reason.message(), "first");
  });
  EXPECT_EQ(early, 1);
  EXPECT_EQ(late, 1);
  EXPECT_EQ(token.status().message(), "first");
}

TEST(Failpoint, ArmedCountIsUsedUp) {
  EXPECT_FALSE(failpoint::Hit("base.test"));
  failpoint::Arm("base.test", 2);
  EXPECT_TRUE(failpoint::Hit("base.test"));
  EXPECT_TRUE(failpoint::Hit("base.test"));
  EXPECT_FALSE(failpoint::Hit("base.test"));
  failpoint::Arm("base.test");
  EXPECT_TRUE(failpoint::Hit("base.test"));
  failpoint::Disarm("base.test");
  EXPECT_FALSE(failpoint::Hit("base.test"));
}

TEST(Failpoint, NameIsEvaluatedOnlyWhileAFailpointIsArmed) {
  [[maybe_unused]] int evaluations = 0;
  [[maybe_unused]] const auto name = [&] { return ++evaluations, "base.other"; };
  EXPECT_FALSE(AGMM_FAILPOINT(name()));
  EXPECT_EQ(evaluations, 0);
#ifdef AGMM_FAILPOINTS
  failpoint::Arm("base.test");
  EXPECT_FALSE(AGMM_FAILPOINT(name()));
  EXPECT_EQ(evaluations, 1);
  failpoint::Disarm("base.test");
#endif
}

TEST(Hash, MatchesThePublishedVectors) {
  EXPECT_EQ(Fnv1a(""), 0xcbf29ce484222325ull);
  EXPECT_EQ(Fnv1a("a"), 0xaf63dc4c8601ec8cull);
  EXPECT_EQ(Fnv1a("foobar"), 0x85944171f73967e8ull);
}

TEST(HostPort, IsReadAndWrittenInOneForm) {
  for (const auto& [text, form] : {std::pair{"10.0.0.1:1", "10.0.0.1:1"},
                                   {"[FD00::0:1]:65535", "[fd00::1]:65535"},
                                   {"A.b-c_d.org:7101", "a.b-c_d.org:7101"},
                                   {"[fe80::1%eth0]:7101", "[fe80::1%eth0]:7101"}}) {
    const absl::StatusOr<HostPort> parsed = ParseHostPort(text, 1);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), form);
    EXPECT_EQ(ParseHostPort(form, 1)->ToString(), form);
  }
  EXPECT_EQ(*ParseHost("::1"), "::1");
  EXPECT_EQ(*ParseHost("[::1]"), "::1");
  EXPECT_EQ(WithIps("a:7101", {"10.0.0.1"}), "a:7101 (10.0.0.1)");
  EXPECT_EQ(WithIps("a:7101", {"10.0.0.1", "fd00::1"}), "a:7101 (10.0.0.1, fd00::1)");
  EXPECT_EQ(WithIps("a:7101", {}), "a:7101");
  EXPECT_EQ(WithIps("10.0.0.1:7101", {"10.0.0.1"}), "10.0.0.1:7101");
  EXPECT_EQ(WithIps("[fd00::1]:7101", {"fd00::1"}), "[fd00::1]:7101");
  EXPECT_EQ(Resolve("::1", 7101)->at(0).ToString(), "[::1]:7101");
}

}  // namespace
}  // namespace agmm
