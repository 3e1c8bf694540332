#include "client/ctl/messages.h"

#include "absl/strings/str_cat.h"
#include "proto/convert/problem.h"

namespace agmm {

const char* StateName(v1::NodeStatus::State state) {
  switch (state) {
    case v1::NodeStatus::STATE_MISSING: return "missing";
    case v1::NodeStatus::STATE_JOINING: return "joining";
    case v1::NodeStatus::STATE_READY: return "ready";
    default: return "unknown";
  }
}

const char* StateName(v1::Tensor::State state) {
  switch (state) {
    case v1::Tensor::STATE_EMPTY: return "empty";
    case v1::Tensor::STATE_WRITING: return "writing";
    case v1::Tensor::STATE_READY: return "ready";
    default: return "unknown";
  }
}

const char* StateName(v1::Job::State state) {
  switch (state) {
    case v1::Job::STATE_QUEUED: return "queued";
    case v1::Job::STATE_RUNNING: return "running";
    case v1::Job::STATE_SUCCEEDED: return "succeeded";
    case v1::Job::STATE_FAILED: return "failed";
    case v1::Job::STATE_CANCELLED: return "cancelled";
    default: return "unknown";
  }
}

std::string DTypeName(v1::DType dtype) {
  const absl::StatusOr<DType> known = FromProto(dtype);
  return known.ok() ? std::string(Name(*known)) : "unknown";
}

std::string AxesText(const v1::Mesh& mesh) {
  std::string text;
  for (const v1::MeshAxis& axis : mesh.axes())
    absl::StrAppend(&text, text.empty() ? "" : ",", axis.name(), "=", axis.size());
  return text;
}

std::vector<int> RanksOf(const v1::Mesh& mesh) {
  if (!mesh.ranks().empty()) return {mesh.ranks().begin(), mesh.ranks().end()};
  const absl::StatusOr<Mesh> known = FromProto(mesh);
  return known.ok() ? known->ranks : std::vector<int>();
}

bool HasEnded(const v1::Job& job) {
  return job.state() == v1::Job::STATE_SUCCEEDED || job.state() == v1::Job::STATE_FAILED ||
         job.state() == v1::Job::STATE_CANCELLED;
}

Memory MemoryOf(const v1::GetStatusResponse& status) {
  Memory memory;
  for (const v1::NodeStatus& node : status.nodes()) {
    memory.staging_bytes += node.staging_bytes();
    for (const v1::DeviceStatus& device : node.devices()) {
      memory.heap_bytes += device.heap_bytes();
      memory.free_bytes += device.heap_free_bytes();
      memory.tensor_bytes += device.tensor_bytes();
      memory.held_bytes += device.held_bytes();
      memory.workspace_bytes += device.workspace_bytes();
      memory.packed_bytes += device.packed_bytes();
      memory.scratch_bytes += device.scratch_bytes();
    }
  }
  return memory;
}

}  // namespace agmm
