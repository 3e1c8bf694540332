// The header of an .npy file: a Python dict literal, parsed strictly.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"

namespace agmm {

struct NpyHeader {
  std::string descr;  // "<f4"
  bool fortran_order = false;
  std::vector<int64_t> shape;
};

// Magic, version and the widest length field.
inline constexpr int64_t kNpyPrefixBytes = 12;
// NumPy's own headers of matrices take 118 bytes.
inline constexpr int64_t kMaxNpyHeaderBytes = 64 << 10;

// Where the dict lies in a file that begins with `prefix` (kNpyPrefixBytes of it, fewer if it is
// shorter).
struct NpyExtent {
  int64_t offset = 0, bytes = 0;
};
absl::StatusOr<NpyExtent> ParseNpyPrefix(absl::string_view prefix);

// Parses the dict: 'descr', 'fortran_order' and 'shape', each once, in any order, nothing else.
absl::StatusOr<NpyHeader> ParseNpyDict(absl::string_view text);

// The dtype of a matrix with this header. Errors: INVALID_ARGUMENT saying why it is no matrix that
// can be read, and how to convert it.
absl::StatusOr<DType> CheckNpyMatrix(const NpyHeader& header);

// Everything before the data; its length is a multiple of 64.
std::string NpyPreamble(int64_t rows, int64_t cols, DType dtype);

}  // namespace agmm
