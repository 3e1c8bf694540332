// The elements of a matrix file in the order of rows, from the beginning to the end.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "client/npy/npy.h"

namespace agmm {

// Transposes a file that is stored by columns a stripe of rows at a time, because reading a few
// rows of it touches every page of the file. Thread-compatible.
class RowReader {
 public:
  // A stripe takes at most `stripe_bytes` of memory. Rows that are larger are read without stripes.
  // `file` outlives this object.
  explicit RowReader(const NpyReader& file, int64_t stripe_bytes = 32 << 20)
      : file_(file), stripe_bytes_(stripe_bytes) {}

  // Like NpyReader::ReadElements; fast for consecutive ranges.
  absl::Status Read(int64_t first, int64_t count, char* out);

 private:
  absl::Status ReadStripe(int64_t row);

  const NpyReader& file_;
  const int64_t stripe_bytes_;
  std::vector<char> stripe_;
  int64_t begin_ = 0, end_ = 0;  // the elements in it
};

}  // namespace agmm
