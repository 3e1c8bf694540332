#include "client/ctl/product.h"

#include <regex>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connect/job_watch.h"
#include "client/connect/tensor_transfer.h"
#include "client/ctl/arguments.h"
#include "client/ctl/ready_world.h"
#include "kernels/base/checksum.h"
#include "kernels/base/deadline.h"
#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

std::string HostOf(const v1::NodeStatus& node) {
  return node.address().substr(0, node.address().rfind(':'));
}

// "K_x", or "K" without axes.
std::string DimensionText(const Mesh& mesh, const std::string& name, const std::vector<int>& axes) {
  return axes.empty() ? name : absl::StrCat(name, "_", AxesText(mesh, axes));
}

// Returns the product whose result is `tensor` with its sum open: a dimension of one element a part
// is summed.
std::string OpenProductSpec(const Mesh& mesh, const Tensor& tensor) {
  const Sharding& sharding = tensor.sharding;
  const std::string rows = DimensionText(mesh, "M", sharding.rows),
                    cols = DimensionText(mesh, "N", sharding.cols),
                    open = AxesText(mesh, sharding.open);
  return absl::StrFormat("P[%s, K_%s] * Q[K_%s, %s] -> R[%s, %s]{U_%s}", rows, open, open, cols,
                         rows, cols, open);
}

std::string NewRequestId() { return absl::StrCat("agmmctl-", RandomHex(kIdBytes)); }

}  // namespace

absl::Status CheckClosed(const Problem& problem, const std::string& spec) {
  for (const Tensor& tensor : problem.tensors) {
    if (OpenParts(problem.mesh, tensor) == 1) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "--spec '%s' leaves the sum of %s open, but clients cannot write or read such a tensor; "
        "remove {U_...} from it",
        spec, tensor.name));
  }
  return absl::OkStatus();
}

absl::StatusOr<Site> FindSite(Connection* connection, const std::string& mesh) {
  Site site;
  AGMM_ASSIGN_OR_RETURN(site.status, ReadyWorld(connection));
  const Topology world = TopologyOfWorld(site.status);
  const std::vector<int> ranks = RanksOfFirstKind(site.status);
  AGMM_ASSIGN_OR_RETURN(site.mesh, MeshOfFlags(mesh, /*ranks=*/"", ranks));
  if (site.mesh.size() > static_cast<int>(ranks.size())) {
    return absl::InvalidArgumentError(
        absl::StrFormat("mesh %s needs %s and the world has %d%s; use a smaller --mesh",
                        site.mesh.ToString(), Counted(site.mesh.size(), "rank"), ranks.size(),
                        ranks.size() < world.node_of_rank.size() ? " of rank 0's kind" : ""));
  }
  for (int rank : site.mesh.ranks) {
    site.topology.node_of_rank.push_back(world.node_of_rank[rank]);
    site.topology.island_of_rank.push_back(world.island_of_rank[rank]);
  }
  return site;
}

bool TakesPart(const Mesh& mesh, const v1::DeviceStatus& device) {
  return absl::c_linear_search(mesh.ranks, device.rank());
}

bool SharesHost(const Site& site) {
  std::vector<std::string> hosts;
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      if (TakesPart(site.mesh, device) && device.kind() == "cpu") hosts.push_back(HostOf(node));
    }
  }
  absl::c_sort(hosts);
  return absl::c_adjacent_find(hosts) != hosts.end();
}

absl::Status CheckRoom(const Site& site, const Problem& problem, int64_t workspace_bytes) {
  int64_t tensor_bytes = 0;
  for (const Tensor& tensor : problem.tensors) tensor_bytes += ShardBytes(problem.mesh, tensor);
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      // Workspaces of idle plans count as free, because idle plans release them.
      const int64_t free = device.heap_free_bytes() + device.workspace_bytes();
      if (!TakesPart(site.mesh, device) || tensor_bytes + workspace_bytes <= free) continue;
      return absl::ResourceExhaustedError(
          absl::StrFormat("tensors of %s and a workspace of %s are needed on each rank, and rank "
                          "%d has %s free of %s; delete tensors, or configure larger heaps",
                          FormatBytes(tensor_bytes), FormatBytes(workspace_bytes), device.rank(),
                          FormatBytes(free), FormatBytes(device.heap_bytes())));
    }
  }
  return absl::OkStatus();
}

v1::SubmitJobRequest RequestJob(const std::string& spec, const PlanOptions& options, int repeat,
                                absl::Duration timeout, bool ignore_tuning) {
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_spec(spec);
  *request.mutable_options() = ToProto(options);
  request.set_repeat_count(repeat);
  *request.mutable_timeout() = ToProto(timeout);
  request.set_ignore_tuning(ignore_tuning);
  return request;
}

absl::Status NamedOutcomeOf(const v1::Job& job) { return NamingJob(OutcomeOf(job), job.job_id()); }

absl::Status NamingJob(const absl::Status& error, uint64_t job) {
  const std::regex name(absl::StrCat("\\bjob ", job, "\\b"));
  if (std::regex_search(std::string(error.message()), name)) return error;
  return Annotate(error, absl::StrCat("job ", job));
}

