// Contents of tensors from and to matrix files, with conversion of the dtype.
#pragma once

#include "client/connect/tensor_transfer.h"
#include "client/files/npy.h"

namespace agmm {

// Uploads the whole file, see Upload, to the tensor that `begin` names, which has the file's rows
// and columns and is of `dtype`.
absl::StatusOr<v1::Tensor> UploadFile(Connection* connection, v1::BeginUpload begin,
                                      const MatrixReader& file, DType dtype,
                                      const Progress& progress, const std::string& sequencer = "");

// Downloads the tensor, see Download, to `file`, without committing it. Errors also:
// FAILED_PRECONDITION if the tensor's shape is not that of the file.
absl::StatusOr<v1::Tensor> DownloadFile(Connection* connection, const v1::TensorRef& tensor,
                                        NpyWriter* file, const Progress& progress,
                                        const std::string& sequencer = "");

}  // namespace agmm
