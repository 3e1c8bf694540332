// An .npy file: the header alone, then the whole file through the reader.
#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "absl/strings/str_cat.h"
#include "client/npy.h"
#include "client/npy_header.h"
#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

void CheckHeader(absl::string_view text) {
  const absl::StatusOr<NpyExtent> extent = ParseNpyPrefix(text.substr(0, kNpyPrefixBytes));
  // The dict is looked at also where no prefix leads to it.
  absl::string_view dict = text;
  if (extent.ok()) {
    FUZZ_CHECK(extent->offset >= 10 && extent->offset <= kNpyPrefixBytes, "offset");
    FUZZ_CHECK(extent->bytes >= 0 && extent->bytes <= kMaxNpyHeaderBytes, "bytes");
    dict = text.substr(std::min<size_t>(extent->offset, text.size()), extent->bytes);
  }
  const absl::StatusOr<NpyHeader> header = ParseNpyDict(dict);
  if (!header.ok()) return;
  for (int64_t size : header->shape) FUZZ_CHECK(size >= 0 && size <= int64_t{1} << 31, "size");
  const absl::StatusOr<DType> dtype = CheckNpyMatrix(*header);
  if (!dtype.ok()) return;
  // What can be read can be written, and is the same when read again.
  const std::string preamble = NpyPreamble(header->shape[0], header->shape[1], *dtype);
  FUZZ_CHECK(preamble.size() % 64 == 0, preamble);
  const absl::StatusOr<NpyExtent> again = ParseNpyPrefix(preamble.substr(0, kNpyPrefixBytes));
  FUZZ_CHECK(again.ok() && again->offset + again->bytes == static_cast<int64_t>(preamble.size()),
             preamble);
  const absl::StatusOr<NpyHeader> same = ParseNpyDict(preamble.substr(again->offset));
  FUZZ_CHECK(same.ok() && same->shape == header->shape && same->descr == header->descr &&
                 !same->fortran_order,
             preamble);
}

void CheckReader(absl::string_view text) {
  static const int fd = memfd_create("npy", 0);
  FUZZ_CHECK(ftruncate(fd, 0) == 0 &&
                 pwrite(fd, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()),
             "memfd");
  const auto reader = NpyReader::Open(absl::StrCat("/proc/self/fd/", fd));
  if (!reader.ok()) return;
  // Open has compared the size with the shape, so the matrix is no larger than the input.
  const int64_t rows = (*reader)->rows(), row_bytes = (*reader)->row_bytes();
  FUZZ_CHECK(static_cast<__int128>(rows) * row_bytes <= static_cast<__int128>(text.size()), "size");
  std::vector<char> all(rows * row_bytes);
  const absl::Status read = (*reader)->ReadRows(0, rows, all.data());
  FUZZ_CHECK(read.ok(), read.ToString());
  FUZZ_CHECK(absl::string_view(all.data(), all.size()) == text.substr(text.size() - all.size()),
             "other bytes");
  FUZZ_CHECK(!(*reader)->ReadRows(rows, 1, all.data()).ok(), "a row behind the last");
}

}  // namespace
}  // namespace agmm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  agmm::fuzz::CheckHeader(agmm::fuzz::Text(data, size));
  agmm::fuzz::CheckReader(agmm::fuzz::Text(data, size));
  return 0;
}
