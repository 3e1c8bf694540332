// A machine as flags, and the platform that it makes of a problem's ranks.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/ctl/problem_flags.h"
#include "kernels/predict/platform.h"

namespace agmm {

struct MachineFlags {
  std::string preset, file;
  TorusText torus;
};

// Adds --preset, --machine, --physical, --wrap and --map.
void AddMachineFlags(CLI::App* verb, MachineFlags* flags);

// Returns true if --preset or --machine is given.
inline bool IsNamed(const MachineFlags& flags) {
  return !flags.preset.empty() || !flags.file.empty();
}

// Returns the machine of --machine or --preset, or else that of the preset `otherwise`. Errors:
// INVALID_ARGUMENT, and those of reading the file.
absl::StatusOr<Machine> MachineOf(const MachineFlags& flags,
                                  const std::string& otherwise = "cpu-tcp");

// Returns the place of `mesh` on `machine`. The flags of `problem` say how its ranks are spread
// over nodes; without them, nodes have as many devices as the machine says. Errors:
// INVALID_ARGUMENT, also for those flags on a torus.
absl::StatusOr<Platform> PlatformOf(const MachineFlags& flags, const ProblemFlags& problem,
                                    const Mesh& mesh, Machine machine);

}  // namespace agmm
