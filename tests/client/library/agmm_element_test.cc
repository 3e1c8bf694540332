// Typed elements, and transfers of spans of them.
#include <bit>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/base/dtype_traits.h"
#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr float kInfinity = std::numeric_limits<float>::infinity();

template <typename T>
std::vector<T> Elements(const std::vector<float>& values) {
  return std::vector<T>(values.begin(), values.end());
}

template <typename T>
std::vector<uint32_t> BitsOfAll(const std::vector<T>& values) {
  std::vector<uint32_t> bits;
  for (const T value : values) {
    if constexpr (std::is_same_v<T, float>)
      bits.push_back(std::bit_cast<uint32_t>(value));
    else
      bits.push_back(value.bits);
  }
  return bits;
}

TEST(LibraryElement, RoundsToNearestEven) {
  // 1 + 2^-8 lies between two neighbours and goes to the even one; 1 + 3 * 2^-8, too.
  EXPECT_EQ(BFloat16(1.f + 1.f / 256), 1.f);
  EXPECT_EQ(BFloat16(1.f + 3.f / 256), 1.f + 4.f / 256);
  EXPECT_EQ(Float16(1.f + 1.f / 2048), 1.f);
  EXPECT_EQ(Float16(1.f + 3.f / 2048), 1.f + 4.f / 2048);
  EXPECT_EQ(BFloat16(1.f).bits, 0x3f80);
  EXPECT_EQ(Float16(1.f).bits, 0x3c00);
}

TEST(LibraryElement, KeepsSignsInfinitiesAndNans) {
  EXPECT_EQ(BFloat16(-0.f).bits, 0x8000);
  EXPECT_EQ(Float16(-0.f).bits, 0x8000);
  EXPECT_EQ(BFloat16(-kInfinity), -kInfinity);
  EXPECT_EQ(Float16(-kInfinity), -kInfinity);
  EXPECT_EQ(BFloat16(std::numeric_limits<float>::max()), kInfinity);
  EXPECT_EQ(Float16(65520.f), kInfinity);
  EXPECT_TRUE(std::isnan(BFloat16(std::nanf(""))));
  EXPECT_TRUE(std::isnan(Float16(std::nanf(""))));
}

TEST(LibraryElement, EveryValueSurvivesTheWayThroughFloat) {
  for (uint32_t bits = 0; bits <= 0xffff; ++bits) {
    BFloat16 wide;
    Float16 half;
    wide.bits = half.bits = static_cast<uint16_t>(bits);
    // A NaN becomes quiet.
    const bool wide_is_nan = (bits & 0x7fff) > 0x7f80, half_is_nan = (bits & 0x7fff) > 0x7c00;
    ASSERT_EQ(std::isnan(wide), wide_is_nan);
    ASSERT_EQ(std::isnan(half), half_is_nan);
    ASSERT_EQ(BFloat16(float(wide)).bits, wide_is_nan ? bits | 0x40 : bits);
    ASSERT_EQ(Float16(float(half)).bits, half_is_nan ? bits | 0x200 : bits);
#ifdef __FLT16_MANT_DIG__
    ASSERT_TRUE(half_is_nan || static_cast<float>(std::bit_cast<_Float16>(half.bits)) == half);
#endif
  }
}

template <typename T>
class LibrarySpan : public LibraryTest {};
using Types = ::testing::Types<float, BFloat16, Float16>;
TYPED_TEST_SUITE(LibrarySpan, Types);

TYPED_TEST(LibrarySpan, APutAndAGetKeepTheBits) {
  const std::unique_ptr<Client> client = this->Connect();
  std::vector<float> values = this->Integers(this->kM * this->kK, 1);
  values[0] = -0.f;
  values[1] = kInfinity;
  values[2] = std::nanf("");
  values[3] = 1e-39f;  // below the normal numbers of all types
  values[4] = 6e-8f;
  const std::vector<TypeParam> elements = Elements<TypeParam>(values);
  const auto put = client->Put<TypeParam>("A", this->kM, this->kK, elements, "[M_x, K]");
  ASSERT_TRUE(put.ok()) << put.status().ToString();
  EXPECT_EQ(put->spec.type, kTypeOf<TypeParam>);
  EXPECT_EQ(put->spec.mesh, "x=2");
  std::vector<TypeParam> back(elements.size());
  const auto got = client->Get<TypeParam>("A", back);
  ASSERT_TRUE(got.ok()) << got.status().ToString();
  EXPECT_EQ(got->version, put->version);
  EXPECT_EQ(BitsOfAll(back), BitsOfAll(elements));
  const auto vector = client->Get<TypeParam>("A");
  ASSERT_TRUE(vector.ok()) << vector.status().ToString();
  EXPECT_EQ(BitsOfAll(*vector), BitsOfAll(elements));
}

class LibraryTyped : public LibraryJobTest {
 protected:
  static void ExpectRefused(const Status& status, const std::string& words) {
    EXPECT_EQ(status.code(), StatusCode::kInvalidArgument) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr(words));
  }
};

TEST_F(LibraryTyped, AnotherSizeIsRefused) {
  std::vector<float> values(kM * kK - 1);
  const std::string words =
      "5996 bytes are given for a tensor of 50 x 30 elements of 4 bytes; give 6000 bytes";
  ExpectRefused(client_->Put<float>("A", kM, kK, values, "[M_x, K]").status(), words);
  ExpectRefused(client_->Get<float>("A", values).status(), words);
  ExpectRefused(client_->Get<float>("A", std::span<float>()).status(), "0 bytes are given");
  ExpectRefused(client_->Put<float>("A", kM, kK, {}, "[M_x, K]").status(), "0 bytes are given");
  ExpectRefused(client_->Put<float>("A", -1, kK, {}, "[M_x, K]").status(), "-1");
}

TEST_F(LibraryTyped, AnotherTypeIsRefused) {
  const auto halves = Elements<Float16>(Integers(kM * kK, 1));
  ASSERT_TRUE(client_->Put<Float16>("H", kM, kK, halves, "[M_x, K]").ok());
  const std::string words = "\"H\" has elements of type f16, and bf16 was requested; get it as f16";
  std::vector<BFloat16> same_size(halves.size());
  ExpectRefused(client_->Get<BFloat16>("H", same_size).status(), words);
  ExpectRefused(client_->Get<BFloat16>("H").status(), words);
  std::vector<float> wide(halves.size() / 2);
  ExpectRefused(client_->Get<float>("H", wide).status(), "f16, and f32 was requested");
}

TEST_F(LibraryTyped, ErrorsAndOptionsAreThoseOfTheOtherCalls) {
  EXPECT_EQ(client_->Get<float>("none").status().code(), StatusCode::kNotFound);
  std::stop_source stop;
  stop.request_stop();
  EXPECT_EQ(client_->Get<float>("A", {.stop = stop.get_token()}).status().code(),
            StatusCode::kCancelled);
  const std::vector<float> a = Integers(kM * kK, 1);
  int64_t moved = 0;
  const TransferOptions options = {.progress = [&](int64_t now, int64_t) { moved = now; }};
  EXPECT_TRUE(client_->Put<float>("A", kM, kK, a, "[M_x, K]", options).ok());
  EXPECT_EQ(moved, BytesIn(a));
}

}  // namespace
}  // namespace agmm
