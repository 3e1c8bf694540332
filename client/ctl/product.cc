#include "client/ctl/product.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/ctl/job_wait.h"
#include "client/ctl/world.h"
#include "kernels/base/hash.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/problem.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

std::string HostOf(const v1::NodeStatus& node) {
  return node.address().substr(0, node.address().rfind(':'));
}

bool TakesPart(const Mesh& mesh, const v1::DeviceStatus& device) {
  return std::find(mesh.ranks.begin(), mesh.ranks.end(), device.rank()) != mesh.ranks.end();
}

std::string NewRequestId() { return absl::StrCat("agmmctl-", RandomHex(kIdBytes)); }

}  // namespace

absl::StatusOr<Site> FindSite(Connection* connection, const std::string& mesh) {
  Site site;
  AGMM_ASSIGN_OR_RETURN(site.status, ReadyWorld(connection));
  const std::vector<int> nodes = NodesOfWorld(site.status);
  const std::string text = mesh.empty() ? absl::StrCat("x=", nodes.size()) : mesh;
  AGMM_ASSIGN_OR_RETURN(site.mesh, ParseMesh(text));
  if (site.mesh.size() > static_cast<int>(nodes.size())) {
    return absl::InvalidArgumentError(absl::StrFormat("mesh %s needs %d ranks and the world has %d",
                                                      text, site.mesh.size(), nodes.size()));
  }
  for (int rank : site.mesh.ranks) site.topology.node_of_rank.push_back(nodes[rank]);
  return site;
}

bool SharesHost(const Site& site) {
  std::vector<std::string> hosts;
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      if (TakesPart(site.mesh, device) && device.kind() == "cpu") hosts.push_back(HostOf(node));
    }
  }
  std::sort(hosts.begin(), hosts.end());
  return std::adjacent_find(hosts.begin(), hosts.end()) != hosts.end();
}

absl::Status CheckRoom(const Site& site, const Problem& problem, int64_t workspace_bytes) {
  int64_t tensor_bytes = 0;
  for (const Tensor& tensor : problem.tensors) tensor_bytes += ShardBytes(problem.mesh, tensor);
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      // What no plan uses now counts as a workspace and makes room.
      const int64_t free = device.heap_free_bytes() + device.workspace_bytes();
      if (!TakesPart(site.mesh, device) || tensor_bytes + workspace_bytes <= free) continue;
      return absl::ResourceExhaustedError(
          absl::StrFormat("tensors of %s and a workspace of %s are needed on each rank, and rank "
                          "%d has %s free of %s",
                          FormatBytes(tensor_bytes), FormatBytes(workspace_bytes), device.rank(),
                          FormatBytes(free), FormatBytes(device.heap_bytes())));
    }
  }
  return absl::OkStatus();
}

Product::Product(Connection* connection, std::string session, std::string spec, Problem problem,
                 Topology topology, absl::Duration timeout)
    : connection_(connection),
      session_(std::move(session)),
      spec_(std::move(spec)),
      problem_(std::move(problem)),
      topology_(std::move(topology)),
      timeout_(timeout) {}

absl::Status Product::Create() {
  for (const Tensor& tensor : problem_.tensors) {
    v1::CreateTensorRequest request;
    *request.mutable_spec() = ToProto(problem_.mesh, tensor);
    request.set_session_id(session_);
    request.set_request_id(NewRequestId());
    AGMM_ASSIGN_OR_RETURN(v1::Tensor created, connection_->CreateTensor(request));
    tensors_.push_back(std::move(created));
  }
  return absl::OkStatus();
}

absl::Status Product::Delete() {
  for (; !tensors_.empty(); tensors_.pop_back())
    AGMM_RETURN_IF_ERROR(connection_->DeleteTensor(IdOf(tensors_.back())));
  return absl::OkStatus();
}

absl::StatusOr<v1::Job> Product::Run(const PlanOptions& options, int repeat) {
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_spec(spec_);
  *request.mutable_mesh() = ToProto(problem_.mesh);
  for (const v1::Tensor& tensor : tensors_)
    request.add_tensors()->set_tensor_id(tensor.tensor_id());
  *request.mutable_options() = ToProto(options);
  request.set_repeat_count(repeat);
  *request.mutable_timeout() = ToProto(timeout_);
  request.set_session_id(session_);
  AGMM_ASSIGN_OR_RETURN(const v1::Job submitted,
                        connection_->SubmitJob(request, kPlacingCall, tensors_[kA].sequencer()));
  const absl::StatusOr<v1::Job> job =
      connection_->WaitJob(IdOf(submitted), absl::Now() + timeout_ + kDaemonGrace);
  if (!job.ok()) {
    // Ctrl-C, or a daemon that is slow to answer: nobody waits for the job any more. The first
    // error is the one to tell, and the end of the session cancels what this call cannot.
    if (!absl::IsUnavailable(job.status())) connection_->CancelJob(IdOf(submitted)).IgnoreError();
    return job.status();
  }
  AGMM_RETURN_IF_ERROR(OutcomeOf(*job, timeout_));
  return job;
}

absl::StatusOr<Schedule> Product::PlanOf(const v1::Job& job) const {
  AGMM_ASSIGN_OR_RETURN(const PlanOptions options, FromProto(job.options()));
  return Plan(problem_, topology_, options);
}

bool Product::Agrees(const v1::Job& job, const Schedule& schedule) const {
  return HashHex(PlanHash(problem_, schedule)) == job.plan_hash();
}

}  // namespace agmm
