// Moves contents of tensors from and to callbacks in pieces, in a few MiB of memory for any size.
// After a broken connection, the transfer resumes if the daemon is back within kRetryBound.
#pragma once

#include <cstdint>
#include <functional>
#include <stop_token>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/tensor.pb.h"
#include "client/connect/connection.h"
#include "kernels/base/deadline.h"

namespace agmm {

// Callbacks on the calling thread while contents move.
struct Progress {
  // Called after each piece with the bytes moved so far. The number may fall after a break.
  std::function<void(int64_t bytes)> moved;
  // Called when the connection broke and is being opened again; may be null.
  std::function<void()> reconnecting = nullptr;
};

// Fills `out` with bytes [offset_bytes, offset_bytes + size_bytes) of the contents: row-major
// without padding, in the tensor's dtype, little endian. Offsets rise, except after a break: some
// bytes are then requested again, and must be the same. An error ends the upload.
using ReadFn = std::function<absl::Status(int64_t offset_bytes, int64_t size_bytes, char* out)>;

// Takes bytes of the contents of `tensor` from offset_bytes on, in order, each once.
using WriteFn = std::function<absl::Status(const v1::Tensor& tensor, int64_t offset_bytes,
                                           absl::string_view data)>;

// The limits of a transfer.
struct TransferLimits {
  Deadline deadline = Deadline::Infinite();
  // A request ends the transfer with CANCELLED, wherever it waits. An upload whose last piece has
  // been sent may take effect nevertheless.
  std::stop_token stop = {};
};

// Writes the whole contents, total_bytes, of the tensor that `begin` names. An empty upload id is
// replaced by a random one. Returns the tensor with its new version. Waits for earlier jobs on the
// tensor, without a bound. Errors, all of which free a new tensor's space: those of `read`;
// INVALID_ARGUMENT for a tensor of another size; DATA_LOSS; ABORTED when the world or the session
// ended meanwhile; UNAVAILABLE when the daemon did not come back. `sequencer` assigned the tensor
// id in `begin`, if any. After a break, an upload by name resumes, or starts again at a new
// sequencer.
absl::StatusOr<v1::Tensor> Upload(Connection* connection, v1::BeginUpload begin,
                                  int64_t total_bytes, const ReadFn& read, const Progress& progress,
                                  const TransferLimits& limits = {},
                                  const std::string& sequencer = "");

// Reads the whole contents, of one version. Errors: those of `write`; FAILED_PRECONDITION for a
// tensor without contents; ABORTED if they changed, or were lost with their sequencer, while the
// connection was broken; UNAVAILABLE.
absl::StatusOr<v1::Tensor> Download(Connection* connection, const v1::TensorRef& tensor,
                                    const WriteFn& write, const Progress& progress,
                                    const TransferLimits& limits = {},
                                    const std::string& sequencer = "");

}  // namespace agmm
