// agmmctl tune: measures the plans of products and keeps the fastest ones in the world.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/connection.h"
#include "client/ctl/arguments.h"
#include "client/ctl/bench_shapes.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/tuning_report.h"
#include "client/ctl/tuning_run.h"
#include "client/ctl/verbs.h"
#include "client/files/output_file.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/predict/tuning.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/tuning_messages.h"
#include "proto/convert/tuning_text.h"

namespace agmm {
namespace {

struct TuneFlags {
  std::string spec = kDefaultSpec;
  std::vector<std::string> shapes;
  bool suite = false, list = false;
  int scale = 0, rounds = kRounds;
  std::string dtype = "bf16", mesh, budget = "60s", timeout = "60s", save;
};

// A shape in the place of SPEC is one of the default spec. A spec has no equals sign.
TuneFlags WithSpec(TuneFlags flags) {
  if (!absl::StrContains(flags.spec, '=')) return flags;
  flags.shapes.insert(flags.shapes.begin(), std::exchange(flags.spec, kDefaultSpec));
  return flags;
}

absl::StatusOr<TuneRequest> Check(const TuneFlags& flags) {
  TuneRequest request;
  if (flags.shapes.empty() && !flags.suite) {
    return absl::InvalidArgumentError(
        "no shape is given; write tune SHAPE or tune SPEC SHAPE, such as tune "
        "M=8192,N=4096,K=4096, or tune --suite");
  }
  if (flags.suite && !absl::StrContains(flags.spec, '*')) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--suite has the shapes of products, and '%s' has none; give the sizes of its dimensions",
        flags.spec));
  }
  if (flags.scale > 0 && !flags.suite) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--scale %d divides the suite; leave it out, or add --suite", flags.scale));
  }
  AGMM_ASSIGN_OR_RETURN(request.shapes, ParseShapes(flags.shapes, flags.spec));
  AGMM_ASSIGN_OR_RETURN(request.dtype, ParseDType(flags.dtype));
  AGMM_ASSIGN_OR_RETURN(request.budget, ParseTimeout(flags.budget, "--budget"));
  AGMM_ASSIGN_OR_RETURN(request.timeout, ParseTimeout(flags.timeout));
  request.spec = flags.spec;
  request.mesh = flags.mesh;
  request.suite = flags.suite;
  request.scale = flags.scale;
  request.rounds = flags.rounds;
  return request;
}

// Writes a table that daemons and `agmmctl tune` read.
absl::Status WriteTable(const std::vector<v1::TunedPlan>& stored, OutputFile* file) {
  std::vector<TunedPlan> plans;
  for (const v1::TunedPlan& one : stored) {
    AGMM_ASSIGN_OR_RETURN(plans.emplace_back(), FromProto(one));
  }
  AGMM_ASSIGN_OR_RETURN(const std::string text, AddTuning("", "--save", plans));
  AGMM_RETURN_IF_ERROR(file->Write(text));
  return file->Commit();
}

// Null without --save.
absl::StatusOr<std::unique_ptr<OutputFile>> OpenTable(const std::string& path) {
  if (path.empty()) return nullptr;
  return OutputFile::Create(path);
}

absl::StatusOr<LinksNow> LinksOf(Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  AGMM_ASSIGN_OR_RETURN(const v1::MachineStatus measured, connection->GetMachine());
  AGMM_ASSIGN_OR_RETURN(const Machine machine, FromProto(measured.world().machine()));
  return LinksNow{status.nodes_size(), MeasuredBetween(TopologyOfWorld(status), machine)};
}

absl::Status ListPlans(const TuneFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::TuningStatus status, connection->GetTuning());
  AGMM_ASSIGN_OR_RETURN(const LinksNow links, LinksOf(connection));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OpenTable(flags.save));
  if (file != nullptr) {
    AGMM_RETURN_IF_ERROR(WriteTable({status.plans().begin(), status.plans().end()}, file.get()));
    SayWritten(options, flags.save, Counted(status.plans_size(), "plan"));
  }
  PrintResult(options, ToJson(status), TuningStatusText(status, links), flags.save);
  return absl::OkStatus();
}

absl::Status RunTune(const TuneFlags& flags, const Options& options, Connection* connection) {
  if (flags.list) return ListPlans(flags, options, connection);
  AGMM_ASSIGN_OR_RETURN(const TuneRequest request, Check(WithSpec(flags)));
  // A file that cannot be written is refused before the measurements.
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<OutputFile> file, OpenTable(flags.save));
  const Interrupt interrupt(connection);
  std::vector<TunedShape> shapes;
  std::ostream& out = IsStandardOutput(flags.save) ? std::cerr : std::cout;
  const OnTuned on_done = [&](const TunedShape& one, bool shown) {
    shapes.push_back(one);
    if (options.json) {
      out << JsonLine(ToJson(one));
    } else if (!shown) {
      out << Printable(TunedLine(one)) << "\n";
    }
    out.flush();  // because the next shape may take long, and the reader of a pipe waits
  };
  const absl::Status outcome = Tune(connection, request, on_done);
  // The shapes that were finished before an error are stored.
  if (!options.json) out << TunedText(shapes);
  std::vector<v1::TunedPlan> stored;
  for (const TunedShape& one : shapes)
    if (one.is_stored()) stored.push_back(one.stored);
  if (file != nullptr && !stored.empty()) {
    AGMM_RETURN_IF_ERROR(WriteTable(stored, file.get()));
    SayWritten(options, flags.save, Counted(static_cast<int64_t>(stored.size()), "plan"));
  }
  return outcome;
}

}  // namespace

void AddTune(CLI::App* app, Command* command) {
  auto flags = std::make_shared<TuneFlags>();
  CLI::App* verb =
      app->add_subcommand("tune", "Measure plans, and keep the fastest ones for later jobs");
  verb->add_option("SPEC", flags->spec,
                   absl::StrCat(kAnySpecHelp, ". It may be left out before the shapes"))
      ->capture_default_str();
  verb->add_option("SHAPE", flags->shapes,
                   "Sizes of the spec's dimensions, such as M=8192,N=4096,K=4096");
  verb->add_flag("--suite", flags->suite,
                 "Tune the layers of known models, and decoding, as bench runs them; without "
                 "another SPEC, also products whose sums are scattered or all-reduced");
  AddScale(verb, &flags->scale);
  verb->add_option("--dtype", flags->dtype, kDTypeHelp)->capture_default_str();
  verb->add_option("--mesh", flags->mesh, kMeshHelp);
  verb->add_option("--budget", flags->budget,
                   "Time for the measurements of all shapes together, such as 60s or 10m")
      ->capture_default_str();
  verb->add_option("--rounds", flags->rounds, "Rounds of each shape, at most, within the budget")
      ->check(CLI::Range(1, kMaxRounds))
      ->capture_default_str();
  verb->add_option("--timeout", flags->timeout, kJobTimeoutHelp)->capture_default_str();
  const CLI::Option* save =
      verb->add_option("--save", flags->save,
                       "Also write the stored plans to this file, as text protobuf "
                       "(proto/agmm/v1/tuning.proto); - is standard output");
  const CLI::Option* list =
      verb->add_flag("--list", flags->list, "Instead show the plans that the world keeps");
  command->conflicts.AddAllBut({save}, list, verb);
  verb->footer(
      "The plans that are predicted to be the fastest run in turn, and slow ones drop out. Jobs "
      "whose options are left open run the stored plan from then on, unless they have --no-tuning. "
      "Operands are small integers generated on the devices, in a session that ends with the "
      "command. With --json, prints one result a line.");
  OnVerb(verb, command, flags, RunTune);
}

}  // namespace agmm
