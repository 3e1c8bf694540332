// The rules of cuTensorMapEncodeTiled.
#include "tests/model/ptx/bulk/tensor_map.h"

#include <gtest/gtest.h>

#include <functional>

namespace ptx {
namespace {

// 2 dimensions of bf16: 200 x 100 elements with a pitch of 416 bytes, boxes of 64 x 8 with a
// swizzle of 128 bytes.
TensorMap GoodMap() {
  TensorMap map{.type = 9, .rank = 2, .swizzle = 3, .element_bytes = 2, .address = 0x1000};
  map.dims[0] = 200;
  map.dims[1] = 100;
  map.strides[0] = 416;
  map.box[0] = 64;
  map.box[1] = 8;
  map.element_strides[0] = map.element_strides[1] = 1;
  return map;
}

std::string CheckAfter(const std::function<void(TensorMap&)>& change) {
  TensorMap map = GoodMap();
  change(map);
  return CheckTensorMap(map);
}

TEST(TensorMap, AMapThatFollowsTheRulesIsAccepted) {
  EXPECT_EQ(CheckTensorMap(GoodMap()), "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) {
              map.dims[0] = map.dims[1] = uint64_t{1} << 32;
              map.strides[0] = (uint64_t{1} << 40) - 16;
            }),
            "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.swizzle = 0, map.box[0] = map.box[1] = 256; }), "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.fill = 1; }), "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.l2_promotion = 3; }), "");
}

TEST(TensorMap, TheAddressIsAMultipleOf16) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.address = 0x1010; }), "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.address = 0x1008; }),
            "the global address is 4104; a multiple of 16 is needed");
}

TEST(TensorMap, DimensionsAndRankHaveBounds) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.dims[1] = 0; }),
            "dimension 1 is 0; 1 to 2^32 are possible");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.dims[0] = (uint64_t{1} << 32) + 1; }),
            "dimension 0 is 4294967297; 1 to 2^32 are possible");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.rank = 0; }), "the rank is 0; 1 to 5 are possible");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.rank = 6; }), "the rank is 6; 1 to 5 are possible");
  // Values behind the rank have no effect.
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.rank = 1, map.dims[1] = 0, map.strides[0] = 1; }),
            "");
}

TEST(TensorMap, StridesAreMultiplesOf16Below2To40) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.strides[0] = 408; }),
            "the stride in bytes of dimension 1 is 408; a multiple of 16 is needed");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.strides[0] = uint64_t{1} << 40; }),
            "the stride in bytes of dimension 1 is 1099511627776; less than 2^40 is needed");
}

TEST(TensorMap, BoxesHaveBounds) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.box[1] = 257; }),
            "box dimension 1 is 257; 1 to 256 are possible");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.box[1] = 0; }),
            "box dimension 1 is 0; 1 to 256 are possible");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.swizzle = 0, map.box[0] = 60; }),
            "the bytes of a box line is 120; a multiple of 16 is needed");
}

TEST(TensorMap, ABoxLineFitsIntoTheSwizzle) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.box[0] = 72; }),
            "the bytes of a box line is 144; the swizzle allows 128 at most");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.swizzle = 2; }),
            "the bytes of a box line is 128; the swizzle allows 64 at most");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.swizzle = 1, map.box[0] = 16; }), "");
}

TEST(TensorMap, OnlyFloatsAreFilledWithNan) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.fill = 1, map.type = 1; }),
            "only floats can be filled with NaN, not UINT16");
}

TEST(TensorMap, AnInterleaveNeedsThreeDimensions) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.interleave = 1; }),
            "the rank is 2; 3 or more are needed with an interleave");
}

TEST(TensorMap, AnInterleaveOf32BytesNeedsItsAlignmentAndSwizzle) {
  const auto check = [](uint8_t swizzle, uint64_t address, uint64_t stride) {
    TensorMap map = GoodMap();
    map.interleave = 2;
    map.rank = 3;
    map.dims[2] = map.box[2] = map.element_strides[2] = 1;
    map.strides[0] = map.strides[1] = stride;
    map.swizzle = swizzle;
    map.address = address;
    return CheckTensorMap(map);
  };
  EXPECT_EQ(check(3, 0x1000, 416),
            "the swizzle is 3; an interleave of 32 bytes needs 1 (32 bytes)");
  EXPECT_EQ(check(1, 0x1010, 416), "the global address is 4112; a multiple of 32 is needed");
  EXPECT_EQ(check(1, 0x1000, 400),
            "the stride in bytes of dimension 1 is 400; a multiple of 32 is needed");
  EXPECT_EQ(check(1, 0x1000, 416), "an interleaved layout is not in the model");
}

TEST(TensorMap, FormsOutsideOfTheModelAreNamed) {
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.element_strides[1] = 2; }),
            "element stride 1 is 2; one other than 1 is not in the model");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.element_strides[0] = 2; }), "");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.element_strides[0] = 9; }),
            "element stride 0 is 9; 1 to 8 are possible");
  EXPECT_EQ(
      CheckAfter([](TensorMap& map) { map.type = 11, map.element_bytes = 4, map.box[0] = 32; }),
      "the data type TFLOAT32 is not in the model");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.type = 13; }),
            "the data type 16U4_ALIGN8B is not in the model");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.swizzle = 4; }),
            "a swizzle of chunks of more than 16 bytes is not in the model");
  EXPECT_EQ(CheckAfter([](TensorMap& map) { map.box[0] = 32; }),
            "a box line of 64 bytes with a swizzle of 128 is not in the model");
}

TEST(TensorMap, ElementsHaveTheSizesOfCuda) {
  const int expected[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4, 0, 0, 0};
  for (int type = 0; type < 16; ++type) EXPECT_EQ(TensorElementBytes(type), expected[type]);
  EXPECT_EQ(TensorElementBytes(-1), 0);
}

TEST(TensorMap, SwizzlesActOnTheAddress) {
  EXPECT_EQ(Swizzle(0x480, 0), 0x480u);
  EXPECT_EQ(Swizzle(0x480, 1), 0x490u);  // bit 4 ^= bit 7
  EXPECT_EQ(Swizzle(0x580, 2), 0x5b0u);  // bits 4 and 5 ^= bits 7 and 8
  EXPECT_EQ(Swizzle(0x780, 3), 0x7f0u);  // bits 4 to 6 ^= bits 7 to 9
}

}  // namespace
}  // namespace ptx
