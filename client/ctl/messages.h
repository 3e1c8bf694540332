// What is read out of the daemons' messages, for JSON and for people alike. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "proto/convert/time.h"

namespace agmm {

// "ready", "succeeded", ...: as JSON and tables have it.
const char* StateName(v1::NodeStatus::State state);
const char* StateName(v1::Tensor::State state);
const char* StateName(v1::Job::State state);
// "bf16"; "unknown" for what a newer daemon may have.
std::string DTypeName(v1::DType dtype);

// "x=4" or "dp=2,tp=4".
std::string AxesText(const v1::Mesh& mesh);
// World ranks, in the mesh's order.
std::vector<int> RanksOf(const v1::Mesh& mesh);

bool HasEnded(const v1::Job& job);

// Bytes by class, summed over what answers.
struct Memory {
  int64_t heap_bytes = 0, free_bytes = 0;
  int64_t tensor_bytes = 0, held_bytes = 0, workspace_bytes = 0, packed_bytes = 0,
          scratch_bytes = 0, staging_bytes = 0;
};
Memory MemoryOf(const v1::GetStatusResponse& status);

}  // namespace agmm
