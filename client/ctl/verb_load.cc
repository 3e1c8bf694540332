// agmmctl tensor load: tensors from a file, by rules.
#include <CLI/App.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/load_report.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "client/files/load_rules.h"
#include "client/files/matrix_transfer.h"
#include "client/files/tensor_file.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

struct LoadFlags {
  std::string file, prefix, dtype, mesh, ranks;
  std::vector<std::string> rules, skip, transpose;
  bool strict = false, list = false;
};

// Refuses a pattern of --transpose that changes no tensor.
absl::Status CheckTransposed(const RuleFlags& flags, const TensorFile& file, const LoadPlan& plan) {
  for (const std::string& pattern : flags.transposed) {
    const bool has_effect = absl::c_any_of(plan.tensors, [&](const PlannedTensor& tensor) {
      return tensor.taken && MatchesGlob(pattern, tensor.stored->name);
    });
    if (has_effect) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "--transpose %s matches no tensor that the rules load from %s; leave it out or change it",
        QuotedName(pattern), file.name()));
  }
  return absl::OkStatus();
}

std::string ContextOf(const TensorFile& file, const PlannedTensor& tensor, absl::string_view what) {
  return absl::StrCat(file.name(), ": tensor ", QuotedName(tensor.stored->name), what);
}

// Returns the uploads of the tensors that the plan takes. Errors name the tensor.
absl::StatusOr<std::vector<v1::BeginUpload>> UploadsOf(const TensorFile& file, const LoadPlan& plan,
                                                       const RuleFlags& flags, const Mesh& mesh) {
  std::vector<v1::BeginUpload> uploads;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.taken) continue;
    const auto tensor = ParseTensor(flags.shardings[planned.rule], mesh, planned.layout.rows,
                                    planned.layout.cols, planned.dtype);
    if (!tensor.ok())
      return Annotate(tensor.status(), ContextOf(file, planned, " cannot be loaded"));
    v1::BeginUpload& begin = uploads.emplace_back();
    begin.mutable_put()->set_name(planned.name);
    *begin.mutable_put()->mutable_spec() = ToProto(mesh, *tensor);
  }
  return uploads;
}

// Uploads the tensors that the plan takes, and adds them to the report.
absl::Status UploadAll(Connection* connection, const TensorFile& file, const LoadPlan& plan,
                       const std::vector<v1::BeginUpload>& uploads, LoadReport* report) {
  const Interrupt interrupt(connection);  // Ctrl-C ends the upload in progress
  ProgressLine line(file.name(), plan.bytes());
  const Progress shown = line.progress();
  int64_t before = 0;
  for (const PlannedTensor& planned : plan.tensors) {
    if (!planned.taken) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Progress progress = {[&](int64_t bytes) { shown.moved(before + bytes); },
                               shown.reconnecting};
    const auto tensor = UploadFile(connection, uploads[report->loaded.size()],
                                   file.Reader(planned.layout), planned.dtype, progress);
    if (!tensor.ok()) {
      std::vector<std::string> names;
      for (const LoadReport::Loaded& each : report->loaded) names.push_back(each.tensor.name());
      const std::string context =
          ContextOf(file, planned,
                    absl::StrFormat(" was not loaded (loaded before it: %s)",
                                    names.empty() ? "none" : NamesText(names)));
      if (absl::IsCancelled(tensor.status()) && !interrupt.happened())  // the daemon is stopping
        return absl::UnavailableError(absl::StrCat(context, ": ", tensor.status().message()));
      const absl::Status error = TransferError(tensor.status(), context);
      return absl::StartsWith(error.message(), context) ? error : Annotate(error, context);
    }
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    report->loaded.push_back({planned.stored->name, *tensor, planned.bytes(), took.count()});
    before += planned.bytes();
  }
  return absl::OkStatus();
}

