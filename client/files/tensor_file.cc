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

// A safetensors file that has been opened.
struct Opened {
  std::vector<StoredTensor> tensors;
  int64_t data_offset = 0;
};

// Reads the header. Of a pipe it then reads the data, whose size nothing else shows.
absl::StatusOr<Opened> ReadSafetensors(InputFile* file) {
  Opened opened;
  std::optional<int64_t> size_bytes;
  if (!file->is_pipe()) {
    AGMM_ASSIGN_OR_RETURN(size_bytes, file->SizeUpTo(0));
  }
  AGMM_ASSIGN_OR_RETURN(const std::string prefix, file->ReadHead(kSafetensorsPrefixBytes));
  AGMM_ASSIGN_OR_RETURN(const int64_t json_bytes, SafetensorsJsonBytes(prefix, size_bytes));
  opened.data_offset = kSafetensorsPrefixBytes + json_bytes;
  AGMM_ASSIGN_OR_RETURN(const std::string header, file->ReadHead(opened.data_offset));
  const int64_t found = static_cast<int64_t>(header.size());
  if (found < opened.data_offset) {
    if (file->is_pipe()) return SafetensorsJsonBytes(prefix, found).status();
    return absl::DataLossError(absl::StrFormat(
        "%d bytes were found where %d are expected; retry when no process is writing it", found,
        opened.data_offset));
  }
  if (size_bytes.has_value()) *size_bytes -= opened.data_offset;
  const auto json = absl::string_view(header).substr(kSafetensorsPrefixBytes);
  AGMM_ASSIGN_OR_RETURN(opened.tensors, ParseSafetensorsJson(json, size_bytes));
  if (!file->is_pipe()) return opened;
  const int64_t data_bytes = opened.tensors.empty() ? 0 : opened.tensors.back().end;
  // One more byte shows that bytes are left over.
  AGMM_ASSIGN_OR_RETURN(const int64_t read,
                        file->SizeUpTo(data_bytes < INT64_MAX - opened.data_offset - 1
                                           ? opened.data_offset + data_bytes + 1
                                           : INT64_MAX));
  AGMM_RETURN_IF_ERROR(CheckSafetensorsPlaces(opened.tensors, read - opened.data_offset));
  return opened;
}

}  // namespace

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::Open(const std::string& path,
                                                             std::stop_token stop) {
  if (absl::EndsWith(path, kSafetensors)) return OpenSafetensors(path, std::move(stop));
  if (absl::EndsWith(path, kNpy)) return OpenNpyFile(path, std::move(stop));
  return OtherEnding(path);
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::OpenNpyFile(const std::string& path,
                                                                    std::stop_token stop) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<MatrixReader> matrix, OpenNpy(path, std::move(stop)));
  const MatrixLayout& layout = matrix->layout();
  std::unique_ptr<TensorFile> file(new TensorFile(path, matrix->file()));
  file->tensors_.push_back({.name = std::filesystem::path(path).stem().string(),
                            .dtype = std::string(Name(layout.dtype)),
                            .shape = {layout.rows, layout.cols},
                            .bytes = layout.rows * layout.cols * SizeOf(layout.dtype),
                            .layout = layout});
  return file;
}

absl::StatusOr<std::unique_ptr<TensorFile>> TensorFile::OpenSafetensors(const std::string& path,
                                                                        std::stop_token stop) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<InputFile> input, InputFile::Open(path, std::move(stop)));
  const std::string name = input->name();
  absl::StatusOr<Opened> opened = ReadSafetensors(input.get());
  if (absl::IsInvalidArgument(opened.status()) || absl::IsDataLoss(opened.status()))
    return Annotate(opened.status(), name);
  if (!opened.ok()) return opened.status();  // those of InputFile name the file
  std::unique_ptr<TensorFile> file(new TensorFile(name, std::move(input)));
  file->tensors_.reserve(opened->tensors.size());
  for (StoredTensor& tensor : opened->tensors) {
    absl::StatusOr<MatrixLayout> layout = LayoutOf(tensor, opened->data_offset);
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
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: an .npy file has one tensor and no metadata, but %d tensors are given, and "
        "%d metadata; save a %s file",
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
