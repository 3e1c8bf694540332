// Machines in protobuf's text format (proto/agmm/v1/machine.proto), and the presets of
// deploy/machines, which are part of the program.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/predict/machine.h"

namespace agmm {

// Parses `text`, the contents of `file`. Errors: INVALID_ARGUMENT, "file:line:column: ...".
absl::StatusOr<Machine> MachineFromText(absl::string_view text, const std::string& file);
// Returns text from which MachineFromText makes an equal machine; see ToProto.
std::string MachineText(const Machine& machine);

// "a100", "b200", ...: ascending.
std::vector<std::string> PresetNames();
// Errors: INVALID_ARGUMENT with all names.
absl::StatusOr<Machine> Preset(const std::string& name);

}  // namespace agmm
