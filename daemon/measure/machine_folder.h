// The folder in which node 0's daemon keeps what it has measured, a file for each world's hardware:
// machine-HASH.txtpb, a v1::WorldMachine as text. Worlds may share a folder.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/machine.pb.h"
#include "daemon/measure/world_machine.h"

namespace agmm::measure {

class MachineFolder {
 public:
  explicit MachineFolder(std::string path) : path_(std::move(path)) {}

  // Errors: NOT_FOUND if nothing was measured on this hardware; INVALID_ARGUMENT, one line with
  // file, line and column, for a file that is not such a text, or has a machine that no world is;
  // others if it cannot be read.
  absl::StatusOr<CheckedWorld> Load(const std::vector<std::string>& hardware) const;
  // Replaces the file of the machine's hardware as a whole, and makes the folder. Errors: one line
  // with the file.
  absl::Status Save(const v1::WorldMachine& machine) const;
  std::string FileOf(const std::vector<std::string>& hardware) const;

 private:
  const std::string path_;
};

}  // namespace agmm::measure
