// Messages of the daemons as text. For a figure that is not known, the text says how to measure it.
// Pure.
#pragma once

#include <google/protobuf/generated_enum_reflection.h>

#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/time.h"

namespace agmm {

// "ready" for STATE_READY, "bf16" for DTYPE_BF16; "unknown" for values that only a newer daemon
// has.
std::string EnumName(const google::protobuf::EnumDescriptor* type, int number);
template <typename Enum>
std::string EnumName(Enum value) {
  return EnumName(google::protobuf::GetEnumDescriptor<Enum>(), value);
}

// Returns the mesh with its ranks; empty if this program cannot parse it.
Mesh MeshOf(const v1::Mesh& mesh);

// "ring, 8 chunks a shard (auto is ...)": what runs, and why; or "local (nothing has to move)" if
// the planner's name of the schedule differs from the algorithm in `options`.
std::string PlanText(const v1::PlanOptions& options, absl::string_view why,
                     absl::string_view schedule = "");

// Tables of the world's nodes, its devices and their memory.
std::string StatusText(const v1::GetStatusResponse& status);

// Bytes of one class, summed over the devices of the nodes that answer.
int64_t Sum(const v1::GetStatusResponse& status, int64_t (v1::DeviceStatus::*bytes)() const);
int64_t StagingBytes(const v1::GetStatusResponse& status);

// A row for each tensor, or "no tensors".
std::string TensorTable(const v1::ListTensorsResponse& list);
// A row of bytes by class, summed over the ranks.
std::string MemoryTable(const v1::GetStatusResponse& status);

// "W #12: 4096x4096 bf16, [K, N_x] over mesh x=4 on ranks 0-3, version 1".
std::string TensorLine(const v1::Tensor& tensor);
// The tensor as a field and its value a line.
std::string TensorText(const v1::Tensor& tensor);

// The file that `tensor get` has written.
struct SavedFile {
  std::string path;
  bool raw = false;  // the elements only, without an .npy header
  DType dtype = DType::kF32;
  int64_t non_finite = 0;  // elements that are infinite or not a number
};
// "12 of 4096 elements are not finite"; empty if all are.
std::string NonFiniteText(int64_t non_finite, int64_t elements);
// "W.npy: 4096x4096 f32, 64 MiB", and how many elements are not finite.
std::string SavedLine(const v1::Tensor& tensor, const SavedFile& saved);

// "7", or of an earlier run "7@0709".
std::string JobId(const v1::Job& job);
// A row for each job, with the first line of its error below; or "no jobs".
std::string JobTable(const v1::ListJobsResponse& list);
// Epochs that are over on every rank that reported, of a job that runs or ran.
struct EpochCount {
  int done = 0, total = 0;
  bool partial = false;   // some ranks have not reported
  double epoch_us = 0;    // median of the last epochs on the slowest rank; 0: none is over
  double current_us = 0;  // time since the slowest rank's epoch in progress began
};
EpochCount CountEpochs(const v1::Job& job);

// "2 of 10 epochs done, 0.15/s, 53 s left", or "0 of 10 epochs done on the ranks that
// reported, the first one for 4.9 s".
std::string EpochsText(const v1::Job& job);

// The job as a field and its value a line, and its events.
std::string JobText(const v1::Job& job);
// "  2     0.013 s  running": the event's number, its time since the job was created, its state.
std::string EventLine(const v1::JobEvent& event, absl::Duration after);
// "ring, 2 chunks a shard: T 12.3 ms an epoch, 1.2 TFLOP/s, R 0.97", for a job that succeeded.
std::string FigureLine(const v1::Job& job);

}  // namespace agmm
