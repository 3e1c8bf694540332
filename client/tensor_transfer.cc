#include "client/tensor_transfer.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "proto/convert/blocks.h"
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

int64_t Elements(const v1::TensorBlock& block) {
  return (block.row_end() - block.row_begin()) * (block.col_end() - block.col_begin());
}

// Sends all blocks; stops when the stream breaks, whose status then says why.
absl::Status SendBlocks(const NpyReader& file, const v1::Tensor& tensor, DType dtype,
                        grpc::ClientWriter<v1::WriteTensorRequest>* stream,
                        const Progress& progress) {
  BlockCursor cursor(file.rows(), file.cols(), dtype);
  Converter converter(file.dtype(), dtype);
  std::vector<char> rows;
  int64_t moved = 0;
  while (!cursor.done()) {
    v1::WriteTensorRequest request;
    if (moved == 0) request.set_tensor_id(tensor.tensor_id());
    v1::TensorBlock& block = *request.mutable_block();
    block = cursor.Next();
    const int64_t row_count = block.row_end() - block.row_begin();
    // Pieces of one long row come from the one read at its beginning.
    if (block.col_begin() == 0) {
      rows.resize(row_count * file.row_bytes());
      AGMM_RETURN_IF_ERROR(file.ReadRows(block.row_begin(), row_count, rows.data()));
    }
    std::string& data = *block.mutable_data();
    data.resize(Elements(block) * SizeOf(dtype));
    converter.Run(rows.data() + block.col_begin() * SizeOf(file.dtype()), data.data(),
                  Elements(block));
    moved += Elements(block);
    if (!stream->Write(request)) return absl::OkStatus();
    progress(moved);
  }
  return absl::OkStatus();
}

// Puts blocks into a file; collects the pieces of a long row.
class RowSink {
 public:
  RowSink(int64_t cols, DType dtype, NpyWriter* file)
      : cols_(cols), file_dtype_(FileDType(dtype)), converter_(dtype, file_dtype_), file_(file) {}

  absl::Status Take(const v1::TensorBlock& block) {
    const int64_t row_count = block.row_end() - block.row_begin();
    const bool whole = block.col_end() - block.col_begin() == cols_;
    if (!whole && row_count > 1)
      return absl::InternalError(
          "the daemon sent a piece of several rows; it is of another version");
    rows_.resize(row_count * file_->row_bytes());
    converter_.Run(block.data().data(), rows_.data() + block.col_begin() * SizeOf(file_dtype_),
                   Elements(block));
    if (block.col_end() < cols_) return absl::OkStatus();
    return file_->WriteRows(block.row_begin(), row_count, rows_.data());
  }

 private:
  const int64_t cols_;
  const DType file_dtype_;
  Converter converter_;
  NpyWriter* const file_;
  std::vector<char> rows_;
};

}  // namespace

absl::Status Upload(Connection* connection, const NpyReader& file, const v1::Tensor& tensor,
                    const Progress& progress) {
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
  // No deadline: a write waits for the jobs before it, and takes as long as its bytes do.
  Connection::Call call(connection, absl::InfiniteFuture());
  v1::WriteTensorResponse response;
  const std::unique_ptr<grpc::ClientWriter<v1::WriteTensorRequest>> stream =
      connection->tensors()->WriteTensor(call.context(), &response);
  const absl::Status sent = SendBlocks(file, tensor, dtype, stream.get(), progress);
  if (sent.ok())
    stream->WritesDone();
  else
    call.context()->TryCancel();  // leaves the tensor empty
  const absl::Status status = call.Convert(stream->Finish());
  return sent.ok() ? status : sent;
}

DType FileDType(DType dtype) { return dtype == DType::kBF16 ? DType::kF32 : dtype; }

absl::Status Download(Connection* connection, const v1::Tensor& tensor, NpyWriter* file,
                      const Progress& progress) {
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(tensor.spec().dtype()));
  Connection::Call call(connection, absl::InfiniteFuture());
  v1::ReadTensorRequest request;
  request.set_tensor_id(tensor.tensor_id());
  const std::unique_ptr<grpc::ClientReader<v1::ReadTensorResponse>> stream =
      connection->tensors()->ReadTensor(call.context(), request);
  BlockCursor cursor(tensor.spec().rows(), tensor.spec().cols(), dtype);
  RowSink sink(tensor.spec().cols(), dtype, file);
  v1::ReadTensorResponse response;
  int64_t moved = 0;
  absl::Status taken;
  while (taken.ok() && stream->Read(&response)) {
    taken = Annotate(cursor.Accept(response.block()), "the daemon's answer makes no sense");
    if (taken.ok()) taken = sink.Take(response.block());
    if (taken.ok()) progress(moved += Elements(response.block()));
  }
  if (!taken.ok()) call.context()->TryCancel();
  const absl::Status status = call.Convert(stream->Finish());
  if (!taken.ok()) return taken;
  AGMM_RETURN_IF_ERROR(status);
  if (cursor.done()) return absl::OkStatus();
  return absl::InternalError(
      absl::StrFormat("the daemon sent %d of %d rows", cursor.rows_passed(), tensor.spec().rows()));
}

}  // namespace agmm