ProductRun::ProductRun(Connection* connection, std::string session, std::string spec,
                       Problem problem, absl::Duration timeout, bool ignore_tuning)
    : connection_(connection),
      session_(std::move(session)),
      spec_(std::move(spec)),
      problem_(std::move(problem)),
      timeout_(timeout),
      ignore_tuning_(ignore_tuning) {}

absl::Status ProductRun::Create() {
  for (const Tensor& tensor : problem_.tensors) {
    if (const auto used = used_.find(static_cast<Operand>(tensors_.size())); used != used_.end()) {
      tensors_.push_back(used->second);
      continue;
    }
    v1::CreateTensorRequest request;
    *request.mutable_spec() = ToProto(problem_.mesh, tensor);
    request.set_session_id(session_);
    request.set_request_id(NewRequestId());
    AGMM_ASSIGN_OR_RETURN(v1::Tensor created, connection_->CreateTensor(request));
    tensors_.push_back(std::move(created));
  }
  return absl::OkStatus();
}

absl::Status ProductRun::Delete() {
  for (; !tensors_.empty(); tensors_.pop_back()) {
    if (used_.count(static_cast<Operand>(tensors_.size()) - 1) > 0) continue;
    AGMM_RETURN_IF_ERROR(connection_->DeleteTensor(IdOf(tensors_.back())));
  }
  return absl::OkStatus();
}

absl::Status ProductRun::FillInputs() {
  uint64_t seed = 0;
  for (const Operand input : problem_.Inputs()) {
    if (OpenParts(problem_.mesh, problem_.tensors[input]) > 1) {
      AGMM_RETURN_IF_ERROR(FillOpen(input));
      continue;
    }
    v1::Fill fill;
    fill.set_kind(v1::Fill::KIND_INTEGERS);
    fill.set_seed(++seed);
    AGMM_RETURN_IF_ERROR(FillOperand(connection_, tensors_[input], fill));
  }
  return absl::OkStatus();
}

absl::Status ProductRun::FillOpen(Operand input) {
  const Tensor& tensor = problem_.tensors[input];
  const std::string spec = OpenProductSpec(problem_.mesh, tensor);
  AGMM_ASSIGN_OR_RETURN(
      Problem product,
      ParseProblem(spec, problem_.mesh,
                   {tensor.rows, tensor.cols, OpenParts(problem_.mesh, tensor)}, tensor.dtype));
  ProductRun run(connection_, session_, spec, std::move(product), timeout_, ignore_tuning_);
  run.Use(kC, tensors_[input]);
  AGMM_RETURN_IF_ERROR(run.Create());
  AGMM_RETURN_IF_ERROR(run.FillInputs());
  AGMM_RETURN_IF_ERROR(run.Run({}, 1).status());
  return run.Delete();
}

absl::StatusOr<v1::Job> ProductRun::Run(const PlanOptions& options, int repeat) {
  v1::SubmitJobRequest request = RequestJob(spec_, options, repeat, timeout_, ignore_tuning_);
  *request.mutable_mesh() = ToProto(problem_.mesh);
  for (const v1::Tensor& tensor : tensors_)
    request.add_tensors()->set_tensor_id(tensor.tensor_id());
  request.set_session_id(session_);
  AGMM_ASSIGN_OR_RETURN(const v1::Job submitted,
                        connection_->SubmitJob(request, kPlacingCall, tensors_[kA].sequencer()));
  const absl::StatusOr<v1::Job> job =
      connection_->WaitJob(IdOf(submitted), Deadline::After(timeout_ + kDaemonGrace));
  if (!job.ok()) {
    // Cancels the job after Ctrl-C, or if the daemon is slow to answer. The first error counts; a
    // job that this call cannot cancel is cancelled when the session ends.
    if (!absl::IsUnavailable(job.status())) connection_->CancelJob(IdOf(submitted)).IgnoreError();
    return job.status();
  }
  AGMM_RETURN_IF_ERROR(NamedOutcomeOf(*job));
  return job;
}

absl::Status FillOperand(Connection* connection, const v1::Tensor& tensor, const v1::Fill& fill) {
  v1::FillTensorRequest request;
  request.set_tensor_id(tensor.tensor_id());
  *request.mutable_fill() = fill;
  return TransferError(connection->FillTensor(request).status(), "an operand was not filled");
}

absl::StatusOr<uint64_t> TensorChecksum(Connection* connection, const v1::Tensor& tensor,
                                        const std::string& what) {
  v1::TensorRef ref;
  ref.set_tensor_id(tensor.tensor_id());
  Checksum checksum;
  const WriteFn add = [&](const v1::Tensor&, int64_t, absl::string_view data) {
    checksum.Add(data);
    return absl::OkStatus();
  };
  const absl::StatusOr<v1::Tensor> got =
      Download(connection, ref, add, {[](int64_t) {}}, {}, tensor.sequencer());
  AGMM_RETURN_IF_ERROR(TransferError(got.status(), what));
  return checksum.value();
}

}  // namespace agmm
