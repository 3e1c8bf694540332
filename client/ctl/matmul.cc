// agmmctl matmul: two .npy files in, their product out, and what it took.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <filesystem>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/product.h"
#include "client/ctl/progress_bar.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/wait_line.h"
#include "client/ctl/world.h"
#include "client/npy_transfer.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// With the first of each, which warms up.
constexpr int kCompareRuns = 5, kFewestCompareRuns = 2;

struct MatmulFlags {
  std::string a, b, out, spec = kDefaultSpec, mesh, dtype, timeout = "60s";
  PlanOptions options;
  int repeat = 0;  // 0: 1, or kCompareRuns
  bool compare = false;
};

// The flags, checked, with their files open.
struct Inputs {
  std::unique_ptr<NpyReader> a, b;
  DType dtype;
  Shape shape;
  absl::Duration timeout;
  int repeat;
};

absl::StatusOr<Inputs> OpenInputs(const MatmulFlags& flags) {
  Inputs inputs;
  AGMM_ASSIGN_OR_RETURN(inputs.a, NpyReader::Open(flags.a));
  AGMM_ASSIGN_OR_RETURN(inputs.b, NpyReader::Open(flags.b));
  const NpyReader &a = *inputs.a, &b = *inputs.b;
  if (a.cols() != b.rows()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %d x %d and %s is %d x %d: the columns of the first (%d) must be as many as the "
        "rows of the "
        "second (%d)",
        flags.a, a.rows(), a.cols(), flags.b, b.rows(), b.cols(), a.cols(), b.rows()));
  }
  for (const std::string& input : {flags.a, flags.b}) {
    std::error_code none;  // not there yet: not the same
    if (std::filesystem::equivalent(input, flags.out, none)) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--out %s is the input %s; name another file for the product", flags.out, input));
    }
  }
  inputs.shape = {a.rows(), b.cols(), a.cols()};
  inputs.dtype = a.dtype() == b.dtype() ? a.dtype() : DType::kF32;
  if (!flags.dtype.empty()) {
    AGMM_ASSIGN_OR_RETURN(inputs.dtype, ParseDType(flags.dtype));
  }
  AGMM_ASSIGN_OR_RETURN(inputs.timeout, ParseTimeout(flags.timeout));
  inputs.repeat = flags.repeat > 0 ? flags.repeat : flags.compare ? kCompareRuns : 1;
  if (flags.compare) inputs.repeat = std::max(inputs.repeat, kFewestCompareRuns);
  if (!flags.mesh.empty()) {
    // What means nothing is refused before a daemon is asked.
    AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(flags.mesh));
    AGMM_RETURN_IF_ERROR(ParseProblem(flags.spec, mesh, inputs.shape, inputs.dtype).status());
  }
  return inputs;
}

// Sends the files, multiplies, and fetches the product.
class Matmul {
 public:
  Matmul(Connection* connection, const MatmulFlags& flags, const Inputs& inputs)
      : connection_(connection), flags_(flags), inputs_(inputs) {}

