// agmmctl topo: the links and the rates of the world, and their measurement.
#include <CLI/App.hpp>
#include <memory>
#include <string>

#include "absl/time/clock.h"
#include "client/connect/connection.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/measurement.h"
#include "client/ctl/topo_text.h"
#include "client/ctl/verbs.h"
#include "client/files/output_file.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/machine_text.h"

namespace agmm {
namespace {

struct TopoFlags {
  bool measure = false;
  std::string timeout = "10m";
  std::string save;
};

// Sets the devices of a node and their smallest heap, on which the choices of daemons depend, too.
void SetDevices(const v1::GetStatusResponse& status, Machine* machine) {
  for (const v1::NodeStatus& node : status.nodes()) {
    machine->devices_per_node = std::max(machine->devices_per_node, node.devices_size());
    for (const v1::DeviceStatus& device : node.devices()) {
      const int64_t heap = device.heap_bytes();
      if (machine->heap_bytes == 0 || heap < machine->heap_bytes) machine->heap_bytes = heap;
    }
  }
}

absl::Status SaveMachine(const v1::WorldMachine& world, Connection* connection,
                         const std::string& path) {
  AGMM_ASSIGN_OR_RETURN(Machine machine, FromProto(world.machine()));
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  SetDevices(status, &machine);
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OutputFile::Create(path));
  AGMM_RETURN_IF_ERROR(file->Write(MachineText(machine)));
  return file->Commit();
}

absl::Status RunTopo(const TopoFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(flags.timeout));
  const Interrupt interrupt(connection);
  AGMM_ASSIGN_OR_RETURN(const v1::MachineStatus status, flags.measure
                                                            ? AwaitMeasurement(connection, timeout)
                                                            : connection->GetMachine());
  if (!flags.save.empty()) {
    AGMM_RETURN_IF_ERROR(SaveMachine(status.world(), connection, flags.save));
    SayWritten(options, flags.save, "the machine; `agmmctl simulate --machine` reads it");
  }
  PrintResult(options, ToJson(status), TopoText(status, absl::Now()), flags.save);
  return absl::OkStatus();
}

}  // namespace

void AddTopo(CLI::App* app, Command* command) {
  CLI::App* verb =
      app->add_subcommand("topo", "Show the bandwidths, latencies and rates of the world");
  auto flags = std::make_shared<TopoFlags>();
  CLI::Option* measure = verb->add_flag("--measure", flags->measure,
                                        "Measure them now, and wait for the result; jobs go first");
  verb->add_option("--timeout", flags->timeout,
                   "How long --measure waits, such as 30s or 5m, at most 24h")
      ->capture_default_str()
      ->needs(measure);
  verb->add_option("--save", flags->save,
                   "Write the machine to this file, as text that `agmmctl simulate --machine` "
                   "reads; - is standard output");
  OnVerb(verb, command, flags, RunTopo);
}

}  // namespace agmm
