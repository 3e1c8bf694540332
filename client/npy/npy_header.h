// The header of an .npy file: a Python dict literal, read as JSON.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "kernels/base/dtype.h"

namespace agmm {

// The form of a matrix in a file.
struct NpyLayout {
  int64_t rows = 0, cols = 0;
  DType dtype = DType::kF32;
  int64_t data_offset = 0;  // in the file; 0 without a header
  bool by_columns = false;  // one column after the other: Fortran order
};

// The most bytes before the data: a prefix of 12 bytes and the dict. NumPy's own headers of
// matrices have 128 in all.
inline constexpr int64_t kMaxNpyHeaderBytes = 12 + (64 << 10);

// Parses the header of a file from its first kMaxNpyHeaderBytes, or all of a shorter one. Errors:
// INVALID_ARGUMENT saying why the matrix cannot be read, and how to convert it.
absl::StatusOr<NpyLayout> ParseNpyHeader(absl::string_view file);

// The bytes before the data; their number is a multiple of 64.
std::string NpyPreamble(int64_t rows, int64_t cols, DType dtype);

}  // namespace agmm
