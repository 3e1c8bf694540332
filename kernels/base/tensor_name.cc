#include "kernels/base/tensor_name.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/utf8.h"

namespace agmm {
namespace {

template <typename... Args>
absl::Status Wrong(absl::string_view subject, const absl::FormatSpec<Args...>& what,
                   const Args&... args) {
  return absl::InvalidArgumentError(absl::StrCat(subject, " ", absl::StrFormat(what, args...)));
}

}  // namespace

absl::Status CheckTensorName(absl::string_view subject, absl::string_view name) {
  if (name.empty()) return Wrong(subject, "is empty; set it");
  if (name.size() > kMaxNameBytes) {
    return Wrong(subject, "has %d bytes; at most %d are taken; use a shorter one", name.size(),
                 kMaxNameBytes);
  }
  if (name.front() == '#')
    return Wrong(subject, "begins with '#', which marks an id; begin it otherwise");
  if (const size_t comma = name.find(','); comma != name.npos) {
    return Wrong(subject,
                 "has ',' at byte %d, which separates names on command lines; use another "
                 "character, such as '.' or '/'",
                 comma);
  }
  if (name.front() == ' ' || name.back() == ' ')
    return Wrong(subject, "begins or ends with a space; leave it out");
  for (size_t at = 0; at < name.size();) {
    const size_t begin = at;
    uint32_t code = 0;
    if (!NextCodePoint(name, &at, &code))
      return Wrong(subject, "is not UTF-8 from byte %d on; encode it as UTF-8", begin);
    if (IsControl(code)) {
      return Wrong(subject, "has the control character U+%04X at byte %d; leave it out", code,
                   begin);
    }
  }
  return absl::OkStatus();
}

}  // namespace agmm
