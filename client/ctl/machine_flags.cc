#include "client/ctl/machine_flags.h"

#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/text_file.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_text.h"

namespace agmm {
namespace {

// A measured world of 512 nodes has a rate for each of its pairs, and a pair takes less than 100
// bytes.
constexpr int64_t kMaxMachineBytes = 32 << 20;

}  // namespace

void AddMachineFlags(CLI::App* verb, MachineFlags* flags) {
  CLI::Option* preset =
      verb->add_option("--preset", flags->preset,
                       absl::StrCat("A machine by name: ", absl::StrJoin(PresetNames(), ", "),
                                    " (default: cpu-tcp)"));
  verb->add_option("--machine", flags->file,
                   "A file with a machine as text protobuf (proto/agmm/v1/machine.proto), as topo "
                   "--save writes it; - is standard input")
      ->excludes(preset);
  verb->add_option("--physical", flags->torus.physical,
                   "Axes of the torus and their sizes, such as a=4,b=4,c=4 (default: those of the "
                   "mesh)");
  verb->add_option("--wrap", flags->torus.wrap,
                   "Axes of the torus that wrap around, such as a,b, or none (default: by their "
                   "sizes, as the machine says)");
  verb->add_option("--map", flags->torus.map,
                   "Axes of the torus that each axis of the mesh takes, major first, such as "
                   "x=ab,y=c (default: in order)");
}

absl::StatusOr<Machine> MachineOf(const MachineFlags& flags, const std::string& otherwise) {
  if (flags.file.empty()) return Preset(flags.preset.empty() ? otherwise : flags.preset);
  AGMM_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(flags.file, kMaxMachineBytes, "--machine"));
  if (text.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        flags.file == "-" ? "standard input" : flags.file,
        " is empty; give a machine to --machine, as `agmmctl topo --save FILE` writes it"));
  }
  return MachineFromText(text, flags.file);
}

absl::StatusOr<Platform> PlatformOf(const MachineFlags& flags, const ProblemFlags& problem,
                                    const Mesh& mesh, Machine machine) {
  const bool is_torus = machine.within.wiring == Wiring::kTorus;
  if (is_torus && (problem.nodes || problem.devices_per_node)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "machine %s is a torus, where each device has links of its own, whatever its node; leave "
        "out --nodes and --devices-per-node",
        machine.name));
  }
  Platform platform;
  AGMM_ASSIGN_OR_RETURN(platform.topology, TopologyOf(problem, mesh, machine.devices_per_node));
  const TorusText& torus = flags.torus;
  if (is_torus) {
    AGMM_ASSIGN_OR_RETURN(platform.torus, MakeTorus(mesh, machine, torus));
  } else if (!torus.physical.empty() || !torus.wrap.empty() || !torus.map.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "machine %s is not a torus; leave out --physical, --wrap and --map", machine.name));
  }
  platform.machine = std::move(machine);
  return platform;
}

}  // namespace agmm
