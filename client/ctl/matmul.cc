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
#include "client/ctl/job_wait.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/messages.h"
#include "client/ctl/progress_bar.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "client/npy_transfer.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/problem.h"

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

std::string HostOf(const v1::NodeStatus& node) {
  return node.address().substr(0, node.address().rfind(':'));
}

// True when two CPU devices of the mesh are on one host: on one node, or on nodes of one address.
bool SharesHost(const v1::GetStatusResponse& status, const Mesh& mesh) {
  std::vector<std::string> hosts;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      const bool takes_part =
          std::find(mesh.ranks.begin(), mesh.ranks.end(), device.rank()) != mesh.ranks.end();
      if (takes_part && device.kind() == "cpu") hosts.push_back(HostOf(node));
    }
  }
  std::sort(hosts.begin(), hosts.end());
  return std::adjacent_find(hosts.begin(), hosts.end()) != hosts.end();
}

// One product on a connected world: its tensors, and the jobs on them.
class Matmul {
 public:
  Matmul(Connection* connection, const MatmulFlags& flags, const Inputs& inputs)
      : connection_(connection), flags_(flags), inputs_(inputs) {}

  absl::StatusOr<MatmulResult> Run() {
    AGMM_RETURN_IF_ERROR(MeetWorld());
    const DType out_dtype = FileDType(inputs_.dtype);
    AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<NpyWriter> out,
                          NpyWriter::Create(flags_.out, problem_.m(), problem_.n(), out_dtype));
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession());
    for (const Tensor& tensor : problem_.tensors) AGMM_RETURN_IF_ERROR(Create(tensor));
    AGMM_RETURN_IF_ERROR(Send(*inputs_.a, flags_.a, tensors_[kA]));
    AGMM_RETURN_IF_ERROR(Send(*inputs_.b, flags_.b, tensors_[kB]));

    MatmulResult result;
    AGMM_RETURN_IF_ERROR(flags_.compare ? RunCompared(&result) : RunAlone(&result));
    AGMM_ASSIGN_OR_RETURN(const Schedule schedule, PlanOf(result.job));
    result.plan_agrees = Agrees(result.job, schedule);
    result.algorithm = result.plan_agrees ? schedule.algorithm : result.job.options().algorithm();

    ProgressBar bar(flags_.out, problem_.m() * problem_.n() * SizeOf(inputs_.dtype));
    v1::TensorRef c;
    c.set_tensor_id(tensors_[kC].tensor_id());
    AGMM_RETURN_IF_ERROR(
        TransferError(DownloadFile(connection_, c, out.get(), bar.progress(), tensors_[kC].sequencer()).status(),
                      absl::StrCat(flags_.out, " is not written")));
    AGMM_RETURN_IF_ERROR(out->Commit());
    result.problem = problem_;
    result.shared_host = SharesHost(status_, problem_.mesh);
    result.out = flags_.out;
    result.out_dtype = out_dtype;
    return result;
  }

 private:
  // Learns the world, and refuses what it cannot hold or nobody can plan before any byte is sent.
  absl::Status MeetWorld() {
    AGMM_ASSIGN_OR_RETURN(status_, ReadyWorld(connection_));
    const std::vector<int> nodes = NodesOfWorld(status_);
    const std::string text = flags_.mesh.empty() ? absl::StrCat("x=", nodes.size()) : flags_.mesh;
    AGMM_ASSIGN_OR_RETURN(const Mesh mesh, ParseMesh(text));
    if (mesh.size() > static_cast<int>(nodes.size())) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "mesh %s needs %d ranks and the world has %d", text, mesh.size(), nodes.size()));
    }
    for (int rank : mesh.ranks) topology_.node_of_rank.push_back(nodes[rank]);
    AGMM_ASSIGN_OR_RETURN(problem_, ParseProblem(flags_.spec, mesh, inputs_.shape, inputs_.dtype));
    return Plan(problem_, topology_, flags_.options).status();
  }

  absl::Status Create(const Tensor& tensor) {
    v1::CreateTensorRequest request;
    *request.mutable_spec() = ToProto(problem_.mesh, tensor);
    request.set_session_id(session_);
    request.set_request_id(NextRequestId());
    AGMM_ASSIGN_OR_RETURN(v1::Tensor created, connection_->CreateTensor(request));
    tensors_.push_back(std::move(created));
    return absl::OkStatus();
  }

  absl::Status Send(const NpyReader& file, const std::string& path, const v1::Tensor& tensor) {
    ProgressBar bar(path, file.rows() * file.cols() * SizeOf(inputs_.dtype));
    v1::BeginUpload begin;
    begin.set_tensor_id(tensor.tensor_id());
    return TransferError(
        UploadFile(connection_, begin, file, inputs_.dtype, bar.progress(), tensor.sequencer()).status(),
        absl::StrCat(path, " did not arrive"));
  }

  // Runs a job to its end; a job that did not succeed is an error.
  absl::StatusOr<v1::Job> RunJob(const PlanOptions& options, int repeat) {
    v1::SubmitJobRequest request;
    request.set_request_id(NextRequestId());
    request.set_spec(flags_.spec);
    *request.mutable_mesh() = ToProto(problem_.mesh);
    for (const v1::Tensor& tensor : tensors_)
      request.add_tensors()->set_tensor_id(tensor.tensor_id());
    *request.mutable_options() = ToProto(options);
    request.set_repeat_count(repeat);
    *request.mutable_timeout() = ToProto(inputs_.timeout);
    request.set_session_id(session_);
    AGMM_ASSIGN_OR_RETURN(const v1::Job submitted, connection_->SubmitJob(
                                                       request, kPlacingCall, tensors_[kA].sequencer()));
    const absl::StatusOr<v1::Job> job =
        AwaitJob(connection_, IdOf(submitted), /*after_event=*/0, inputs_.timeout, nullptr);
    if (!job.ok()) {
      // Ctrl-C, or a daemon that is slow to answer: nobody waits for the job any more. The first
      // error is the one to tell, and the end of the session cancels what this call cannot.
      if (!absl::IsUnavailable(job.status()))
        connection_->CancelJob(IdOf(submitted)).IgnoreError();
      return job.status();
    }
    AGMM_RETURN_IF_ERROR(OutcomeOf(*job, inputs_.timeout));
    return job;
  }

  absl::Status RunAlone(MatmulResult* result) {
    AGMM_ASSIGN_OR_RETURN(result->job, RunJob(flags_.options, inputs_.repeat));
    result->runs_ms = SlowestRankMs(result->job, problem_.mesh);
    result->warm_up_dropped =
        inputs_.repeat > 1 && static_cast<int>(result->runs_ms.size()) == inputs_.repeat;
    result->time_ms =
        Median(result->warm_up_dropped ? AfterWarmUp(result->runs_ms) : result->runs_ms);
    return absl::OkStatus();
  }

  // Serial and fused in turn, so that what the machine does besides meets both; the last C is the
  // fused one.
  absl::Status RunCompared(MatmulResult* result) {
    std::vector<double> unfused_ms, gemm_ms, gather_ms;
    for (int run = 0; run < inputs_.repeat; ++run) {
      AGMM_ASSIGN_OR_RETURN(const v1::Job serial, RunJob({"serial"}, 1));
      Append(SlowestRankMs(serial, problem_.mesh), &unfused_ms);
      const v1::JobFigures& parts = serial.figures();
      if (parts.gemm_us() > 0) gemm_ms.push_back(parts.gemm_us() / 1000);
      if (parts.gather_us() > 0) gather_ms.push_back(parts.gather_us() / 1000);
      AGMM_ASSIGN_OR_RETURN(result->job, RunJob(flags_.options, 1));
      Append(SlowestRankMs(result->job, problem_.mesh), &result->runs_ms);
    }
    result->warm_up_dropped = result->runs_ms.size() > 1;
    result->time_ms = Median(AfterWarmUp(result->runs_ms));
    result->comparison = Compare(result->time_ms, Median(AfterWarmUp(unfused_ms)),
                                 {Median(AfterWarmUp(gemm_ms)), Median(AfterWarmUp(gather_ms))});
    return absl::OkStatus();
  }

  static void Append(const std::vector<double>& from, std::vector<double>* to) {
    to->insert(to->end(), from.begin(), from.end());
  }

  // What the job's concrete options mean, planned here.
  absl::StatusOr<Schedule> PlanOf(const v1::Job& job) const {
    AGMM_ASSIGN_OR_RETURN(const PlanOptions options, FromProto(job.options()));
    return Plan(problem_, topology_, options);
  }

  bool Agrees(const v1::Job& job, const Schedule& schedule) const {
    return HashHex(PlanHash(problem_, schedule)) == job.plan_hash();
  }

  std::string NextRequestId() { return absl::StrCat(session_, "-", ++requests_); }

  Connection* const connection_;
  const MatmulFlags& flags_;
  const Inputs& inputs_;
  v1::GetStatusResponse status_;
  Topology topology_;
  Problem problem_;
  std::string session_;
  std::vector<v1::Tensor> tensors_;
  int requests_ = 0;
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
  verb->add_option("--repeat", flags->repeat, "Runs (default: 1; with --compare 5 of each, at least 2)")
      ->check(CLI::Range(1, kMaxRepeat));
  verb->add_option("--timeout", flags->timeout, "For each job, from admission to its end")
      ->capture_default_str();
  verb->add_flag("--compare", flags->compare, "Run the unfused product, too, in turn, and compare");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunMatmul(*flags, options); };
  });
}

}  // namespace agmm
