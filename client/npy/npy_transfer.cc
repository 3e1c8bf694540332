#include "client/npy_transfer.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

// Elements from one dtype to another, by way of f32.
class Converter {
 public:
  Converter(DType from, DType to) : from_(from), to_(to) {}

  void Run(const char* from, char* to, int64_t count) {
    if (from_ == to_) {
      std::memcpy(to, from, count * SizeOf(to_));
    } else if (to_ == DType::kF32) {
      ConvertToF32(from_, from, reinterpret_cast<float*>(to), count);
    } else {
      between_.resize(count);
      ConvertToF32(from_, from, between_.data(), count);
      ConvertFromF32(to_, between_.data(), to, count);
    }
  }

 private:
  const DType from_, to_;
  std::vector<float> between_;
};

}  // namespace

DType FileDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

absl::StatusOr<v1::Tensor> UploadFile(Connection* connection, v1::BeginUpload begin,
                                      const NpyReader& file, DType dtype, const Progress& progress,
                                      const std::string& sequencer) {
  Converter converter(file.dtype(), dtype);
  std::vector<char> elements;
  const ReadFn read = [&](int64_t offset, int64_t size, char* out) -> absl::Status {
    const int64_t first = offset / SizeOf(dtype), count = size / SizeOf(dtype);
    if (file.dtype() == dtype) return file.ReadElements(first, count, out);
    elements.resize(count * SizeOf(file.dtype()));
    AGMM_RETURN_IF_ERROR(file.ReadElements(first, count, elements.data()));
    converter.Run(elements.data(), out, count);
    return absl::OkStatus();
  };
  return Upload(connection, std::move(begin), file.rows() * file.cols() * SizeOf(dtype), read,
                progress, absl::InfiniteFuture(), sequencer);
}

absl::StatusOr<v1::Tensor> DownloadFile(Connection* connection, const v1::TensorRef& tensor,
                                        NpyWriter* file, const Progress& progress,
                                        const std::string& sequencer) {
  std::vector<char> elements;
  const WriteFn write = [&](const v1::Tensor& found, int64_t offset,
                            absl::string_view data) -> absl::Status {
    const v1::TensorSpec& spec = found.spec();
    if (spec.rows() != file->rows() || spec.cols() != file->cols()) {
      return absl::FailedPreconditionError(
          absl::StrFormat("tensor %d is %d x %d now, and the file was made for %d x %d; try again",
                          found.tensor_id(), spec.rows(), spec.cols(), file->rows(), file->cols()));
    }
    AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
    const int64_t first = offset / SizeOf(dtype);
    const int64_t count = static_cast<int64_t>(data.size()) / SizeOf(dtype);
    if (file->dtype() == dtype) return file->WriteElements(first, count, data.data());
    elements.resize(count * SizeOf(file->dtype()));
    Converter(dtype, file->dtype()).Run(data.data(), elements.data(), count);
    return file->WriteElements(first, count, elements.data());
  };
  return Download(connection, tensor, write, progress, absl::InfiniteFuture(), sequencer);
}

}  // namespace agmm
