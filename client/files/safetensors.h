// The header of safetensors files: 8 bytes of its length, little endian; JSON that gives each
// tensor's dtype, shape and place; then the tensors' bytes, row-major. Source: the README of
// huggingface/safetensors. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/base/dtype.h"

namespace agmm {

// The bytes of the length before the JSON.
inline constexpr int64_t kSafetensorsPrefixBytes = 8;
// The most bytes of JSON, by the format.
inline constexpr int64_t kMaxSafetensorsJsonBytes = 100'000'000;
// The longest name, and the most dimensions, that are read.
inline constexpr size_t kMaxStoredNameBytes = 4096, kMaxStoredDimensions = 32;

// A tensor in a file, of any dtype and shape.
struct StoredTensor {
  std::string name;
  std::string dtype;           // as in the file: "F32", "BF16", "I64"
  std::vector<int64_t> shape;  // empty: one element
  int64_t begin = 0, end = 0;  // its bytes, counted from the end of the header
};

// Returns the bytes of JSON that the first bytes of a file of `file_bytes`, or of a pipe, announce.
// Errors: INVALID_ARGUMENT if they cannot be a header's, or do not fit into the file.
absl::StatusOr<int64_t> SafetensorsJsonBytes(absl::string_view prefix,
                                             std::optional<int64_t> file_bytes);

// Returns the tensors in the order of their bytes, which fill the `data_bytes` behind the header
// without gaps or overlaps, each as its dtype and shape need. Tensors of dtypes that this program
// does not know are listed too. Without `data_bytes`, CheckSafetensorsPlaces must follow. Errors:
// INVALID_ARGUMENT with the tensor, the value and the bound.
absl::StatusOr<std::vector<StoredTensor>> ParseSafetensorsJson(absl::string_view json,
                                                               std::optional<int64_t> data_bytes);

// Checks that the tensors, in the order of their bytes, fill the `data_bytes`, if given, without
// gaps or overlaps. Errors: those of ParseSafetensorsJson.
absl::Status CheckSafetensorsPlaces(const std::vector<StoredTensor>& tensors,
                                    std::optional<int64_t> data_bytes);

// The dtype of elements that can be loaded: F32, F16 and BF16.
std::optional<DType> LoadableDType(absl::string_view dtype);

// A tensor's name in an error: in quotes, short, without control characters.
std::string QuotedName(absl::string_view name);
// "[4096, 11008]".
std::string StoredShapeText(const std::vector<int64_t>& shape);

// A tensor to be written.
struct TensorToSave {
  std::string name;
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
};

// Returns the bytes before the data of `tensors`, which follow in this order; their number is a
// multiple of 8. Errors: INVALID_ARGUMENT for a name that the format does not allow or that occurs
// twice, and for more JSON than the format allows.
absl::StatusOr<std::string> SafetensorsPreamble(const std::vector<TensorToSave>& tensors,
                                                const std::map<std::string, std::string>& metadata);

}  // namespace agmm
