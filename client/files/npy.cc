#include "client/files/npy.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "absl/algorithm/container.h"
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

absl::Status CheckNotEmpty(const std::string& path, int64_t rows, int64_t cols) {
  if (rows >= 1 && cols >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: a matrix of %d x %d is empty; give at least one row and one column", path, rows, cols));
}

// The number of elements that have all bits of the exponent `mask` set.
template <typename Bits>
int64_t CountWith(Bits mask, const void* elements, int64_t count) {
  const auto* const bytes = static_cast<const char*>(elements);
  int64_t found = 0;
  for (int64_t i = 0; i < count; ++i) {
    Bits bits;
    std::memcpy(&bits, bytes + i * sizeof(Bits), sizeof(Bits));
    found += (bits & mask) == mask;
  }
  return found;
}

int64_t CountNonFinite(DType dtype, const void* elements, int64_t count) {
  const uint32_t mask = TraitsOf(dtype).infinity_bits;
  return SizeOf(dtype) == 4 ? CountWith<uint32_t>(mask, elements, count)
                            : CountWith<uint16_t>(mask, elements, count);
}

constexpr absl::string_view kMagic("\x93NUMPY", 6);
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
         absl::c_all_of(shape, [](const nlohmann::json& size) {
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
        "dtype '<f8' is float64, which is not converted on the way; save it as float32: "
        "numpy.save(path, a.astype(numpy.float32))");
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("dtype '%s' is not supported; save it as float32 ('<f4') or float16 ('<f2')",
                      absl::CHexEscape(descr.substr(0, 32))));
}

// Parses the dict: 'descr', 'fortran_order' and 'shape', in any order, nothing else.
absl::StatusOr<MatrixLayout> ParseDict(absl::string_view text) {
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
  MatrixLayout layout;
  AGMM_ASSIGN_OR_RETURN(layout.dtype, ParseDescr(dict["descr"]));
  const std::vector<int64_t> shape = dict["shape"];
  if (shape.size() > 2) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shape %s has %d dimensions; a matrix has at most 2: save it with .reshape(rows, columns)",
        ShapeText(shape), shape.size()));
  }
  layout.rows = shape.size() == 2 ? shape.front() : 1;
  layout.cols = shape.empty() ? 1 : shape.back();
  if (layout.rows == 0 || layout.cols == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shape %s is empty; a matrix has at least one row and one column", ShapeText(shape)));
  }
  layout.by_columns = dict["fortran_order"].get<bool>();
  return layout;
}

// Checks the size of the file.
absl::StatusOr<std::unique_ptr<MatrixReader>> Checked(std::unique_ptr<InputFile> file,
                                                      const MatrixLayout& layout) {
  const int64_t element_bytes = SizeOf(layout.dtype);
  // Computed in f64, because the product of hostile sizes may overflow.
  const double needed = static_cast<double>(layout.rows) * layout.cols * element_bytes;
  constexpr double kMost = 0x1p62;
  const int64_t most = needed > kMost
                           ? INT64_MAX
                           : layout.data_offset + layout.rows * layout.cols * element_bytes + 1;
  // One more byte shows that bytes are left over.
  AGMM_ASSIGN_OR_RETURN(const int64_t size, file->SizeUpTo(most));
  if (size == most - 1) return std::make_unique<MatrixReader>(std::move(file), layout);
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s: %s: %d x %d %s take %.0f bytes%s, %d were found", file->name(),
      size < most ? "truncated" : "bytes are left over", layout.rows, layout.cols,
      Name(layout.dtype), needed, layout.data_offset == 0 ? "" : " after the header",
      size - layout.data_offset));
}

}  // namespace

absl::StatusOr<std::unique_ptr<MatrixReader>> OpenNpy(const std::string& path,
                                                      std::stop_token stop) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path, std::move(stop)));
  AGMM_ASSIGN_OR_RETURN(const std::string prefix, file->ReadHead(kNpyPrefixBytes));
  const absl::StatusOr<int64_t> header_bytes = NpyHeaderBytes(prefix);
  if (!header_bytes.ok()) return Annotate(header_bytes.status(), file->name());
  AGMM_ASSIGN_OR_RETURN(const std::string header,
                        file->ReadHead(std::max(*header_bytes, kNpyPrefixBytes)));
  const auto layout = ParseNpyHeader(header);
  if (!layout.ok()) return Annotate(layout.status(), file->name());
  return Checked(std::move(file), *layout);
}

absl::StatusOr<std::unique_ptr<MatrixReader>> OpenRaw(const std::string& path, int64_t rows,
                                                      int64_t cols, DType dtype) {
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> file, InputFile::Open(path));
  return Checked(std::move(file), {rows, cols, dtype});
}

DType FileDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path, int64_t rows,
                                                             int64_t cols, DType dtype, bool raw) {
  if (dtype == DType::kBF16 && !raw) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: .npy files have no bf16; write f32, which holds every bf16", path));
  }
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  if (!raw) AGMM_RETURN_IF_ERROR(file->Write(NpyPreamble(rows, cols, dtype)));
  return std::unique_ptr<NpyWriter>(new NpyWriter(path, std::move(file), {rows, cols, dtype}));
}

absl::Status NpyWriter::Append(int64_t count, const void* elements) {
  if (file_->committed()) return absl::FailedPreconditionError(path_ + " has been committed");
  AGMM_RETURN_IF_ERROR(CheckRange(path_, written_, count, layout_));
  const auto bytes = static_cast<size_t>(count * SizeOf(dtype()));
  AGMM_RETURN_IF_ERROR(file_->Write({static_cast<const char*>(elements), bytes}));
  written_ += count;
  non_finite_ += CountNonFinite(dtype(), elements, count);
  return absl::OkStatus();
}

absl::Status NpyWriter::Commit() {
  if (file_->committed()) return absl::FailedPreconditionError(path_ + " has been committed");
  if (const int64_t size = rows() * cols(); written_ != size) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d of %s were written", path_, written_, Counted(size, "element")));
  }
  return file_->Commit();
}

absl::StatusOr<int64_t> NpyHeaderBytes(absl::string_view file) {
  if (!absl::StartsWith(file, kMagic))
    return absl::InvalidArgumentError("not an .npy file: it does not begin with \\x93NUMPY");
  if (file.size() < kNpyPrefixBytes) {
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
  if (constexpr uint32_t kMost = kMaxNpyHeaderBytes - kNpyPrefixBytes; bytes > kMost) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header says it has %d bytes; at most %d are read", bytes, kMost));
  }
  return static_cast<int64_t>(offset + bytes);
}

absl::StatusOr<MatrixLayout> ParseNpyHeader(absl::string_view file) {
  AGMM_ASSIGN_OR_RETURN(const int64_t header_bytes, NpyHeaderBytes(file));
  // The length has 2 bytes in version 1, and 4 in the others.
  const size_t begin = file[6] == 1 ? 10 : 12, bytes = header_bytes - begin;
  const absl::string_view dict = file.substr(begin, bytes);
  if (dict.size() < bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("truncated: the header needs %d bytes, %d were found", bytes, dict.size()));
  }
  AGMM_ASSIGN_OR_RETURN(MatrixLayout layout, ParseDict(dict));
  layout.data_offset = header_bytes;
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
