// Tensors and memory as text for people: tables of at most 100 columns. Pure.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/dtype.h"

namespace agmm {

// One row a tensor; a line that says so where there are none.
std::string TensorTable(const v1::ListTensorsResponse& list);
// Bytes by class, summed over the ranks, in a line.
std::string MemoryTable(const v1::GetStatusResponse& status);
// "W #12: 4096x4096 bf16, [K, N_x] over mesh x=4 on ranks 0-3, version 1".
std::string TensorLine(const v1::Tensor& tensor);
// What a get has written of a tensor.
struct SavedFile {
  std::string path;
  bool raw = false;  // the elements alone; else .npy
  DType dtype = DType::kF32;
};
// "W.npy: 4096x4096 f32, 64 MiB".
std::string SavedLine(const v1::Tensor& tensor, const SavedFile& saved);
// All that is known of one.
std::string TensorText(const v1::Tensor& tensor);

}  // namespace agmm
