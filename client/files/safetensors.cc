#include "client/files/safetensors.h"

#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>
#include <unordered_set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

constexpr absl::string_view kMetadata = "__metadata__";
constexpr absl::string_view kGarbage = "the header is garbage; save it with safetensors again";

absl::Status RefusedTensor(const std::string& tensor, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", QuotedName(tensor), " ", why));
}

// Bits of an element; absent for a dtype that is not known.
std::optional<int> BitsOf(absl::string_view dtype) {
  static constexpr std::pair<absl::string_view, int> kBits[] = {
      {"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},
      {"F16", 16},    {"BF16", 16},   {"U32", 32},    {"I32", 32},    {"F32", 32},
      {"U64", 64},    {"I64", 64},    {"F64", 64},    {"C64", 64},    {"F8_E5M2", 8},
      {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
  for (const auto& [name, bits] : kBits)
    if (name == dtype) return bits;
  return std::nullopt;
}

// Receives the JSON value by value, so that a hostile header takes no more memory than its tensors.
// Each function returns false to end the parse.
class HeaderReader {
 public:
  explicit HeaderReader(absl::string_view json) : json_(json) {}

  absl::StatusOr<std::vector<StoredTensor>> Read() {
    if (json_.empty() || json_.front() != '{') {
      return absl::InvalidArgumentError(
          absl::StrFormat("not a safetensors file: its header begins with \"%s\", not with {",
                          absl::CHexEscape(json_.substr(0, 8))));
    }
    if (!Json::sax_parse(json_.begin(), json_.end(), this)) {
      if (status_.ok()) status_ = absl::InvalidArgumentError(kGarbage);
      return status_;
    }
    return std::move(tensors_);
  }

  // Called by the parser.
  bool null() { return Unexpected("null"); }
  bool boolean(bool) { return Unexpected("a boolean"); }
  bool number_integer(int64_t value) { return Unexpected(absl::StrCat(value)); }
  bool number_unsigned(uint64_t value);
  bool number_float(double, const std::string& text) { return Unexpected(text); }
  bool string(const std::string& text);
  bool binary(const std::vector<uint8_t>&) { return Unexpected("bytes"); }
  bool start_object(size_t);
  bool key(const std::string& text);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception&);

 private:
  // The innermost object or list: nothing, the header, its metadata, a tensor, or one of its lists.
  enum class Place { kOutside, kHeader, kMetadata, kTensor, kShape, kOffsets };

  bool Fail(absl::Status status) {
    status_ = std::move(status);
    return false;
  }
  bool Unexpected(absl::string_view value);
  bool CheckTensor();

  const absl::string_view json_;
  absl::Status status_;
  Place place_ = Place::kOutside;
  std::unordered_set<std::string> names_;
  std::vector<StoredTensor> tensors_;
  std::string field_;  // of the current tensor, or the name of the next object
  bool has_dtype_ = false, has_shape_ = false;  // of the current tensor
  std::vector<int64_t> offsets_;
};

bool HeaderReader::Unexpected(absl::string_view value) {
  const std::string found = QuotedName(value);
  if (place_ == Place::kTensor || place_ == Place::kShape || place_ == Place::kOffsets) {
    return Fail(
        RefusedTensor(tensors_.back().name,
                      absl::StrFormat("has %s in %s, which is %s", found, QuotedName(field_),
                                      field_ == "dtype" ? "a name such as \"F32\""
                                                        : "a list of numbers, 0 or more")));
  }
  if (place_ == Place::kMetadata)
    return Fail(absl::InvalidArgumentError(absl::StrFormat("%s has %s for %s; strings are expected",
                                                           kMetadata, found, QuotedName(field_))));
  return Fail(absl::InvalidArgumentError(
      absl::StrFormat("the header is garbage: found %s where an object is expected", found)));
}

bool HeaderReader::number_unsigned(uint64_t value) {
  if (place_ != Place::kShape && place_ != Place::kOffsets) return Unexpected(absl::StrCat(value));
  if (value > INT64_MAX) return Unexpected(absl::StrCat(value));
  std::vector<int64_t>& list = place_ == Place::kShape ? tensors_.back().shape : offsets_;
  if (list.size() == kMaxStoredDimensions) {
    return Fail(
        RefusedTensor(tensors_.back().name,
                      absl::StrFormat("has more than %d numbers in %s; that many are read at most",
                                      kMaxStoredDimensions, QuotedName(field_))));
  }
  list.push_back(static_cast<int64_t>(value));
  return true;
}

bool HeaderReader::string(const std::string& text) {
  if (place_ == Place::kMetadata) return true;
  if (place_ != Place::kTensor || field_ != "dtype") return Unexpected(text);
  tensors_.back().dtype = text;
  has_dtype_ = true;
  return true;
}

bool HeaderReader::start_object(size_t) {
  if (place_ == Place::kOutside) {
    place_ = Place::kHeader;
  } else if (place_ == Place::kHeader && field_ == kMetadata) {
    place_ = Place::kMetadata;
  } else if (place_ == Place::kHeader) {
    place_ = Place::kTensor;
    tensors_.emplace_back().name = field_;
    has_dtype_ = has_shape_ = false;
    offsets_.clear();
  } else {
    return Unexpected("an object");
  }
  return true;
}

bool HeaderReader::key(const std::string& text) {
  field_ = text;
  if (place_ == Place::kMetadata) return true;
  if (place_ == Place::kHeader) {
    if (text.size() > kMaxStoredNameBytes) {
      return Fail(absl::InvalidArgumentError(
          absl::StrFormat("tensor %s has a name of %d bytes; at most %d are read", QuotedName(text),
                          text.size(), kMaxStoredNameBytes)));
    }
    if (names_.insert(text).second) return true;
    return Fail(RefusedTensor(text, "occurs twice; names must differ"));
  }
  const bool again = (text == "dtype" && has_dtype_) || (text == "shape" && has_shape_) ||
                     (text == "data_offsets" && !offsets_.empty());
  if (again)
    return Fail(RefusedTensor(tensors_.back().name, absl::StrCat("has two ", QuotedName(text))));
  if (text == "dtype" || text == "shape" || text == "data_offsets") return true;
  return Fail(RefusedTensor(tensors_.back().name,
                            absl::StrCat("has a field ", QuotedName(text),
                                         "; the format has dtype, shape and data_offsets")));
}

bool HeaderReader::start_array(size_t) {
  if (place_ != Place::kTensor || field_ == "dtype") return Unexpected("a list");
  place_ = field_ == "shape" ? Place::kShape : Place::kOffsets;
  return true;
}

bool HeaderReader::end_array() {
  has_shape_ = has_shape_ || place_ == Place::kShape;
  if (place_ == Place::kOffsets && offsets_.size() != 2) {
    return Fail(
        RefusedTensor(tensors_.back().name,
                      absl::StrFormat("has %s in data_offsets; a begin and an end are expected",
                                      Counted(offsets_.size(), "number"))));
  }
  place_ = Place::kTensor;
  return true;
}

bool HeaderReader::end_object() {
  if (place_ == Place::kTensor && !CheckTensor()) return false;
  place_ = place_ == Place::kHeader ? Place::kOutside : Place::kHeader;
  return true;
}

bool HeaderReader::CheckTensor() {
  StoredTensor& tensor = tensors_.back();
  if (!has_dtype_ || !has_shape_ || offsets_.empty()) {
    return Fail(
        RefusedTensor(tensor.name, absl::StrFormat("has no %s", !has_dtype_   ? "dtype"
                                                                : !has_shape_ ? "shape"
                                                                              : "data_offsets")));
  }
  tensor.begin = offsets_[0];
  tensor.end = offsets_[1];
  return true;
}

bool HeaderReader::parse_error(size_t position, const std::string&,
                               const nlohmann::detail::exception&) {
  const size_t at = std::min(position, json_.size());
  const size_t from = at > 20 ? at - 20 : 0;
  return Fail(absl::InvalidArgumentError(absl::StrFormat(
      "the header is garbage: it is not JSON from byte %d on, near \"%s\"; save it with "
      "safetensors again",
      at, absl::CHexEscape(json_.substr(from, 40)))));
}

// Returns the bytes that the dtype and the shape need; absent for a dtype that is not known.
absl::StatusOr<std::optional<int64_t>> BytesNeeded(const StoredTensor& tensor) {
  int64_t elements = 1, bits = 0;
  bool overflow = false;
  for (const int64_t size : tensor.shape)
    overflow = overflow || __builtin_mul_overflow(elements, size, &elements);
  const std::optional<int> each = BitsOf(tensor.dtype);
  if (overflow || __builtin_mul_overflow(elements, each.value_or(1), &bits)) {
    return RefusedTensor(tensor.name,
                         absl::StrFormat("has shape %s, more elements than a file can hold",
                                         StoredShapeText(tensor.shape)));
  }
  if (!each.has_value()) return std::nullopt;
  if (bits % 8 != 0) {
    return RefusedTensor(tensor.name,
                         absl::StrFormat("of %d bits does not end at a byte; %s of shape %s "
                                         "need a multiple of 8",
                                         bits, tensor.dtype, StoredShapeText(tensor.shape)));
  }
  return bits / 8;
}

// The dtype's name in files.
absl::string_view StoredName(DType dtype) {
  return dtype == DType::kF32 ? "F32" : dtype == DType::kF16 ? "F16" : "BF16";
}

}  // namespace

std::string QuotedName(absl::string_view name) {
  constexpr size_t kMost = 80;
  std::string text = absl::StrReplaceAll(Printable(name.substr(0, kMost)), {{"\n", "\\x0a"}});
  return absl::StrCat("\"", text, name.size() > kMost ? "..." : "", "\"");
}

absl::StatusOr<int64_t> SafetensorsJsonBytes(absl::string_view prefix,
                                             std::optional<int64_t> file_bytes) {
  if (static_cast<int64_t>(prefix.size()) < kSafetensorsPrefixBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "not a safetensors file: it has %d bytes, less than any header", prefix.size()));
  }
  uint64_t bytes = 0;  // little endian, like this machine
  std::memcpy(&bytes, prefix.data(), sizeof(bytes));
  if (bytes > kMaxSafetensorsJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("not a safetensors file: its header would have %d bytes; the format allows "
                        "at most %d",
                        bytes, kMaxSafetensorsJsonBytes));
  }
  const int64_t left = file_bytes.value_or(INT64_MAX) - kSafetensorsPrefixBytes;
  if (static_cast<int64_t>(bytes) > left) {
    return absl::InvalidArgumentError(
        absl::StrFormat("truncated: the header needs %d bytes, %d were found", bytes, left));
  }
  return static_cast<int64_t>(bytes);
}

