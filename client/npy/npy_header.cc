#include "client/npy/npy_header.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr size_t kPrefixBytes = 12;  // the magic, the version and the widest length field
// The largest dimension: the bytes of a matrix of f32 fit in 63 bits.
constexpr uint64_t kMaxSize = uint64_t{1} << 31;
constexpr size_t kMaxDimensions = 32;  // as in NumPy

// The subset of Python literals that headers use, as JSON.
std::string ToJson(absl::string_view literal) {
  std::string json;
  for (const char c : literal) {
    if (c == ')' || c == ']' || c == '}') {
      // JSON has no comma behind the last element.
      absl::string_view elements = absl::StripTrailingAsciiWhitespace(json);
      if (absl::ConsumeSuffix(&elements, ",")) json.resize(elements.size());
    }
    json += c == '(' ? '[' : c == ')' ? ']' : c == '\'' ? '"' : c;
  }
  return absl::StrReplaceAll(json, {{"True", "true"}, {"False", "false"}});
}

bool IsShape(const nlohmann::json& shape) {
  return shape.is_array() && shape.size() <= kMaxDimensions &&
         std::all_of(shape.begin(), shape.end(), [](const nlohmann::json& size) {
           return size.is_number_unsigned() && size.get<uint64_t>() <= kMaxSize;
         });
}

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

absl::StatusOr<DType> ParseDescr(const std::string& descr) {
  if (descr == "<f4") return DType::kF32;
  if (descr == "<f2") return DType::kF16;
  if (descr.size() > 1 && descr[1] == 'O')
    return absl::InvalidArgumentError("it holds Python objects; save a matrix of float32");
  if (absl::StartsWith(descr, ">")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dtype '%s' is big endian; save it with .astype('<f4')", absl::CHexEscape(descr)));
  }
  if (descr == "<f8") {
    return absl::InvalidArgumentError(
        "dtype '<f8' is float64; save it as float32: numpy.save(path, a.astype(numpy.float32))");
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype '%s' is not supported; save it as float32 ('<f4') or float16 ('<f2')",
                      absl::CHexEscape(descr.substr(0, 32))));
}

// Parses the dict: 'descr', 'fortran_order' and 'shape', in any order, nothing else.
absl::StatusOr<NpyLayout> ParseDict(absl::string_view text) {
  const auto dict = nlohmann::json::parse(ToJson(text), nullptr, /*allow_exceptions=*/false);
  if (dict.is_object() && dict.contains("descr") && dict["descr"].is_array()) {
    return absl::InvalidArgumentError(
        "the dtype is structured; save one field of it, as a matrix of float32");
  }
  if (!dict.is_object() || dict.size() != 3 || !dict.contains("descr") ||
      !dict.contains("fortran_order") || !dict.contains("shape") || !dict["descr"].is_string() ||
      !dict["fortran_order"].is_boolean() || !IsShape(dict["shape"])) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header is garbage: expected a dict of descr, fortran_order and shape, "
                        "found \"%s\"; save it with numpy.save",
                        absl::CHexEscape(text.substr(0, 80))));
  }
  NpyLayout layout;
  AGMM_ASSIGN_OR_RETURN(layout.dtype, ParseDescr(dict["descr"]));
  const std::vector<int64_t> shape = dict["shape"];
  if (shape.size() != 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("shape %s has %s; a matrix has 2: save it with .reshape(rows, columns)",
                        ShapeText(shape), Counted(shape.size(), "dimension")));
  }
  layout.rows = shape[0];
  layout.cols = shape[1];
  if (layout.rows == 0 || layout.cols == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shape %s is empty; a matrix has at least one row and one column", ShapeText(shape)));
  }
  layout.by_columns = dict["fortran_order"].get<bool>();
  return layout;
}

}  // namespace

absl::StatusOr<NpyLayout> ParseNpyHeader(absl::string_view file) {
  if (!absl::StartsWith(file, kMagic))
    return absl::InvalidArgumentError("not an .npy file: it does not begin with \\x93NUMPY");
  if (file.size() < kPrefixBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("truncated: the file has %d bytes, less than any header", file.size()));
  }
  const int major = static_cast<uint8_t>(file[6]), minor = static_cast<uint8_t>(file[7]);
  if (major < 1 || major > 3 || minor != 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "format version %d.%d is not supported; save it as version 1.0, 2.0 or 3.0", major, minor));
  }
  const size_t length_bytes = major == 1 ? 2 : 4, offset = kMagic.size() + 2 + length_bytes;
  uint32_t bytes = 0;  // little endian, like this machine
  std::memcpy(&bytes, file.data() + offset - length_bytes, length_bytes);
  if (constexpr uint32_t kMost = kMaxNpyHeaderBytes - kPrefixBytes; bytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header says it has %d bytes; at most %d are read", bytes, kMost));
  }
  const absl::string_view dict = file.substr(offset, bytes);
  if (dict.size() < bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("truncated: the header needs %d bytes, %d were found", bytes, dict.size()));
  }
  AGMM_ASSIGN_OR_RETURN(NpyLayout layout, ParseDict(dict));
  layout.data_offset = static_cast<int64_t>(offset + bytes);
  return layout;
}

std::string NpyPreamble(int64_t rows, int64_t cols, DType dtype) {
  std::string dict = absl::StrFormat("{'descr': '%s', 'fortran_order': False, 'shape': (%d, %d), }",
                                     dtype == DType::kF32 ? "<f4" : "<f2", rows, cols);
  constexpr int64_t kFixedBytes = 10;  // magic, version, two bytes of length
  const int64_t total = RoundUp(kFixedBytes + static_cast<int64_t>(dict.size()) + 1, 64);
  dict.append(total - kFixedBytes - dict.size() - 1, ' ');
  dict += '\n';
  std::string preamble(kMagic.data(), kMagic.size());
  preamble +=
      {'\1', '\0', static_cast<char>(dict.size() & 0xff), static_cast<char>(dict.size() >> 8)};
  return preamble + dict;
}

}  // namespace agmm
