#include "client/connect/program_text.h"

#include <limits.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/utf8.h"
#include "proto/limits.h"

namespace agmm {
namespace {

constexpr size_t kMaxNameBytes = 64;
// The rest, beside the longest name and the longest process id.
constexpr size_t kMaxHostBytes =
    kMaxProgramBytes - kMaxNameBytes - sizeof(" (pid 4194304 on )") + 1;

// Returns the beginning of `text` in at most `bytes`, with '?' for bytes that are not UTF-8 and for
// control characters.
std::string Shown(absl::string_view text, size_t bytes) {
  std::string shown;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    const bool valid = NextCodePoint(text, &at, &code);
    if (!valid) ++at;
    const absl::string_view next =
        valid && !IsControl(code) ? text.substr(begin, at - begin) : absl::string_view("?");
    if (shown.size() + next.size() > bytes) break;
    absl::StrAppend(&shown, next);
  }
  return shown;
}

// Returns the first of the texts in a file of /proc; empty if it cannot be read.
std::string FirstText(const char* path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::getline(file, text, '\0');
  return text;
}

std::string ExecutableName() {
  std::string name = FirstText("/proc/self/cmdline");
  name.erase(0, name.rfind('/') + 1);
  if (!name.empty()) return name;
  name = FirstText("/proc/self/comm");
  if (!name.empty() && name.back() == '\n') name.pop_back();
  return name.empty() ? "unknown" : name;
}

std::string HostName() {
  char name[HOST_NAME_MAX + 1] = {};
  if (gethostname(name, sizeof(name) - 1) != 0) return "unknown";
  return name;
}

}  // namespace

absl::Status CheckProgramName(absl::string_view name) {
  if (name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("program has %d bytes; at most %d are taken; use a shorter name",
                        name.size(), kMaxNameBytes));
  }
  if (const auto at = NoUtf8From(name); at.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("program is not UTF-8 from byte %d on; encode it as UTF-8", *at));
  }
  for (size_t at = 0; at < name.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    if (NextCodePoint(name, &at, &code) && IsControl(code)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "program has the control character U+%04X at byte %d; leave it out", code, begin));
    }
  }
  return absl::OkStatus();
}

std::string ProgramText(absl::string_view name) {
  return absl::StrFormat("%s (pid %d on %s)",
                         Shown(name.empty() ? ExecutableName() : name, kMaxNameBytes), getpid(),
                         Shown(HostName(), kMaxHostBytes));
}

}  // namespace agmm