absl::StatusOr<std::vector<StoredTensor>> ParseSafetensorsJson(absl::string_view json,
                                                               std::optional<int64_t> data_bytes) {
  AGMM_ASSIGN_OR_RETURN(std::vector<StoredTensor> tensors, HeaderReader(json).Read());
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const StoredTensor& one, const StoredTensor& other) {
                     return std::pair(one.begin, one.end) < std::pair(other.begin, other.end);
                   });
  AGMM_RETURN_IF_ERROR(CheckSafetensorsPlaces(tensors, data_bytes));
  return tensors;
}

absl::Status CheckSafetensorsPlaces(const std::vector<StoredTensor>& tensors,
                                    std::optional<int64_t> data_bytes) {
  int64_t at = 0;
  for (const StoredTensor& tensor : tensors) {
    if (tensor.end < tensor.begin) {
      return RefusedTensor(tensor.name,
                           absl::StrFormat("has data_offsets [%d, %d], which end before they "
                                           "begin; save the file with safetensors again",
                                           tensor.begin, tensor.end));
    }
    if (data_bytes.has_value() && tensor.end > *data_bytes) {
      return RefusedTensor(tensor.name,
                           absl::StrFormat("is at bytes [%d, %d) of the data, but the file has %d "
                                           "after its header; it may be truncated: copy it again",
                                           tensor.begin, tensor.end, *data_bytes));
    }
    if (tensor.begin != at) {
      return RefusedTensor(
          tensor.name, absl::StrFormat("begins at byte %d of the data, but the one before ends at "
                                       "byte %d; the format has no %s",
                                       tensor.begin, at, tensor.begin < at ? "overlaps" : "gaps"));
    }
    AGMM_ASSIGN_OR_RETURN(const std::optional<int64_t> needed, BytesNeeded(tensor));
    if (needed.has_value() && *needed != tensor.end - tensor.begin) {
      return RefusedTensor(tensor.name, absl::StrFormat("has %d bytes, but %s of shape %s need %d",
                                                        tensor.end - tensor.begin, tensor.dtype,
                                                        StoredShapeText(tensor.shape), *needed));
    }
    at = tensor.end;
  }
  if (at == data_bytes.value_or(at)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "the tensors take %d bytes, but the file has %d after its header", at, *data_bytes));
}

