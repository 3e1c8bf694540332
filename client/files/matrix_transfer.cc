#include "client/files/matrix_transfer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/files/npy.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

absl::StatusOr<v1::Tensor> UploadFile(Connection* connection, v1::BeginUpload begin,
                                      const MatrixReader& file, DType dtype,
                                      const Progress& progress, const std::string& sequencer) {
  ConvertedReader source(file, dtype);
  const ReadFn read = [&](int64_t offset, int64_t size, char* out) {
    return source.Read(offset, size, out);
  };
  return Upload(connection, std::move(begin), file.rows() * file.cols() * SizeOf(dtype), read,
                progress, {}, sequencer);
}

absl::StatusOr<v1::Tensor> DownloadFile(Connection* connection, const v1::TensorRef& tensor,
                                        NpyWriter* file, const Progress& progress,
                                        const std::string& sequencer) {
  std::vector<char> elements;
  const WriteFn write = [&](const v1::Tensor& found, int64_t,
                            absl::string_view data) -> absl::Status {
    const v1::TensorSpec& spec = found.spec();
    if (spec.rows() != file->rows() || spec.cols() != file->cols()) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s has become %d x %d, but the file is for %d x %d; try again",
          found.name().empty() ? absl::StrCat("tensor ", found.tensor_id()) : found.name(),
          spec.rows(), spec.cols(), file->rows(), file->cols()));
    }
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
    const int64_t count = static_cast<int64_t>(data.size()) / SizeOf(dtype);
    if (file->dtype() == dtype) return file->Append(count, data.data());
    elements.resize(count * SizeOf(file->dtype()));
    ConvertElements(dtype, data.data(), file->dtype(), elements.data(), count);
    return file->Append(count, elements.data());
  };
  return Download(connection, tensor, write, progress, {}, sequencer);
}

}  // namespace agmm
