// agmmctl matmul: multiplies two .npy files and reports the time.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/connection.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/product.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "client/files/matrix_transfer.h"
#include "client/trace/ran_plan.h"
#include "kernels/base/status.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr int kCompareRuns = 5;

struct MatmulFlags {
  std::string a, b, out, spec = kDefaultSpec, mesh, dtype, timeout = "60s";
  PlanOptions options;
  int repeat = 0;  // 0: 1, or kCompareRuns
  bool compare = false, no_tuning = false;
};

// The checked flags, with the files open.
struct Inputs {
  std::unique_ptr<MatrixReader> a, b;
  DType dtype;  // of operands to which the spec gives none
  Shape shape;
  absl::Duration timeout;
  int repeat;
};

absl::StatusOr<Inputs> OpenInputs(const MatmulFlags& flags) {
  Inputs inputs;
  if (flags.a == "-" && flags.b == "-")
    return absl::InvalidArgumentError("standard input has one matrix; name a file for the other");
  if (flags.compare && IsWrittenDirectly(flags.out)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--compare reads the product again, and %s is not a regular file; name "
                        "another --out",
                        flags.out));
  }
  if (flags.compare && flags.repeat == 1) {
    return absl::InvalidArgumentError(
        "--compare needs at least --repeat 2, because the first run of each algorithm warms up");
  }
  AGMM_ASSIGN_OR_RETURN(inputs.a, OpenNpy(flags.a));
  AGMM_ASSIGN_OR_RETURN(inputs.b, OpenNpy(flags.b));
  const MatrixReader &a = *inputs.a, &b = *inputs.b;
  if (a.cols() != b.rows()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %d x %d and %s is %d x %d: the first must have as many columns (%d) as the second "
        "has rows (%d)",
        a.name(), a.rows(), a.cols(), b.name(), b.rows(), b.cols(), a.cols(), b.rows()));
  }
  for (const std::string& input : {flags.a, flags.b}) {
    std::error_code none;  // a file that does not exist yet is another file
    if (std::filesystem::equivalent(input, flags.out, none)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--out %s is the input %s; name another file for the product", flags.out, input));
    }
  }
  if (!absl::StrContains(flags.spec, '*')) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--spec '%s' has no product of two files; give one such as '%s', or use job submit",
        flags.spec, kDefaultSpec));
  }
  inputs.shape = {a.rows(), b.cols(), a.cols()};
  inputs.dtype = a.dtype() == b.dtype() ? a.dtype() : DType::kF32;
  if (!flags.dtype.empty()) {
    AGMM_ASSIGN_OR_RETURN(inputs.dtype, ParseDType(flags.dtype));
  }
  AGMM_ASSIGN_OR_RETURN(inputs.timeout, ParseTimeout(flags.timeout));
  inputs.repeat = flags.repeat > 0 ? flags.repeat : flags.compare ? kCompareRuns : 1;
  if (!flags.mesh.empty()) {
    // An invalid mesh or spec is refused before a daemon is asked.
    AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(flags.mesh));
    AGMM_RETURN_IF_ERROR(ParseProblem(flags.spec, mesh, inputs.shape, inputs.dtype).status());
  }
  return inputs;
}

absl::Status SendFile(Connection* connection, const MatrixReader& file, const v1::Tensor& tensor,
                      DType dtype) {
  ProgressLine line(file.name(), file.rows() * file.cols() * SizeOf(dtype));
  v1::BeginUpload begin;
  begin.set_tensor_id(tensor.tensor_id());
  return TransferError(
      UploadFile(connection, begin, file, dtype, line.progress(), tensor.sequencer()).status(),
      absl::StrCat(file.name(), " was not sent"));
}

// Runs the requested algorithm. With --compare, runs serial, the gather alone and the requested
// algorithm in turn, so that other work on the machine slows down all of them alike. The last C is
// that of the requested algorithm.
absl::Status Measure(ProductRun* product, const MatmulFlags& flags, const Inputs& inputs,
                     MatmulResult* result) {
  const Mesh& mesh = product->problem().mesh;
  const int turns = flags.compare ? inputs.repeat : 1, epochs = inputs.repeat / turns;
  const auto run = [&](const PlanOptions& options) {
    const TerminalLine line = WaitLine("multiply", inputs.timeout);
    return product->Run(options, epochs);
  };
  PartRuns parts;
  for (int turn = 0; turn < turns; ++turn) {
    if (flags.compare) {
      AGMM_ASSIGN_OR_RETURN(const v1::Job unfused, run({"serial"}));
      parts.AddSerial(unfused, mesh);
      if (HasTransfers(unfused)) {
        AGMM_ASSIGN_OR_RETURN(const v1::Job gather, run(GatherAlone()));
        parts.AddTransfers(gather, mesh);
      }
    }
    AGMM_ASSIGN_OR_RETURN(result->job, run(flags.options));
    for (double ms : SlowestRankMs(result->job, mesh)) result->runs_ms.push_back(ms);
  }
  // With --compare, each job has one epoch; otherwise a job reports the times of its last epochs
  // only.
  const int runs = static_cast<int>(result->runs_ms.size());
  result->warm_up_dropped = flags.compare ? runs > 1 : inputs.repeat > 1 && runs == inputs.repeat;
  result->compared = flags.compare;
  const std::vector<double> timed =
      result->warm_up_dropped ? AfterWarmUp(result->runs_ms) : result->runs_ms;
  result->figures = FiguresOf(product->problem(), timed, parts.WithoutWarmUp());
  return absl::OkStatus();
}

