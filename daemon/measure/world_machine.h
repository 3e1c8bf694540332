// Computes a world's machine from the times of its probes. Pure.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/machine.pb.h"
#include "daemon/measure/survey.h"
#include "kernels/predict/machine.h"

namespace agmm::measure {

// Returns the machine of a survey that is done; `preset` has all that was not measured. The
// caller adds the hardware, the version and the time. Its machine is valid if the preset is.
//
// The rates between nodes are those of a link without a slower one beside it: the mean of the links
// that have at least four fifths of the best one's bandwidth. All others are exceptions
// (MachineLinks.pairs).
v1::WorldMachine MachineOf(const Survey& survey, const v1::Machine& preset);

// Returns a world without measurements.
v1::WorldMachine PresetOf(const v1::Machine& preset);

// A world, and the machine of its figures.
struct CheckedWorld {
  v1::WorldMachine world;
  Machine machine;
};
// Errors: INVALID_ARGUMENT, those of FromProto.
absl::StatusOr<CheckedWorld> Check(v1::WorldMachine world);

}  // namespace agmm::measure
