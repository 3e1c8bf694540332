// An .npy file: the header alone, then the whole file through the reader.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/files/npy.h"
#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

void CheckHeader(absl::string_view text) {
  const absl::StatusOr<MatrixLayout> layout = ParseNpyHeader(text);
  if (!layout.ok()) return;
  FUZZ_CHECK(layout->data_offset >= 10 && layout->data_offset <= kMaxNpyHeaderBytes, "offset");
  for (int64_t size : {layout->rows, layout->cols})
    FUZZ_CHECK(size > 0 && size <= int64_t{1} << 31, "size");
  // A header that can be read can be written, and reads the same again.
  const std::string preamble = NpyPreamble(layout->rows, layout->cols, layout->dtype);
  FUZZ_CHECK(preamble.size() % 64 == 0, preamble);
  const absl::StatusOr<MatrixLayout> same = ParseNpyHeader(preamble);
  FUZZ_CHECK(same.ok() && same->rows == layout->rows && same->cols == layout->cols &&
                 same->dtype == layout->dtype &&
                 same->data_offset == static_cast<int64_t>(preamble.size()),
             preamble);
}

// A version 1.0 header whose dict is `text`.
std::string AsHeader(absl::string_view text) {
  const size_t bytes = std::min<size_t>(text.size(), 0xffff);
  std::string header("\x93NUMPY\x01\x00", 8);
  header += {static_cast<char>(bytes & 0xff), static_cast<char>(bytes >> 8)};
  return absl::StrCat(header, text.substr(0, bytes));
}

void CheckReader(absl::string_view text) {
  static const int fd = memfd_create("npy", 0);
  FUZZ_CHECK(ftruncate(fd, 0) == 0 &&
                 pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
             "memfd");
  const auto reader = OpenNpy(absl::StrCat("/proc/self/fd/", fd));
  if (!reader.ok()) return;
  // Open has compared the size with the shape, so the matrix is not larger than the input.
  const int64_t rows = (*reader)->rows(), cols = (*reader)->cols();
  const int64_t row_bytes = cols * SizeOf((*reader)->dtype());
  FUZZ_CHECK(static_cast<__int128>(rows) * row_bytes <= static_cast<__int128>(text.size()), "size");
  std::vector<char> all(rows * row_bytes);
  const absl::Status read = (*reader)->ReadElements(0, rows * cols, all.data());
  FUZZ_CHECK(read.ok(), read.ToString());
  std::vector<char> stored = all;
  const int64_t element_bytes = SizeOf((*reader)->dtype());
  for (int64_t i = 0; (*reader)->by_columns() && i < rows * cols; ++i) {
    std::copy_n(all.data() + i * element_bytes, element_bytes,
                stored.data() + (i % cols * rows + i / cols) * element_bytes);
  }
  FUZZ_CHECK(
      absl::string_view(stored.data(), stored.size()) == text.substr(text.size() - stored.size()),
      "other bytes");
  FUZZ_CHECK(!(*reader)->ReadElements(rows * cols, 1, all.data()).ok(), "an element past the end");
}

[[maybe_unused]] const bool kAdded = AddTarget("npy", [](absl::string_view bytes) {
  CheckHeader(bytes);
  // Checks the dict even if the prefix is invalid.
  CheckHeader(AsHeader(bytes));
  CheckReader(bytes);
});

}  // namespace
}  // namespace agmm::fuzz