// Sends the files, multiplies them and fetches the product.
absl::StatusOr<MatmulResult> MultiplyFiles(Connection* connection, const MatmulFlags& flags,
                                           const Inputs& inputs) {
  // A product that does not fit or cannot be planned is refused before any byte is sent.
  AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection, flags.mesh));
  AGMM_ASSIGN_OR_RETURN(const Problem problem,
                        ParseProblem(flags.spec, site.mesh, inputs.shape, inputs.dtype));
  AGMM_RETURN_IF_ERROR(Plan(problem, site.topology, flags.options).status());
  AGMM_RETURN_IF_ERROR(CheckClosed(problem, flags.spec));
  const DType out_dtype = FileDType(problem.tensors[kC].dtype);
  AGMM_ASSIGN_OR_RETURN(
      const std::unique_ptr<NpyWriter> out,
      NpyWriter::Create(flags.out, ShapeOf(problem).m, ShapeOf(problem).n, out_dtype));
  AGMM_ASSIGN_OR_RETURN(const std::string session, connection->OpenSession("agmmctl matmul"));
  ProductRun product(connection, session, flags.spec, problem, inputs.timeout, flags.no_tuning);
  AGMM_RETURN_IF_ERROR(product.Create());
  AGMM_RETURN_IF_ERROR(
      SendFile(connection, *inputs.a, product.tensor(kA), problem.tensors[kA].dtype));
  AGMM_RETURN_IF_ERROR(
      SendFile(connection, *inputs.b, product.tensor(kB), problem.tensors[kB].dtype));

  MatmulResult result;
  AGMM_RETURN_IF_ERROR(Measure(&product, flags, inputs, &result));
  const absl::StatusOr<Schedule> schedule = PlanAgain(problem, site.topology, result.job);
  result.plan_agrees = schedule.ok();
  result.algorithm = schedule.ok() ? schedule->algorithm : result.job.options().algorithm();
  AGMM_RETURN_IF_ERROR(FetchFile(connection, product.tensor(kC), flags.out, out.get()).status());
  result.non_finite = out->non_finite();
  if (flags.compare) {
    AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> c, OpenNpy(flags.out));
    AGMM_ASSIGN_OR_RETURN(result.error, SampledError(*inputs.a, *inputs.b, *c));
  }
  result.problem = problem;
  result.shared_host = SharesHost(site);
  result.out = flags.out;
  result.out_dtype = out_dtype;
  return result;
}

absl::Status RunMatmul(const MatmulFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(flags));
  const Interrupt interrupt(connection);
  AGMM_ASSIGN_OR_RETURN(const MatmulResult result, MultiplyFiles(connection, flags, inputs));
  PrintResult(options, ToJson(result), MatmulText(result), flags.out);
  return absl::OkStatus();
}

}  // namespace

void AddMatmul(CLI::App* app, Command* command) {
  auto flags = std::make_shared<MatmulFlags>();
  CLI::App* verb =
      app->add_subcommand("matmul", "Multiply two .npy matrices on the devices of the world");
  verb->add_option("A", flags->a,
                   "The left matrix, M x K: an .npy file of f32 or f16; - is standard input")
      ->required();
  verb->add_option("B", flags->b, "The right matrix, K x N: an .npy file of f32 or f16")
      ->required();
  verb->add_option("--out", flags->out,
                   "The .npy file for the product; bf16 is written as f32; - is standard output")
      ->required();
  verb->add_option("--spec", flags->spec, kSpecHelp)->capture_default_str();
  verb->add_option("--mesh", flags->mesh, kMeshHelp);
  verb->add_option(
      "--dtype", flags->dtype,
      "Type of the operands to which --spec gives none: f32, bf16 or f16 (default: the "
      "files', or f32 if they differ)");
  AddPlanOptions(verb, &flags->options);
  AddNoTuning(verb, &flags->no_tuning);
  verb->add_option("--repeat", flags->repeat,
                   "Number of runs; the first warms up (default: 1; with --compare, 5 of each "
                   "algorithm)")
      ->check(CLI::Range(1, kMaxRepeat));
  verb->add_option("--timeout", flags->timeout, kJobTimeoutHelp)->capture_default_str();
  verb->add_flag("--compare", flags->compare,
                 "Compare with the unfused product, and with f64 on a sample of C");
  OnVerb(verb, command, flags, RunMatmul);
}

}  // namespace agmm
