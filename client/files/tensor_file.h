// Files of tensors, by the ending of their names: .safetensors, and .npy, which has one tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/files/input_file.h"
#include "client/files/matrix_reader.h"
#include "client/files/npy.h"
#include "client/files/output_file.h"
#include "client/files/safetensors.h"

namespace agmm {

// A tensor in a file, of any dtype and shape.
struct FileTensor {
  // As in the file; of an .npy file, the file's name without folders and without the ending.
  std::string name;
  std::string dtype;           // as in the file, or "f32" or "f16" of an .npy file
  std::vector<int64_t> shape;  // empty: one element
  int64_t bytes = 0;
  // The tensor as a matrix: one dimension is a row, none a single element. An error says why it
  // cannot be loaded: another dtype, more dimensions, no elements.
  absl::StatusOr<MatrixLayout> layout;
};

// Thread-compatible.
class TensorFile {
 public:
  // Reads the header, checks it, and then checks the size of the file. `stop` as in InputFile.
  // Errors: INVALID_ARGUMENT, one line with the path, for another ending and for a file that its
  // format does not allow; those of InputFile.
  static absl::StatusOr<std::unique_ptr<TensorFile>> Open(const std::string& path,
                                                          std::stop_token stop = {});
  // Like Open, for a safetensors file of any name.
  static absl::StatusOr<std::unique_ptr<TensorFile>> OpenSafetensors(const std::string& path,
                                                                     std::stop_token stop = {});

  // Its name in errors.
  const std::string& name() const { return name_; }
  // In the order of their bytes.
  const std::vector<FileTensor>& tensors() const { return tensors_; }
  // Reads a tensor by its layout, or by that of its transpose.
  MatrixReader Reader(const MatrixLayout& layout) const { return {file_, layout}; }

 private:
  TensorFile(std::string name, std::shared_ptr<const InputFile> file)
      : name_(std::move(name)), file_(std::move(file)) {}
  static absl::StatusOr<std::unique_ptr<TensorFile>> OpenNpyFile(const std::string& path,
                                                                 std::stop_token stop);

  const std::string name_;
  const std::shared_ptr<const InputFile> file_;
  std::vector<FileTensor> tensors_;
};

// Returns the layout of the transposed matrix over the same bytes.
MatrixLayout Transposed(MatrixLayout layout);

// Writes a file of tensors, which appears when it is complete. Thread-compatible.
class TensorFileWriter {
 public:
  // Errors: INVALID_ARGUMENT, one line with the path, for another ending, for more than one tensor
  // in an .npy file, and for names or metadata that the format does not have; those of OutputFile.
  static absl::StatusOr<std::unique_ptr<TensorFileWriter>> Create(
      const std::string& path, std::vector<TensorToSave> tensors,
      const std::map<std::string, std::string>& metadata);

  // The tensors in the order in which they are appended: wide elements come first, so that each
  // tensor begins at a multiple of its elements' size; otherwise as given.
  const std::vector<TensorToSave>& tensors() const { return tensors_; }
  // Writes the next bytes, whole elements of the tensor's dtype. An .npy file gets f32 for bf16.
  // Errors: OUT_OF_RANGE past the end; those of OutputFile.
  absl::Status Append(absl::string_view bytes);
  // Puts the file in place, once. Errors: FAILED_PRECONDITION while bytes are missing; those of
  // OutputFile.
  absl::Status Commit();

 private:
  TensorFileWriter(std::string path, std::vector<TensorToSave> tensors);

  const std::string path_;
  const std::vector<TensorToSave> tensors_;
  int64_t missing_bytes_ = 0;
  std::unique_ptr<NpyWriter> npy_;  // one of the two
  std::unique_ptr<OutputFile> file_;
  std::vector<char> converted_;
};

}  // namespace agmm
