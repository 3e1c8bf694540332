#include "client/library/to_public.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/connect/job_watch.h"
#include "client/connect/tensor_handle.h"
#include "client/trace/world_view.h"
#include "kernels/base/reason.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

ElementType ToPublic(v1::DType dtype) {
  switch (dtype) {
    case v1::DTYPE_BF16: return ElementType::kBF16;
    case v1::DTYPE_F16: return ElementType::kF16;
    default: return ElementType::kF32;
  }
}

JobState ToPublic(v1::Job::State state) {
  switch (state) {
    case v1::Job::STATE_RUNNING: return JobState::kRunning;
    case v1::Job::STATE_SUCCEEDED: return JobState::kSucceeded;
    case v1::Job::STATE_FAILED: return JobState::kFailed;
    case v1::Job::STATE_CANCELLED: return JobState::kCancelled;
    default: return JobState::kQueued;
  }
}

WallTime ToPublic(const google::protobuf::Timestamp& time) {
  return absl::ToChronoTime(FromProto(time));
}

std::string TextOf(const v1::Mesh& mesh) {
  return absl::StrJoin(mesh.axes(), ",", [](std::string* text, const v1::MeshAxis& axis) {
    absl::StrAppend(text, axis.name(), "=", axis.size());
  });
}

JobFigures ToPublic(const v1::JobFigures& wire) {
  JobFigures figures;
  figures.time_us = wire.time_us();
  figures.gemm_us = wire.gemm_us();
  figures.gather_us = wire.gather_us();
  figures.flop_count = wire.flop_count();
  figures.tflops = wire.tflops();
  figures.overlap = wire.overlap();
  figures.baseline_job = wire.baseline_job_id();
  figures.baseline_stale = wire.baseline_stale();
  for (const v1::PathBytes& moved : wire.moved())
    figures.moved.push_back({moved.path(), moved.bytes()});
  return figures;
}

}  // namespace

Status ToPublic(const absl::Status& status) {
  if (status.ok()) return Status();
  return Status(static_cast<StatusCode>(status.code()), std::string(status.message()),
                ReasonOf(status));
}

absl::Status FromPublic(const Status& status) {
  return WithReason(absl::Status(static_cast<absl::StatusCode>(status.code()), status.message()),
                    status.reason());
}

v1::DType ToWire(ElementType type) {
  switch (type) {
    case ElementType::kBF16: return v1::DTYPE_BF16;
    case ElementType::kF16: return v1::DTYPE_F16;
    default: return v1::DTYPE_F32;
  }
}

TensorInfo ToPublic(const v1::Tensor& tensor) {
  TensorInfo info;
  info.id = tensor.tensor_id();
  info.name = tensor.name();
  info.spec.rows = tensor.spec().rows();
  info.spec.cols = tensor.spec().cols();
  info.spec.type = ToPublic(tensor.spec().dtype());
  info.spec.sharding = tensor.spec().sharding();
  info.spec.mesh = TextOf(tensor.spec().mesh());
  info.spec.ranks = {tensor.spec().mesh().ranks().begin(), tensor.spec().mesh().ranks().end()};
  info.has_contents = tensor.state() == v1::Tensor::STATE_READY;
  info.shard_bytes = tensor.shard_bytes();
  info.version = tensor.version();
  info.owner = tensor.owner();
  info.of_session = !tensor.session_id().empty();
  info.handle = HandleOf(tensor);
  return info;
}

JobInfo ToPublic(const v1::Job& job) {
  JobInfo info;
  info.id = job.job_id();
  info.state = ToPublic(job.state());
  info.error = ToPublic(FromProto(job.error()));
  info.spec = job.spec();
  info.m = job.m();
  info.n = job.n();
  info.k = job.k();
  info.type = ToPublic(job.dtype());
  // Older daemons do not report it.
  info.result_type =
      job.result_dtype() == v1::DTYPE_UNSPECIFIED ? info.type : ToPublic(job.result_dtype());
  info.algorithm = job.options().algorithm();
  info.schedule = job.schedule();
  info.explanation = job.explanation();
  info.split = job.options().split();
  info.chunk_count = job.options().chunk_count();
  info.k_chunk_count = job.options().k_chunk_count();
  info.workspace_shard_count = job.options().workspace_shard_count();
  info.carried = job.options().carried();
  info.repeat_count = job.repeat_count();
  info.plan_hash = job.plan_hash();
  info.engine = job.engine();
  info.transport = job.transport();
  info.device_paths = {job.device_paths().begin(), job.device_paths().end()};
  info.device_products = {job.device_products().begin(), job.device_products().end()};
  info.owner = job.owner();
  if (job.has_create_time()) info.create_time = ToPublic(job.create_time());
  if (job.has_start_time()) info.start_time = ToPublic(job.start_time());
  if (job.has_end_time()) info.end_time = ToPublic(job.end_time());
  info.figures = ToPublic(job.figures());
  return info;
}

JobEvent ToPublic(const v1::JobEvent& event) {
  return {event.number(), ToPublic(event.state()), ToPublic(event.time()), event.message()};
}

WorldInfo ToPublic(const v1::GetStatusResponse& status) {
  WorldInfo world;
  world.cluster = status.cluster();
  world.version = status.version();
  world.generation = status.generation();
  world.ready = status.ready();
  world.reason = status.reason();
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      world.devices.push_back({device.rank(), node.name(), device.kind(), device.heap_bytes(),
                               device.heap_free_bytes(), device.heap_largest_free_bytes()});
    }
  }
  return world;
}

std::vector<SessionInfo> ToPublic(const OpenSessions& sessions) {
  const NodeNameFn name_of = NamesOf(sessions.status);
  std::vector<SessionInfo> infos;
  for (const v1::Session& session : sessions.list.sessions()) {
    SessionInfo& info = infos.emplace_back();
    info.number = session.number();
    info.own = session.session_id() == sessions.own_id;
    info.owner = session.owner();
    info.program = session.program();
    info.node = name_of(session.node());
    info.open_time = absl::ToChronoTime(absl::FromUnixMicros(session.opened_unix_us()));
    info.tensor_count = session.tensor_count();
    info.tensor_bytes = session.tensor_bytes();
    info.job_count = session.job_count();
  }
  return infos;
}

std::vector<TensorInfo> ToPublic(const v1::ListTensorsResponse& list) {
  std::vector<TensorInfo> tensors;
  for (const v1::Tensor& tensor : list.tensors()) tensors.push_back(ToPublic(tensor));
  return tensors;
}

std::vector<JobInfo> ToPublic(const v1::ListJobsResponse& list) {
  std::vector<JobInfo> jobs;
  for (const v1::Job& job : list.jobs()) jobs.push_back(ToPublic(job));
  return jobs;
}

Result<JobInfo> JobResult(const absl::StatusOr<v1::Job>& job) {
  const absl::Status outcome = job.ok() ? OutcomeOf(*job) : job.status();
  if (!outcome.ok()) return ToPublic(outcome);
  return ToPublic(*job);
}

}  // namespace agmm
