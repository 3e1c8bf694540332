#include "client/npy_header.h"

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr absl::string_view kMagic("\x93NUMPY", 6);
constexpr int64_t kMaxSize = int64_t{1}
                             << 31;    // of a dimension: two of them and an f32 fit in 63 bits
constexpr size_t kMaxDimensions = 32;  // as in NumPy

// Reads the subset of Python literals that a header is made of.
class DictReader {
 public:
  explicit DictReader(absl::string_view text) : text_(text) {}

  absl::Status Error(absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header is garbage at byte %d: expected %s", at_, what));
  }
  bool Consume(absl::string_view symbol) {
    SkipSpaces();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    at_ += symbol.size();
    return true;
  }
  absl::Status Expect(absl::string_view symbol) {
    return Consume(symbol) ? absl::OkStatus() : Error(symbol);
  }
  bool AtEnd() {
    SkipSpaces();
    return at_ == text_.size();
  }

  // A quoted string; none that a header needs has an escape.
  absl::Status String(std::string* value) {
    SkipSpaces();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') return Error("a string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == absl::string_view::npos) return Error("the end of a string");
    *value = std::string(text_.substr(at_ + 1, end - at_ - 1));
    if (value->find('\\') != std::string::npos) return Error("a string without escapes");
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status Bool(bool* value) {
    if (Consume("True")) {
      *value = true;
    } else if (Consume("False")) {
      *value = false;
    } else {
      return Error("True or False");
    }
    return absl::OkStatus();
  }

  absl::Status Shape(std::vector<int64_t>* shape) {
    AGMM_RETURN_IF_ERROR(Expect("("));
    while (!Consume(")")) {
      if (!shape->empty()) {
        AGMM_RETURN_IF_ERROR(Expect(","));
        if (Consume(")")) break;
      }
      if (shape->size() == kMaxDimensions) return Error("at most 32 dimensions");
      AGMM_RETURN_IF_ERROR(Size(&shape->emplace_back()));
    }
    return absl::OkStatus();
  }

 private:
  void SkipSpaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  absl::Status Size(int64_t* value) {
    SkipSpaces();
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isdigit(text_[at_])) {
      *value = *value * 10 + (text_[at_] - '0');
      if (*value > kMaxSize) return Error(absl::StrFormat("a size of at most %d", kMaxSize));
      ++at_;
    }
    return at_ == begin ? Error("a size") : absl::OkStatus();
  }

  absl::string_view text_;
  size_t at_ = 0;
};

std::string ShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("(", absl::StrJoin(shape, ", "), shape.size() == 1 ? ",)" : ")");
}

uint32_t LittleEndian(absl::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = bytes.size(); i > 0; --i) value = value << 8 | static_cast<uint8_t>(bytes[i - 1]);
  return value;
}

}  // namespace

absl::StatusOr<NpyExtent> ParseNpyPrefix(absl::string_view prefix) {
  if (prefix.substr(0, kMagic.size()) != kMagic)
    return absl::InvalidArgumentError("not an .npy file: it does not begin with \\x93NUMPY");
  if (prefix.size() < static_cast<size_t>(kNpyPrefixBytes))
    return absl::InvalidArgumentError(
        absl::StrFormat("truncated: the file has %d bytes, less than any header", prefix.size()));
  const int major = static_cast<uint8_t>(prefix[6]), minor = static_cast<uint8_t>(prefix[7]);
  if ((major != 1 && major != 2) || minor != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("format version %d.%d; versions 1.0 and 2.0 are read", major, minor));
  }
  const int length_bytes = major == 1 ? 2 : 4;
  const NpyExtent extent{8 + length_bytes, LittleEndian(prefix.substr(8, length_bytes))};
  if (extent.bytes > kMaxNpyHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the header says it has %d bytes; at most %d are read", extent.bytes, kMaxNpyHeaderBytes));
  }
  return extent;
}

absl::StatusOr<NpyHeader> ParseNpyDict(absl::string_view text) {
  DictReader reader(text);
  NpyHeader header;
  bool has_descr = false, has_order = false, has_shape = false;
  AGMM_RETURN_IF_ERROR(reader.Expect("{"));
  while (!reader.Consume("}")) {
    std::string key;
    AGMM_RETURN_IF_ERROR(reader.String(&key));
    bool* seen = key == "descr"           ? &has_descr
                 : key == "fortran_order" ? &has_order
                 : key == "shape"         ? &has_shape
                                          : nullptr;
    if (seen == nullptr || *seen) return reader.Error("descr, fortran_order and shape, each once");
    *seen = true;
    AGMM_RETURN_IF_ERROR(reader.Expect(":"));
    if (seen == &has_descr) {
      if (reader.Consume("[")) {
        return absl::InvalidArgumentError(
            "the dtype is structured; save one field of it, as a matrix of float32");
      }
      AGMM_RETURN_IF_ERROR(reader.String(&header.descr));
    } else if (seen == &has_order) {
      AGMM_RETURN_IF_ERROR(reader.Bool(&header.fortran_order));
    } else {
      AGMM_RETURN_IF_ERROR(reader.Shape(&header.shape));
    }
    if (!reader.Consume(",")) {
      AGMM_RETURN_IF_ERROR(reader.Expect("}"));
      break;
    }
  }
  if (!has_descr || !has_order || !has_shape)
    return reader.Error("descr, fortran_order and shape, each once");
  if (!reader.AtEnd()) return reader.Error("nothing behind the dict");
  return header;
}

absl::StatusOr<DType> CheckNpyMatrix(const NpyHeader& header) {
  const std::string& descr = header.descr;
  if (descr.size() > 1 && descr[1] == 'O')
    return absl::InvalidArgumentError("it holds Python objects; save a matrix of float32");
  if (!descr.empty() && descr[0] == '>') {
    return absl::InvalidArgumentError(absl::StrFormat(
        "dtype '%s' is big endian; save it with .astype('<f4')", absl::CHexEscape(descr)));
  }
  if (descr == "<f8") {
    return absl::InvalidArgumentError(
        "dtype '<f8' is float64; save it as float32: numpy.save(path, a.astype(numpy.float32))");
  }
  if (descr != "<f4" && descr != "<f2") {
    return absl::InvalidArgumentError(
        absl::StrFormat("dtype '%s' is not read; save it as float32 ('<f4') or float16 ('<f2')",
                        absl::CHexEscape(descr.substr(0, 32))));
  }
  if (header.shape.size() != 2) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "shape %s has %d dimensions; a matrix has 2: save it with .reshape(rows, columns)",
        ShapeText(header.shape), header.shape.size()));
  }
  if (header.shape[0] == 0 || header.shape[1] == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("shape %s is empty; a matrix has at least one row and one column",
                        ShapeText(header.shape)));
  }
  if (header.fortran_order) {
    return absl::InvalidArgumentError(
        "it is in Fortran order; save it with numpy.ascontiguousarray(a)");
  }
  return descr == "<f4" ? DType::kF32 : DType::kF16;
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
