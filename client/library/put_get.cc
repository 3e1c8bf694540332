// Contents of tensors from and to memory and callbacks.
#include <cstring>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/connect/tensor_transfer.h"
#include "client/library/client_state.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

Status WrongSize(int64_t size_bytes, int64_t rows, int64_t cols, int64_t element_bytes) {
  return Status(
      StatusCode::kInvalidArgument,
      absl::StrFormat("%d bytes are given for a tensor of %d x %d elements of %d bytes; give "
                      "%d bytes, row-major",
                      size_bytes, rows, cols, element_bytes, rows * cols * element_bytes));
}

Status NullData(int64_t size_bytes) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrFormat("data is null; give the address of %d bytes", size_bytes));
}

// The error for an empty std::function.
Status NoCallback(absl::string_view argument, absl::string_view what) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrFormat("%s is empty; give a function that %s", argument, what));
}

// Returns the size of the contents in bytes; absent if a tensor cannot have this spec.
std::optional<int64_t> BytesIn(const TensorSpec& spec) {
  int64_t elements = 0, bytes = 0;
  if (spec.rows <= 0 || spec.cols <= 0 || __builtin_mul_overflow(spec.rows, spec.cols, &elements) ||
      __builtin_mul_overflow(elements, BytesOf(spec.type), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

// Takes a piece of the contents of `tensor`.
using TakePiece = std::function<Status(const TensorInfo& tensor, int64_t offset_bytes,
                                       const std::byte* from, int64_t size_bytes)>;

Result<TensorInfo> GetPieces(ClientState* client, const std::string& name, const TakePiece& take,
                             const TransferOptions& options) {
  v1::TensorRef ref;
  ref.set_name(name);
  int64_t total_bytes = 0;
  std::optional<TensorInfo> info;
  const WriteFn write = [&](const v1::Tensor& tensor, int64_t offset_bytes,
                            absl::string_view data) {
    if (!info.has_value()) {
      info = ToPublic(tensor);
      total_bytes = BytesIn(info->spec).value_or(0);
    }
    return FromPublic(take(*info, offset_bytes, reinterpret_cast<const std::byte*>(data.data()),
                           static_cast<int64_t>(data.size())));
  };
  const Progress progress{[&](int64_t moved_bytes) {
    if (options.progress) options.progress(moved_bytes, total_bytes);
  }};
  return client->Call([&](Connection* connection) {
    return Download(connection, ref, write, progress,
                    Deadline::After(client->TransferTimeout(options.timeout)));
  });
}

}  // namespace

Result<TensorInfo> Client::Put(const std::string& name, const TensorSpec& spec, const void* data,
                               int64_t size_bytes, const TransferOptions& options) {
  if (const std::optional<int64_t> bytes = BytesIn(spec); bytes.has_value() && *bytes != size_bytes)
    return WrongSize(size_bytes, spec.rows, spec.cols, BytesOf(spec.type));
  if (data == nullptr) return NullData(size_bytes);
  const char* const from = static_cast<const char*>(data);
  return Put(
      name, spec,
      [from](int64_t offset_bytes, std::byte* into, int64_t size) {
        std::memcpy(into, from + offset_bytes, size);
        return Status();
      },
      options);
}

Result<TensorInfo> Client::Put(const std::string& name, const TensorSpec& spec,
                               const Reader& reader, const TransferOptions& options) {
  if (!reader) return NoCallback("reader", "fills the buffer it gets");
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    const std::optional<int64_t> total_bytes = BytesIn(spec);
    if (!total_bytes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a tensor cannot have %d x %d elements; give at least one row and one "
                          "column, and less than 2^63 bytes",
                          spec.rows, spec.cols));
    }
    v1::BeginUpload begin;
    AGMM_ASSIGN_OR_RETURN(*begin.mutable_put(),
                          state_->RequestFor(name, spec, state_->CallTimeout({})));
    const ReadFn read = [&](int64_t offset_bytes, int64_t size, char* out) {
      return FromPublic(reader(offset_bytes, reinterpret_cast<std::byte*>(out), size));
    };
    const Progress progress{[&](int64_t moved_bytes) {
      if (options.progress) options.progress(moved_bytes, *total_bytes);
    }};
    return Upload(connection, std::move(begin), *total_bytes, read, progress,
                  Deadline::After(state_->TransferTimeout(options.timeout)));
  });
}

Result<TensorInfo> Client::Get(const std::string& name, void* data, int64_t size_bytes,
                               const TransferOptions& options) {
  if (data == nullptr) return NullData(size_bytes);
  return GetPieces(
      state_.get(), name,
      [&](const TensorInfo& tensor, int64_t offset_bytes, const std::byte* from, int64_t size) {
        if (BytesIn(tensor.spec) != size_bytes) {
          return WrongSize(size_bytes, tensor.spec.rows, tensor.spec.cols,
                           BytesOf(tensor.spec.type));
        }
        std::memcpy(static_cast<char*>(data) + offset_bytes, from, size);
        return Status();
      },
      options);
}

Result<TensorInfo> Client::Get(const std::string& name, const Writer& writer,
                               const TransferOptions& options) {
  if (!writer) return NoCallback("writer", "takes the bytes it gets");
  return GetPieces(
      state_.get(), name,
      [&](const TensorInfo&, int64_t offset_bytes, const std::byte* from, int64_t size) {
        return writer(offset_bytes, from, size);
      },
      options);
}

}  // namespace agmm
