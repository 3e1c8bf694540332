// Contents of tensors to and from callbacks, a piece at a time: memory for a few MiB, whatever the
// size. A broken connection is made again and the transfer goes on where it was, after kRetryBound
// at most.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/tensor.pb.h"
#include "client/connection.h"

namespace agmm {

// What is told on the calling thread while contents move.
struct Progress {
  // After each piece: how many bytes of the contents are through; less than before after a break.
  std::function<void(int64_t bytes)> moved;
  // The connection broke, and the daemon is looked for; may be null.
  std::function<void()> reconnecting = nullptr;
};

// Fills `out` with bytes [offset_bytes, offset_bytes + size_bytes) of the contents: row-major
// without padding, in the tensor's dtype, little endian. Offsets rise, but for a break: then some
// bytes are asked for again, and must be the same. An error ends the upload.
using ReadFn = std::function<absl::Status(int64_t offset_bytes, int64_t size_bytes, char* out)>;

// Takes bytes of the contents of `tensor` from offset_bytes on, in order, each once.
using WriteFn = std::function<absl::Status(const v1::Tensor& tensor, int64_t offset_bytes,
                                           absl::string_view data)>;

// Writes the whole contents, total_bytes of them, of what `begin` names; it gets an id if it has
// none. Returns the tensor with its new version. Waits for the jobs before it, as long as they
// take. Errors, all of which leave a new tensor's space free: those of `read`; INVALID_ARGUMENT
// where the tensor has not total_bytes; DATA_LOSS; ABORTED when the world or the session ended
// meanwhile; UNAVAILABLE when the daemon did not come back. `sequencer` gave the id, where `begin`
// names a tensor by one. A put by name that breaks goes on, or begins anew, with whatever sequencer
// is there.
absl::StatusOr<v1::Tensor> Upload(Connection* connection, v1::BeginUpload begin,
                                  int64_t total_bytes, const ReadFn& read, const Progress& progress,
                                  absl::Time deadline = absl::InfiniteFuture(),
                                  const std::string& sequencer = "");

// Reads the whole contents, of one version. Errors: those of `write`; FAILED_PRECONDITION for a
// tensor without contents; ABORTED where they changed, or went with their sequencer, while the
// connection was broken; UNAVAILABLE.
absl::StatusOr<v1::Tensor> Download(Connection* connection, const v1::TensorRef& tensor,
                                    const WriteFn& write, const Progress& progress,
                                    absl::Time deadline = absl::InfiniteFuture(),
                                    const std::string& sequencer = "");

}  // namespace agmm
