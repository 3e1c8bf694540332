#include "daemon/measure/replace_file.h"

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/random.h"

namespace agmm::measure {

absl::Status ReplaceFile(const std::string& file, absl::string_view text) {
  std::error_code error;
  std::filesystem::create_directories(std::filesystem::path(file).parent_path(), error);
  // Two daemons do not mix their texts. Daemons in containers may have equal process ids.
  const std::string draft = absl::StrCat(file, ".", RandomHex(kIdBytes));
  std::ofstream out(draft, std::ios::trunc);
  out << text;
  out.close();
  absl::Status status;
  if (!out) {
    status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", draft));
  } else if (std::filesystem::rename(draft, file, error); error) {
    status = absl::InternalError(absl::StrFormat("cannot rename %s: %s", draft, error.message()));
  }
  // No later draft would replace it.
  if (!status.ok()) std::filesystem::remove(draft, error);
  return status;
}

}  // namespace agmm::measure
