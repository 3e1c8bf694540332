// Contents of tensors from and to files of matrices, converted on the way.
#pragma once

#include "client/npy.h"
#include "client/tensor_transfer.h"

namespace agmm {

// As Upload, of the whole file, as a tensor of `dtype`. `begin` names a tensor of its rows and
// columns and that dtype.
absl::StatusOr<v1::Tensor> UploadFile(Connection* connection, v1::BeginUpload begin,
                                      const NpyReader& file, DType dtype, const Progress& progress,
                                      const std::string& sequencer = "");

// What a tensor of this dtype is in an .npy file: bf16 becomes f32, which holds it exactly; others
// stay.
DType FileDType(DType dtype);

// As Download, to `file`, which was made for the tensor's rows and columns. Does not commit it.
// Errors, as well: FAILED_PRECONDITION where the tensor is of another shape.
absl::StatusOr<v1::Tensor> DownloadFile(Connection* connection, const v1::TensorRef& tensor,
                                        NpyWriter* file, const Progress& progress,
                                        const std::string& sequencer = "");

}  // namespace agmm
