// A tensor's shards in this process's own memory: what is read and written there is the tensor
// itself. For clients on the daemon's host, connected over its unix socket. The daemon gives the
// memory to nobody else before this process has detached or ended, also where the stream has
// broken. A forked child has none of it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "client/connection.h"
#include "client/mapped_files.h"

namespace agmm {

// Takes no thread. Thread-safe, but for what is done with the memory.
class TensorMapping final
    : private grpc::ClientBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse> {
 public:
  // A shard: rows x columns of the tensor, row-major, rows pitch_bytes apart. Read-only, and a
  // write is a fault of this process, unless the mapping is writable.
  struct Shard {
    int rank = 0;
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    int64_t pitch_bytes = 0;
    std::byte* data = nullptr;
  };

  // Waits for the jobs before it, until `deadline`. Calls `on_end`, once and from any thread, when
  // it uses the connection no more: when the mapping has ended, or cannot be. Errors:
  // FAILED_PRECONDITION where the shards are not on that daemon's devices (all of them, to write),
  // over TCP, or for a read of a tensor without contents.
  static absl::StatusOr<std::unique_ptr<TensorMapping>> Open(
      Connection* connection, const v1::BeginMapping& begin, absl::Time deadline,
      std::function<void()> on_end = [] {});
  // Gives the tensor back: a writable one that was not committed is left without contents. The
  // memory of the shards is gone.
  ~TensorMapping() override;
  TensorMapping(const TensorMapping&) = delete;

  const v1::Tensor& tensor() const { return tensor_; }
  const std::vector<Shard>& shards() const { return shards_; }

  // The shards hold the new contents; what is written to them from now on reaches nobody. Once.
  // Returns the tensor with its new version. Errors: FAILED_PRECONDITION for one that is only read,
  // or has been committed; ABORTED or CANCELLED when the mapping had ended before;
  // DEADLINE_EXCEEDED, and then it has ended, with or without new contents.
  absl::StatusOr<v1::Tensor> Commit(absl::Time deadline);

  // OK while the memory is the tensor's. Once the mapping has ended (it is committed; its session,
  // its world or the daemon itself is gone; the connection was interrupted), why: the memory is
  // then zeros that nobody shares.
  absl::Status status() const;

 private:
  TensorMapping(Connection* connection, const v1::BeginMapping& begin,
                std::function<void()> on_end);
  absl::Status Map(const v1::MapTensorResponse& response, absl::Time deadline);
  // What is to be written is written into large pages, where the machine has them.
  void TakeLargePages(absl::Time deadline);
  // The memory is this process's alone, and the daemon knows.
  void Detach();
  void Cancel();
  // Nothing more will be sent or read: the call may end.
  void Release();

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const bool writable_;
  v1::Tensor tensor_;
  std::vector<Shard> shards_;
  std::vector<size_t> shard_bytes_;
  MappedFiles files_;               // let go of once all shards are detached
  v1::MapTensorRequest request_;    // gRPC's while writing_
  v1::MapTensorResponse response_;  // gRPC's while it reads

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection::Call> call_;  // until the call is done
  std::function<void()> on_end_;
  bool held_ = true;  // against its end, so that it may be written and read from any thread
  bool writing_ = true, answered_ = false, committing_ = false;
  bool detached_ = false;
  bool done_ = false;  // gRPC uses this object no more
  std::optional<v1::Tensor> committed_;
  absl::Status status_;  // once done_
};

}  // namespace agmm
