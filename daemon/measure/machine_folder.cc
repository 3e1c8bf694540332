#include "daemon/measure/machine_folder.h"

#include <google/protobuf/text_format.h>

#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/measure/replace_file.h"
#include "kernels/base/hash.h"
#include "kernels/base/read_file.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/text_message.h"

namespace agmm::measure {
namespace {

// Far more than the paths of a thousand nodes take.
constexpr int64_t kMaxFileBytes = int64_t{256} << 20;
constexpr int64_t kMaxVersion = int64_t{1} << 62;

// Checks what holds for a world only, and not for every machine. Errors begin with the field's
// path.
absl::Status CheckWorld(const Machine& machine) {
  // Without it, no other links are a torus.
  if (machine.within.wiring == Wiring::kTorus) {
    return absl::InvalidArgumentError(
        "machine.within.wiring is TORUS, but the devices of a world have no coordinates; give "
        "SWITCH or PAIRWISE, or remove the file, so that the world is measured again");
  }
  if (machine.version < 1 || machine.version > kMaxVersion) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "machine.version is %d, outside [1, %d]; correct it, or remove the file, so that the world "
        "is measured again",
        machine.version, kMaxVersion));
  }
  return absl::OkStatus();
}

}  // namespace

std::string MachineFolder::FileOf(const std::vector<std::string>& hardware) const {
  return absl::StrCat(path_, "/machine-", HashHex(Fnv1a(absl::StrJoin(hardware, "\n"))), ".txtpb");
}

absl::StatusOr<CheckedWorld> MachineFolder::Load(const std::vector<std::string>& hardware) const {
  const std::string file = FileOf(hardware);
  std::error_code error;
  if (!std::filesystem::exists(file, error))
    return absl::NotFoundError(absl::StrCat(file, " does not exist"));
  AGMM_ASSIGN_OR_RETURN(const FileContents read, ReadFileUpTo(file, kMaxFileBytes, file));
  v1::WorldMachine machine;
  google::protobuf::TextFormat::ParseInfoTree places;
  AGMM_RETURN_IF_ERROR(ParseTextMessage(read.bytes, file, &machine, &places));
  absl::StatusOr<Machine> checked = FromProto(machine.machine());
  if (const absl::Status& wrong = checked.status(); !wrong.ok()) {
    return AtField(WithMessage(wrong, absl::StrCat("machine.", wrong.message())), file, machine,
                   places);
  }
  if (const absl::Status wrong = CheckWorld(*checked); !wrong.ok())
    return AtField(wrong, file, machine, places);
  // The text after a lost beginning may still parse.
  const std::vector<std::string> measured(machine.hardware().begin(), machine.hardware().end());
  if (measured != hardware || !machine.has_measure_time()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ":1:1: the file does not describe the hardware of its name"));
  }
  return CheckedWorld{std::move(machine), *std::move(checked)};
}

absl::Status MachineFolder::Save(const v1::WorldMachine& machine) const {
  std::string text;
  google::protobuf::TextFormat::PrintToString(machine, &text);
  return ReplaceFile(FileOf({machine.hardware().begin(), machine.hardware().end()}), text);
}

}  // namespace agmm::measure
