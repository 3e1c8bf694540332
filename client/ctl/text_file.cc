#include "client/ctl/text_file.h"

#include <cstddef>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "client/files/output_file.h"
#include "kernels/base/read_file.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

// The time for the program that writes to standard input, which may measure a world first.
constexpr absl::Duration kInputPatience = absl::Minutes(10);

bool IsText(absl::string_view bytes) {
  return bytes.find('\0') == bytes.npos && !NoUtf8From(bytes).has_value();
}

}  // namespace

absl::StatusOr<std::string> ReadTextFile(const std::string& path, int64_t max_bytes,
                                         absl::string_view flag) {
  const bool is_input = path == "-";
  const std::string name = is_input ? "standard input" : path;
  absl::StatusOr<FileContents> read =
      is_input
          ? ReadFileUpTo("/dev/stdin", static_cast<size_t>(max_bytes) + 1, name, kInputPatience)
          : ReadFileUpTo(path, static_cast<size_t>(max_bytes) + 1, name);
  // For a user, a file that does not exist is an unusable one; NOT_FOUND is for tensors and jobs.
  if (!read.ok()) return absl::InvalidArgumentError(read.status().message());
  if (static_cast<int64_t>(read->bytes.size()) > max_bytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has more than %s, the most that %s reads; give another file", name,
                        FormatBytes(max_bytes), flag));
  }
  if (!IsText(read->bytes)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not a text file; give text protobuf to %s", name, flag));
  }
  return std::move(read->bytes);
}

}  // namespace agmm
