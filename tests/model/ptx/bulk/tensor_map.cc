#include "tests/model/ptx/bulk/tensor_map.h"

namespace ptx {
namespace {

constexpr int kTypes = 16;  // of CUtensorMapDataType
constexpr int kFirstPacked = 13;
constexpr const char* kTypeNames[kTypes] = {
    "UINT8",        "UINT16",       "UINT32",        "INT32",        "UINT64",      "INT64",
    "FLOAT16",      "FLOAT32",      "FLOAT64",       "BFLOAT16",     "FLOAT32_FTZ", "TFLOAT32",
    "TFLOAT32_FTZ", "16U4_ALIGN8B", "16U4_ALIGN16B", "16U6_ALIGN16B"};

bool IsFloatType(int type) { return type >= 6 && type < kFirstPacked; }

// The rule in words: "box dimension 1 is 300; 1 to 256 are possible".
std::string Rule(const std::string& what, uint64_t value, const std::string& bound) {
  return what + " is " + std::to_string(value) + "; " + bound;
}
std::string Of(const char* what, int dimension) {
  return std::string(what) + " " + std::to_string(dimension);
}

// The values of the enumerations, and the rank.
std::string CheckKinds(const TensorMap& map) {
  if (map.type >= kTypes) return Rule("the data type", map.type, "0 to 15 are possible");
  if (map.rank < 1 || map.rank > 5) return Rule("the rank", map.rank, "1 to 5 are possible");
  if (map.interleave > 2) return Rule("the interleave", map.interleave, "0 to 2 are possible");
  if (map.interleave != 0 && map.rank < 3) {
    return Rule("the rank", map.rank, "3 or more are needed with an interleave");
  }
  if (map.swizzle > 6) return Rule("the swizzle", map.swizzle, "0 to 6 are possible");
  if (map.interleave == 2 && map.swizzle != 1) {
    return Rule("the swizzle", map.swizzle, "an interleave of 32 bytes needs 1 (32 bytes)");
  }
  if (map.l2_promotion > 3) {
    return Rule("the L2 promotion", map.l2_promotion, "0 to 3 are possible");
  }
  if (map.fill > 1) return Rule("the fill", map.fill, "0 and 1 are possible");
  if (map.fill == 1 && !IsFloatType(map.type)) {
    return std::string("only floats can be filled with NaN, not ") + kTypeNames[map.type];
  }
  return "";
}

std::string CheckTensor(const TensorMap& map) {
  const bool packed_in_16_bytes = map.type > kFirstPacked;
  const uint64_t base = map.interleave == 2 || packed_in_16_bytes ? 32 : 16;
  const std::string multiple = "a multiple of " + std::to_string(base) + " is needed";
  if (map.address % base) return Rule("the global address", map.address, multiple);
  for (int i = 0; i < map.rank; ++i) {
    if (map.dims[i] < 1 || map.dims[i] > uint64_t{1} << 32) {
      return Rule(Of("dimension", i), map.dims[i], "1 to 2^32 are possible");
    }
  }
  for (int i = 0; i + 1 < map.rank; ++i) {
    const std::string name = Of("the stride in bytes of dimension", i + 1);
    if (map.strides[i] % base) return Rule(name, map.strides[i], multiple);
    if (map.strides[i] >= uint64_t{1} << 40) {
      return Rule(name, map.strides[i], "less than 2^40 is needed");
    }
  }
  return "";
}

std::string CheckBox(const TensorMap& map) {
  for (int i = 0; i < map.rank; ++i) {
    if (map.box[i] < 1 || map.box[i] > 256) {
      return Rule(Of("box dimension", i), map.box[i], "1 to 256 are possible");
    }
    if (map.element_strides[i] < 1 || map.element_strides[i] > 8) {
      return Rule(Of("element stride", i), map.element_strides[i], "1 to 8 are possible");
    }
  }
  if (map.interleave != 0 || map.type >= kFirstPacked) return "";
  const uint64_t line = uint64_t{map.box[0]} * TensorElementBytes(map.type);
  if (line % 16) return Rule("the bytes of a box line", line, "a multiple of 16 is needed");
  const uint64_t span = map.swizzle == 0   ? line
                        : map.swizzle == 1 ? 32
                        : map.swizzle == 2 ? 64
                                           : 128;
  if (line > span) {
    return Rule("the bytes of a box line", line,
                "the swizzle allows " + std::to_string(span) + " at most");
  }
  return "";
}

// Forms that cuTensorMapEncodeTiled accepts, and the model does not execute.
std::string CheckModelled(const TensorMap& map) {
  const std::string unknown = " is not in the model";
  // TMA changes the values of these floats on the way, and no document says how.
  if (map.type >= 10) return std::string("the data type ") + kTypeNames[map.type] + unknown;
  if (map.interleave != 0) return "an interleaved layout" + unknown;
  if (map.swizzle > 3) return "a swizzle of chunks of more than 16 bytes" + unknown;
  // The first one has no effect without an interleave.
  for (int i = 1; i < map.rank; ++i) {
    if (map.element_strides[i] != 1) {
      return Of("element stride", i) + " is " + std::to_string(map.element_strides[i]) +
             "; one other than 1" + unknown;
    }
  }
  const uint32_t line = map.box[0] * TensorElementBytes(map.type);
  const uint32_t span = map.swizzle == 0 ? line : 16u << map.swizzle;
  if (line != span) {
    return "a box line of " + std::to_string(line) + " bytes with a swizzle of " +
           std::to_string(span) + unknown;
  }
  return "";
}

}  // namespace

std::string CheckTensorMap(const TensorMap& map) {
  for (const auto check : {CheckKinds, CheckTensor, CheckBox, CheckModelled}) {
    const std::string broken = check(map);
    if (!broken.empty()) return broken;
  }
  if (map.element_bytes != TensorElementBytes(map.type)) {
    return Rule("element_bytes", map.element_bytes, "the data type has another size");
  }
  return "";
}

int TensorElementBytes(int type) {
  constexpr int kBytes[] = {1, 2, 4, 4, 8, 8, 2, 4, 8, 2, 4, 4, 4};
  return type >= 0 && type < kFirstPacked ? kBytes[type] : 0;
}

}  // namespace ptx