absl::Status RunLoad(const LoadFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const RuleFlags rules, ParseRules(flags.rules, flags.skip, flags.transpose,
                                                          flags.prefix, flags.dtype));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorFile> file, TensorFile::Open(flags.file));
  const LoadPlan plan = PlanLoad(*file, rules.rules, rules.transposed);
  if (flags.list) {
    PrintResult(options, PlanJson(*file, rules, plan), PlanTable(*file, rules, plan));
    return absl::OkStatus();
  }
  AGMM_RETURN_IF_ERROR(CheckPlan(*file, rules.rules, plan, flags.strict));
  AGMM_RETURN_IF_ERROR(CheckTransposed(rules, *file, plan));
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, MeshOfWorld(connection, flags.mesh, flags.ranks));
  AGMM_ASSIGN_OR_RETURN(const auto uploads, UploadsOf(*file, plan, rules, mesh));
  LoadReport report;
  report.file = file->name();
  for (const PlannedTensor& planned : plan.tensors)
    if (!planned.taken) report.skipped.push_back(planned.stored->name);
  for (const int unused : plan.unused_rules)
    report.unused_patterns.push_back(rules.rules[unused].pattern);
  AGMM_RETURN_IF_ERROR(UploadAll(connection, *file, plan, uploads, &report));
  PrintResult(options, ToJson(report), LoadText(report));
  return absl::OkStatus();
}

// Adds a flag with a pattern, which may be given several times.
CLI::Option* AddPatterns(CLI::App* verb, const std::string& flag,
                         std::vector<std::string>* patterns, const std::string& help) {
  return verb->add_option(flag, *patterns, help)->allow_extra_args(false);
}

}  // namespace

void AddTensorLoad(CLI::App* group, Command* command) {
  auto load = std::make_shared<LoadFlags>();
  CLI::App* verb = group->add_subcommand("load", "Create or rewrite tensors from a file, by rules");
  verb->add_option("FILE", load->file,
                   "A .safetensors file, or an .npy file, whose tensor is named after it")
      ->required();
  AddPatterns(verb, "--rule", &load->rules,
              "PATTERN=SHARDING, such as '*.up_proj.weight=[K, N_x]': loads the tensors whose "
              "names match the glob; may be repeated, and the first that matches counts");
  AddPatterns(verb, "--skip", &load->skip,
              "PATTERN of tensors that are not loaded, whatever the rules say; may be repeated");
  AddPatterns(verb, "--transpose", &load->transpose,
              "PATTERN of tensors that are transposed, as torch's weights (out x in) must be for "
              "a product; the sharding names the transposed order; may be repeated");
  verb->add_option("--prefix", load->prefix, "Text before each name, such as 'llama.'");
  verb->add_option("--dtype", load->dtype,
                   "Type of the tensors' elements: f32, bf16 or f16 (default: the file's)");
  CLI::Option* mesh = verb->add_option("--mesh", load->mesh,
                                       "Axes and their sizes, such as x=4 or dp=2,tp=2 (default: "
                                       "x=<number of ranks>)");
  CLI::Option* ranks = verb->add_option(
      "--ranks", load->ranks,
      "World ranks of the mesh, such as 0-3 or 0,2,4 (default: the first ones; without --mesh, "
      "all ranks of rank 0's kind)");
  CLI::Option* strict = verb->add_flag("--strict", load->strict,
                                       "Load nothing if a tensor has no rule, or a rule no tensor");
  CLI::Option* list = verb->add_flag("--list", load->list,
                                     "List the file's tensors and the rule of each; load nothing");
  command->conflicts.Add(list, {mesh, ranks, strict});
  verb->footer(
      "All tensors are checked before the first is uploaded: F32, F16 and BF16 of at most two "
      "dimensions can be loaded, and one dimension becomes a row. Each tensor is written as by "
      "`tensor put`. If one fails, the error names it and the tensors loaded before, which stay.");
  OnVerb(verb, command, load, RunLoad);
}

}  // namespace agmm