std::optional<DType> LoadableDType(absl::string_view dtype) {
  for (const DType each : {DType::kF32, DType::kF16, DType::kBF16})
    if (StoredName(each) == dtype) return each;
  return std::nullopt;
}

std::string StoredShapeText(const std::vector<int64_t>& shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<std::string> SafetensorsPreamble(
    const std::vector<TensorToSave>& tensors, const std::map<std::string, std::string>& metadata) {
  Json header = Json::object();
  if (!metadata.empty()) header[std::string(kMetadata)] = metadata;
  std::unordered_set<std::string> names;
  int64_t at = 0;
  for (const TensorToSave& tensor : tensors) {
    if (NoUtf8From(tensor.name).has_value() || tensor.name == kMetadata) {
      return RefusedTensor(tensor.name,
                           "cannot be saved: names are UTF-8, and are not __metadata__");
    }
    if (!names.insert(tensor.name).second)
      return RefusedTensor(tensor.name, "is given twice; a file has each tensor once, by its name");
    const int64_t end = at + tensor.rows * tensor.cols * SizeOf(tensor.dtype);
    header[tensor.name] = {{"dtype", std::string(StoredName(tensor.dtype))},
                           {"shape", {tensor.rows, tensor.cols}},
                           {"data_offsets", {at, end}}};
    at = end;
  }
  std::string json = header.dump(-1, ' ', false, Json::error_handler_t::replace);
  json.resize(RoundUp(static_cast<int64_t>(json.size()), 8), ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsJsonBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the header would have %d bytes; the format allows %d: save fewer tensors",
                        json.size(), kMaxSafetensorsJsonBytes));
  }
  std::string preamble(kSafetensorsPrefixBytes, '\0');
  const uint64_t bytes = json.size();
  std::memcpy(preamble.data(), &bytes, sizeof(bytes));
  return preamble + json;
}

}  // namespace agmm
