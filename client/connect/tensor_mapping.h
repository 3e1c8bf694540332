// Maps a tensor's shards into this process's memory: reads and writes there reach the tensor
// itself. For clients on the daemon's host, connected over its unix socket. The daemon does not
// reuse the memory before this process has unmapped it or ended, even if the stream breaks. A
// forked child does not inherit it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/connect/connection.h"
#include "kernels/base/deadline.h"

namespace agmm {

// The files of a mapping, and the connection that they came over: while it is open, the daemon
// assumes that this process has them mapped, and does not reuse the memory.
// Thread-compatible. A forked child does not inherit the connection.
class MappedFiles {
 public:
  MappedFiles() = default;
  ~MappedFiles() { Release(); }
  MappedFiles(const MappedFiles&) = delete;

  // Fetches the files by the token of `response`; the caller closes them. May be called once.
  // Errors: UNAVAILABLE.
  absl::StatusOr<std::vector<int>> Fetch(const v1::MapTensorResponse& response, Deadline deadline);
  // Tells the daemon that the files are no longer mapped.
  void Release();

 private:
  int connection_ = -1;
};

// Uses no thread of its own. Thread-safe, except for accesses to the memory.
class TensorMapping final
    : private grpc::ClientBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse> {
 public:
  // A shard: rows x columns of the tensor, row-major, rows pitch_bytes apart. A write to
  // a mapping that is not writable faults.
  struct Shard {
    int rank = 0;
    int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
    int64_t pitch_bytes = 0;
    std::byte* data = nullptr;
  };

  // Waits for earlier jobs on the tensor, until `deadline`. `sequencer` assigned the tensor id in
  // `begin`, if any. Drops `use`, on any thread, once the
  // connection is no longer used: after the mapping's end, or a failure. Errors:
  // FAILED_PRECONDITION if no shard is on that daemon's devices or, for a writable mapping, if any
  // is not; over TCP; or for a read of a tensor without contents.
  static absl::StatusOr<std::unique_ptr<TensorMapping>> Open(Connection* connection,
                                                             const v1::BeginMapping& begin,
                                                             Deadline deadline,
                                                             const std::string& sequencer = "",
                                                             std::shared_ptr<void> use = nullptr);
  // Ends the mapping as End does, and unmaps the shards.
  ~TensorMapping() override;
  TensorMapping(const TensorMapping&) = delete;

  const v1::Tensor& tensor() const { return tensor_; }
  const std::vector<Shard>& shards() const { return shards_; }

  // Makes the shards' bytes the new contents; later writes to the memory have no effect. May be
  // called once. Returns the tensor with its new version. Errors: FAILED_PRECONDITION for a mapping
  // that is not writable, or was committed; ABORTED or CANCELLED if the mapping had ended before;
  // DEADLINE_EXCEEDED if the outcome is not known; the mapping has ended in this case, too.
  absl::StatusOr<v1::Tensor> Commit(Deadline deadline);

  // Returns the lease: a writable tensor that was not committed is left without contents. The
  // memory stays, as private zeros. Has no effect on a mapping that has ended, or while a commit is
  // in progress.
  void End();

  // OK while the memory is the tensor's. Once the mapping has ended (by a commit, by End, with its
  // session, its world or the daemon, or by an interrupt), the reason: the memory is then private
  // zeros.
  absl::Status status() const;

 private:
  TensorMapping(Connection* connection, const v1::BeginMapping& begin, const std::string& sequencer,
                std::shared_ptr<void> use);
  absl::Status Map(const v1::MapTensorResponse& response, Deadline deadline);
  // Backs the shards with large pages, if the machine has them, before they are written.
  void TakeLargePages(Deadline deadline);
  // Replaces the shards by private memory, and tells the daemon.
  void Detach();
  void Cancel();
  // Lets the call end: no more messages will be sent or read.
  void Release();

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const bool writable_;
  v1::Tensor tensor_;
  std::vector<Shard> shards_;
  std::vector<size_t> shard_bytes_;
  MappedFiles files_;               // released once all shards are detached
  v1::MapTensorRequest request_;    // gRPC's while writing_
  v1::MapTensorResponse response_;  // gRPC's while it reads

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection::Call> call_;  // until the call is done
  std::shared_ptr<void> use_;
  bool held_ = true;  // keeps the call open, so that any thread may start a write or a read
  bool writing_ = true, answered_ = false, committing_ = false;
  bool detached_ = false;
  bool ended_here_ = false;  // by End
  bool done_ = false;        // gRPC no longer uses this object
  std::optional<v1::Tensor> committed_;
  absl::Status status_;  // once done_
};

}  // namespace agmm
