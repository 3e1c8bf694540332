#include "client/npy/npy_transfer.h"

#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/npy/npy.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// Converts `count` elements to another dtype, by way of f32.
void Convert(DType from, const char* elements, DType to, char* out, int64_t count) {
  if (to == DType::kF32) return ConvertToF32(from, elements, reinterpret_cast<float*>(out), count);
  std::vector<float> between(count);
  ConvertToF32(from, elements, between.data(), count);
  ConvertFromF32(to, between.data(), out, count);
}

}  // namespace

DType FileDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

absl::StatusOr<v1::Tensor> UploadFile(Connection* connection, v1::BeginUpload begin,
                                      const NpyReader& file, DType dtype, const Progress& progress,
                                      const std::string& sequencer) {
  RowReader source(file);
  std::vector<char> elements;
  const ReadFn read = [&](int64_t offset, int64_t size, char* out) -> absl::Status {
    const int64_t first = offset / SizeOf(dtype), count = size / SizeOf(dtype);
    if (file.dtype() == dtype) return source.Read(first, count, out);
    elements.resize(count * SizeOf(file.dtype()));
    AGMM_RETURN_IF_ERROR(source.Read(first, count, elements.data()));
    Convert(file.dtype(), elements.data(), dtype, out, count);
    return absl::OkStatus();
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
    Convert(dtype, data.data(), file->dtype(), elements.data(), count);
    return file->Append(count, elements.data());
  };
  return Download(connection, tensor, write, progress, {}, sequencer);
}

}  // namespace agmm