  absl::StatusOr<MatmulResult> Run() {
    // What the world cannot hold or nobody can plan is refused before any byte is sent.
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, flags_.mesh));
    AGMM_ASSIGN_OR_RETURN(const Problem problem,
                          ParseProblem(flags_.spec, site.mesh, inputs_.shape, inputs_.dtype));
    AGMM_RETURN_IF_ERROR(Plan(problem, site.topology, flags_.options).status());
    const DType out_dtype = FileDType(inputs_.dtype);
    AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> out,
                          NpyWriter::Create(flags_.out, problem.m(), problem.n(), out_dtype));
    AGMM_ASSIGN_OR_RETURN(const std::string session, connection_->OpenSession());
    Product product(connection_, session, flags_.spec, problem, site.topology, inputs_.timeout);
    AGMM_RETURN_IF_ERROR(product.Create());
    AGMM_RETURN_IF_ERROR(Send(*inputs_.a, flags_.a, product.tensor(kA)));
    AGMM_RETURN_IF_ERROR(Send(*inputs_.b, flags_.b, product.tensor(kB)));

    MatmulResult result;
    AGMM_RETURN_IF_ERROR(flags_.compare ? RunCompared(&product, &result)
                                        : RunAlone(&product, &result));
    AGMM_ASSIGN_OR_RETURN(const Schedule schedule, product.PlanOf(result.job));
    result.plan_agrees = product.Agrees(result.job, schedule);
    result.algorithm = result.plan_agrees ? schedule.algorithm : result.job.options().algorithm();
    AGMM_RETURN_IF_ERROR(Fetch(product.tensor(kC), out.get()));
    result.problem = problem;
    result.shared_host = SharesHost(site);
    result.out = flags_.out;
    result.out_dtype = out_dtype;
    return result;
  }

 private:
  absl::Status Send(const NpyReader& file, const std::string& path, const v1::Tensor& tensor) {
    ProgressBar bar(path, file.rows() * file.cols() * SizeOf(inputs_.dtype));
    v1::BeginUpload begin;
    begin.set_tensor_id(tensor.tensor_id());
    return TransferError(
        UploadFile(connection_, begin, file, inputs_.dtype, bar.progress(), tensor.sequencer())
            .status(),
        absl::StrCat(path, " did not arrive"));
  }

  absl::Status Fetch(const v1::Tensor& tensor, NpyWriter* out) {
    ProgressBar bar(flags_.out,
                    tensor.spec().rows() * tensor.spec().cols() * SizeOf(inputs_.dtype));
    v1::TensorRef c;
    c.set_tensor_id(tensor.tensor_id());
    AGMM_RETURN_IF_ERROR(TransferError(
        DownloadFile(connection_, c, out, bar.progress(), tensor.sequencer()).status(),
        absl::StrCat(flags_.out, " is not written")));
    return out->Commit();
  }

  absl::StatusOr<v1::Job> RunJob(Product* product, const PlanOptions& options, int repeat) {
    const WaitLine line("multiply", inputs_.timeout);
    return product->Run(options, repeat);
  }

  absl::Status RunAlone(Product* product, MatmulResult* result) {
    AGMM_ASSIGN_OR_RETURN(result->job, RunJob(product, flags_.options, inputs_.repeat));
    result->runs_ms = SlowestRankMs(result->job, product->problem().mesh);
    result->warm_up_dropped =
        inputs_.repeat > 1 && static_cast<int>(result->runs_ms.size()) == inputs_.repeat;
    result->time_ms =
        Median(result->warm_up_dropped ? AfterWarmUp(result->runs_ms) : result->runs_ms);
    return absl::OkStatus();
  }

  // Serial and fused in turn, so that what the machine does besides meets both; the last C is the
  // fused one.
  absl::Status RunCompared(Product* product, MatmulResult* result) {
    const Mesh& mesh = product->problem().mesh;
    SerialRuns serial;
    for (int run = 0; run < inputs_.repeat; ++run) {
      AGMM_ASSIGN_OR_RETURN(const v1::Job unfused, RunJob(product, {"serial"}, 1));
      serial.Add(unfused, mesh);
      AGMM_ASSIGN_OR_RETURN(result->job, RunJob(product, flags_.options, 1));
      const std::vector<double> fused_ms = SlowestRankMs(result->job, mesh);
      result->runs_ms.insert(result->runs_ms.end(), fused_ms.begin(), fused_ms.end());
    }
    result->warm_up_dropped = result->runs_ms.size() > 1;
    result->time_ms = Median(AfterWarmUp(result->runs_ms));
    result->comparison =
        Compare(result->time_ms, Median(AfterWarmUp(serial.unfused_ms)),
                {Median(AfterWarmUp(serial.gemm_ms)), Median(AfterWarmUp(serial.gather_ms))});
    return absl::OkStatus();
  }

  Connection* const connection_;
  const MatmulFlags& flags_;
  const Inputs& inputs_;
};

absl::Status RunMatmul(const MatmulFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const Inputs inputs, OpenInputs(flags));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  const Interrupt interrupt([&] { connection->Interrupt(); });
  AGMM_ASSIGN_OR_RETURN(const MatmulResult result, Matmul(connection.get(), flags, inputs).Run());
  if (options.json)
    std::cout << JsonLine(ToJson(result));
  else
    PrintForPeople(result);
  return absl::OkStatus();
}

}  // namespace

void AddMatmul(CLI::App& app, const Options& options, Action* action) {
  auto flags = std::make_shared<MatmulFlags>();
  CLI::App* verb =
      app.add_subcommand("matmul", "Multiply two .npy matrices on the world's devices");
  verb->add_option("A", flags->a, "The left matrix, M x K, f32 or f16")->required();
  verb->add_option("B", flags->b, "The right matrix, K x N")->required();
  verb->add_option("--out", flags->out, "Where the product goes (bf16 is written as f32)")
      ->required();
  verb->add_option("--spec", flags->spec, "The product and its shardings")->capture_default_str();
  verb->add_option("--mesh", flags->mesh,
                   "Axes over the ranks, such as x=4 (default: x=<all ranks>)");
  verb->add_option("--dtype", flags->dtype, "f32, bf16 or f16 (default: the files')");
  AddPlanOptions(verb, &flags->options);
  verb->add_option("--repeat", flags->repeat,
                   "Runs (default: 1; with --compare 5 of each, at least 2)")
      ->check(CLI::Range(1, kMaxRepeat));
  verb->add_option("--timeout", flags->timeout, "For each job, from admission to its end")
      ->capture_default_str();
  verb->add_flag("--compare", flags->compare, "Run the unfused product, too, in turn, and compare");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunMatmul(*flags, options); };
  });
}

}  // namespace agmm
