// Contents of tensors from and to .npy files, a block at a time: memory for about one block, or one
// row where a row is longer.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "agmm/v1/tensor.pb.h"
#include "client/connection.h"
#include "client/npy.h"

namespace agmm {

// Told after each block how many elements have been moved.
using Progress = std::function<void(int64_t elements)>;

// Writes the whole file into `tensor`, which has its rows and columns, converted to the tensor's
// dtype.
absl::Status Upload(Connection* connection, const NpyReader& file, const v1::Tensor& tensor,
                    const Progress& progress);

// What a tensor of this dtype is in a file: bf16 becomes f32, which holds it exactly; others stay.
DType FileDType(DType dtype);

// Writes the whole contents of `tensor` to `file`, made for its rows and columns and FileDType.
// Does not commit.
absl::Status Download(Connection* connection, const v1::Tensor& tensor, NpyWriter* file,
                      const Progress& progress);

}  // namespace agmm
