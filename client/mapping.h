// A tensor's shards in this process's own memory: what is read and written there is the tensor itself. For
// clients on the daemon's host, connected over its unix socket.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "client/connection.h"

namespace agmm {

// Thread-safe, but for what is done with the memory.
class Mapping {
 public:
  // A shard: rows x columns of the tensor, row-major, rows pitch_bytes apart. Read-only, and a write is a
  // fault of this process, unless the mapping is writable.
  struct Shard {
    int rank = 0;
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    int64_t pitch_bytes = 0;
    std::byte* data = nullptr;
  };

  // Waits for the jobs before it, until `deadline`. Errors: FAILED_PRECONDITION where the shards are not on
  // that daemon's devices (all of them, to write), over TCP, or for a read of a tensor without contents.
  static absl::StatusOr<std::unique_ptr<Mapping>> Open(Connection* connection,
                                                       const v1::BeginMapping& begin,
                                                       absl::Time deadline);
  // Gives the tensor back: a writable one that was not committed is left without contents. The memory of
  // the shards is gone.
  ~Mapping();
  Mapping(const Mapping&) = delete;

  const v1::Tensor& tensor() const { return tensor_; }
  const std::vector<Shard>& shards() const { return shards_; }

  // The shards hold the new contents. Once; what is written to them later reaches nobody. Returns the tensor
  // with its new version. Errors: ABORTED or CANCELLED when the mapping had ended before.
  absl::StatusOr<v1::Tensor> Commit();

  // OK while the memory is the tensor's. Once the daemon has ended the mapping (its session, its world or
  // the daemon itself is gone), why: the memory is then zeros that nobody shares.
  absl::Status status() const;

 private:
  struct Region {
    std::byte* data;
    size_t bytes;
  };
  explicit Mapping(Connection* connection) : call_(connection, absl::InfiniteFuture()) {}
  absl::Status Map(const v1::MapTensorResponse& response, bool writable, absl::Time deadline);
  void Watch();
  void Detach();

  Connection::Call call_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::MapTensorRequest, v1::MapTensorResponse>> stream_;
  v1::Tensor tensor_;
  std::vector<Shard> shards_;
  std::vector<Region> regions_;
  mutable std::mutex mutex_;
  absl::Status status_;
  bool ended_ = false;  // the stream has
  bool committed_ = false;
  v1::Tensor committed_tensor_;
  std::thread watcher_;
};

}  // namespace agmm
