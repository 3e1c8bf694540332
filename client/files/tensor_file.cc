#include "client/files/tensor_file.h"

#include <algorithm>
#include <filesystem>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::string_view kNpy = ".npy", kSafetensors = ".safetensors";

absl::Status OtherEnding(const std::string& path) {
  return absl::InvalidArgumentError(
      absl::StrFormat("the name %s ends neither in %s nor in %s, which tell the format; rename "
                      "the file",
                      QuotedName(path), kNpy, kSafetensors));
}

absl::StatusOr<MatrixLayout> LayoutOf(const StoredTensor& tensor, int64_t data_offset) {
  const std::optional<DType> dtype = LoadableDType(tensor.dtype);
  if (!dtype.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("it has dtype %s; F32, F16 and BF16 can be loaded: convert it, or skip it",
                        QuotedName(tensor.dtype)));
  }
  if (tensor.shape.size() > 2) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its shape %s has %d dimensions; at most 2 can be loaded: save it with "
                        ".reshape(rows, columns), or skip it",
                        StoredShapeText(tensor.shape), tensor.shape.size()));
  }
  if (tensor.begin == tensor.end) {
    return absl::InvalidArgumentError(
        absl::StrFormat("its shape %s has no elements; skip it", StoredShapeText(tensor.shape)));
  }
  MatrixLayout layout{1, 1, *dtype, data_offset + tensor.begin};
  if (!tensor.shape.empty()) layout.cols = tensor.shape.back();
  if (tensor.shape.size() == 2) layout.rows = tensor.shape.front();
  return layout;
}

// Reads exactly `bytes` at `offset`.
absl::StatusOr<std::string> ReadText(const InputFile& file, int64_t offset, int64_t bytes) {
  std::string text(bytes, '\0');
  AGMM_ASSIGN_OR_RETURN(const int64_t got, file.Read(offset, bytes, text.data()));
  if (got == bytes) return text;
  return absl::DataLossError(
      absl::StrFormat("%s has %d bytes where %d are expected; retry when no process is writing it",
                      file.name(), got, bytes));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::Open(const std::string& path) {
  if (absl::EndsWith(path, kSafetensors)) return OpenSafetensors(path);
  if (absl::EndsWith(path, kNpy)) return OpenNpyFile(path);
  return OtherEnding(path);
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::OpenNpyFile(const std::string& path) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix, OpenNpy(path));
  const MatrixLayout& layout = matrix->layout();
  std::unique_ptr<TensorFile> file(new TensorFile(path, matrix->file()));
  file->tensors_.push_back({.name = std::filesystem::path(path).stem().string(),
                            .dtype = std::string(Name(layout.dtype)),
                            .shape = {layout.rows, layout.cols},
                            .bytes = layout.rows * layout.cols * SizeOf(layout.dtype),
                            .layout = layout});
  return file;
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::OpenSafetensors(const std::string& path) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> opened, InputFile::Open(path));
  const std::string name = opened->name();
  // A pipe is read to its end, which shows its size.
  AGMM_ASSIGN_OR_RETURN(const int64_t size, opened->SizeUpTo(INT64_MAX));
  AGMM_ASSIGN_OR_RETURN(const std::string prefix,
                        ReadText(*opened, 0, std::min(size, kSafetensorsPrefixBytes)));
  const absl::StatusOr<int64_t> json_bytes = SafetensorsJsonBytes(prefix, size);
  if (!json_bytes.ok()) return Annotate(json_bytes.status(), name);
  AGMM_ASSIGN_OR_RETURN(const std::string json,
                        ReadText(*opened, kSafetensorsPrefixBytes, *json_bytes));
  const int64_t data_offset = kSafetensorsPrefixBytes + *json_bytes;
  auto stored = ParseSafetensorsJson(json, size - data_offset);
  if (!stored.ok()) return Annotate(stored.status(), name);
  std::unique_ptr<TensorFile> file(new TensorFile(name, std::move(opened)));
  file->tensors_.reserve(stored->size());
  for (StoredTensor& tensor : *stored) {
    absl::StatusOr<MatrixLayout> layout = LayoutOf(tensor, data_offset);
    file->tensors_.push_back({std::move(tensor.name), std::move(tensor.dtype),
                              std::move(tensor.shape), tensor.end - tensor.begin,
                              std::move(layout)});
  }
  return file;
}

MatrixLayout Transposed(MatrixLayout layout) {
  std::swap(layout.rows, layout.cols);
  layout.by_columns = !layout.by_columns;
  return layout;
}

TensorFileWriter::TensorFileWriter(std::string path, std::vector<TensorToSave> tensors)
    : path_(std::move(path)), tensors_(std::move(tensors)) {
  for (const TensorToSave& tensor : tensors_)
    missing_bytes_ += tensor.rows * tensor.cols * SizeOf(tensor.dtype);
}

absl::StatusOr<std::unique_ptr<TensorFileWriter>> TensorFileWriter::Create(
    const std::string& path, std::vector<TensorToSave> tensors,
    const std::map<std::string, std::string>& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(),
                   [](const TensorToSave& one, const TensorToSave& other) {
                     return SizeOf(one.dtype) > SizeOf(other.dtype);
                   });
  std::unique_ptr<TensorFileWriter> writer(new TensorFileWriter(path, std::move(tensors)));
  if (absl::EndsWith(path, kSafetensors)) {
    const auto preamble = SafetensorsPreamble(writer->tensors_, metadata);
    if (!preamble.ok()) return Annotate(preamble.status(), path);
    AGMM_ASSIGN_OR_RETURN(writer->file_, OutputFile::Create(path));
    AGMM_RETURN_IF_ERROR(writer->file_->Write(*preamble));
    return writer;
  }
  if (!absl::EndsWith(path, kNpy)) return OtherEnding(path);
  if (writer->tensors_.size() != 1 || !metadata.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: an .npy file has one tensor and no metadata, but %d are given with %d "
                        "entries; save a %s file",
                        path, writer->tensors_.size(), metadata.size(), kSafetensors));
  }
  const TensorToSave& only = writer->tensors_.front();
  AGMM_ASSIGN_OR_RETURN(writer->npy_,
                        NpyWriter::Create(path, only.rows, only.cols, FileDType(only.dtype)));
  return writer;
}

absl::Status TensorFileWriter::Append(absl::string_view bytes) {
  const int64_t size = static_cast<int64_t>(bytes.size());
  if (size > missing_bytes_) {
    return absl::OutOfRangeError(absl::StrFormat("%s: %d bytes are given where %d are missing",
                                                 path_, size, missing_bytes_));
  }
  missing_bytes_ -= size;
  if (npy_ == nullptr) return file_->Write(bytes);
  const DType from = tensors_.front().dtype, to = npy_->dtype();
  const int64_t count = size / SizeOf(from);
  if (from == to) return npy_->Append(count, bytes.data());
  converted_.resize(count * SizeOf(to));
  ConvertElements(from, bytes.data(), to, converted_.data(), count);
  return npy_->Append(count, converted_.data());
}

absl::Status TensorFileWriter::Commit() {
  if (npy_ != nullptr) return npy_->Commit();
  if (missing_bytes_ > 0) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d bytes have not been written", path_, missing_bytes_));
  }
  return file_->Commit();
}

}  // namespace agmm
