// Maps a tensor's shards into this process's memory: reads and writes there reach the tensor
// itself, while the mapping holds a lease on it. For clients on the daemon's host, connected over
// its unix socket. The daemon does not reuse the memory before this process has unmapped it or
// ended, even if the stream breaks. A forked child does not inherit it.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "client/connect/connection.h"
#include "client/connect/shard_memory.h"
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
  // Tells the daemon, after a renewal, that this process is about to use the shards. It learns of
  // that even if this process ends right after. Returns false if the connection has ended.
  bool Use();
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

  // Waits for earlier jobs on the tensor, until `deadline` or a request to `stop`. `sequencer`
  // assigned the tensor id in `begin`, if any. Drops `use`, on any thread, once the connection is
  // no longer used: after the mapping's end, or a failure. Errors: CANCELLED after a request to
  // `stop` that did not come too late; FAILED_PRECONDITION if no shard is on that daemon's devices
  // or, for a writable mapping, if any is not; over TCP; or for a read of a tensor without
  // contents.
  static absl::StatusOr<std::unique_ptr<TensorMapping>> Open(Connection* connection,
                                                             const v1::BeginMapping& begin,
                                                             Deadline deadline,
                                                             const std::string& sequencer = "",
                                                             const std::stop_token& stop = {},
                                                             std::shared_ptr<void> use = nullptr);
  // Ends the mapping as End does, and unmaps the shards.
  ~TensorMapping() override;
  TensorMapping(const TensorMapping&) = delete;

  const v1::Tensor& tensor() const { return tensor_; }
  const std::vector<Shard>& shards() const { return shards_; }

  // Makes the shards' bytes the new contents, and returns the lease: until Renew, the memory is
  // private NaNs. Returns the tensor with its new version. Errors: FAILED_PRECONDITION for a
  // mapping that is not writable, or has no lease; ABORTED or CANCELLED if the mapping had ended
  // before; DEADLINE_EXCEEDED if the outcome is not known. After DEADLINE_EXCEEDED the mapping has
  // ended.
  absl::StatusOr<v1::Tensor> Commit(Deadline deadline);
  // Returns the lease of a mapping that is not writable, as Commit does for a writable one.
  absl::StatusOr<v1::Tensor> Release(Deadline deadline);
  // Ends a mapping to which nothing was written, after it has returned the lease: the contents
  // stay, which End would cost the tensor.
  void GiveBack(Deadline deadline);
  // Takes the lease again, after the users of the tensor so far; the memory is then the tensor's at
  // the same addresses. Returns the tensor, at once if the mapping has its lease. Errors: those of
  // Commit, and NOT_FOUND for a deleted tensor; after each, except for a call that another thread
  // is in, the mapping has ended.
  absl::StatusOr<v1::Tensor> Renew(Deadline deadline);

  // Ends the mapping: a writable tensor that was not committed is left without contents. The memory
  // stays, as private NaNs. Waits for a commit or a release in progress, and ends a renewal. Has
  // no effect on a mapping that has ended.
  void End();

  // OK while the memory is the tensor's. FAILED_PRECONDITION between a commit or a release and the
  // renewal. Once the mapping has ended (by End, with its session, its world or the daemon, or by
  // an interrupt), the reason.
  absl::Status status() const;

 private:
  TensorMapping(Connection* connection, const v1::BeginMapping& begin, const std::string& sequencer,
                std::shared_ptr<void> use);
  absl::Status Map(const v1::MapTensorResponse& response, Deadline deadline);
  // Backs the shards with large pages, if the machine has them, before they are written.
  void TakeLargePages(Deadline deadline, const std::stop_token& stop);
  // Returns the lease by `request`.
  absl::StatusOr<v1::Tensor> Return(const v1::MapTensorRequest& request, Deadline deadline);
  // Sends `request` and waits for its answer. Ends the mapping at the deadline, with `overdue`, and
  // if End waits. These, and all below, require the lock.
  absl::StatusOr<v1::Tensor> Ask(std::unique_lock<std::mutex>& lock,
                                 const v1::MapTensorRequest& request, Deadline deadline,
                                 const std::string& overdue);
  // The error of a call that needs the stream, or OK.
  absl::Status CheckOpen(std::unique_lock<std::mutex>& lock, Deadline deadline);
  // Replaces the shards by private memory for good, and tells the daemon.
  void Detach();
  // Ends the call.
  void Cancel();
  // Lets the call end: no more messages will be sent or read.
  void LetEnd();

  void OnWriteDone(bool ok) override;
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

  const bool writable_;
  v1::Tensor tensor_;
  std::vector<Shard> shards_;
  MappedFiles files_;                // released once all shards are unmapped
  std::vector<ShardMemory> memory_;  // of the shards
  v1::MapTensorRequest request_;     // gRPC's while writing_
  v1::MapTensorResponse response_;   // gRPC's while it reads

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::optional<Connection::Call> call_;  // until the call is done
  std::shared_ptr<void> use_;
  bool held_ = true;  // keeps the call open, so that any thread may start a write or a read
  bool writing_ = true, answered_ = false;
  bool leased_ = true;     // the memory is the tensor's, unless detached_
  bool asking_ = false;    // a call waits for an answer
  bool renewing_ = false;  // and this call is Renew
  bool ending_ = false;    // End waits for the call
  bool detached_ = false;
  bool ended_here_ = false;           // by End
  absl::Status overdue_;              // the reason, if a deadline ended it
  bool done_ = false;                 // gRPC no longer uses this object
  std::optional<v1::Tensor> answer_;  // to the last message
  absl::Status status_;               // once done_
};

}  // namespace agmm
