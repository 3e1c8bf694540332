// Tensors whose shards a client of this host maps into its own memory, under a lease that lasts
// until the client has unmapped them.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/node/file_socket.h"
#include "daemon/node/leases.h"
#include "daemon/node/store.h"
#include "kernels/base/deferred.h"

namespace agmm {

class Mappings;

// One mapping. Thread-safe. It lives in callbacks until its lease has ended: the client's
// connection to the file socket, and not its call, says whether the memory is mapped.
class ServedMapping : public std::enable_shared_from_this<ServedMapping> {
 public:
  // How the mapping answers its client; without its lock, on any thread.
  struct Client {
    // The shards, once they are the client's; behind a commit the tensor with its new version.
    std::function<void(v1::MapTensorResponse)> send;
    std::function<void(absl::Status)> end;  // once; the last answer
  };
  ServedMapping(Mappings* mappings, Client client);

  // Asks for the lease, on behalf of `call`. Once.
  void Begin(const CallContext& call, const v1::BeginMapping& begin);
  // The shards hold the new contents. Answered once the client has unmapped them.
  void Commit();
  // Ends the mapping; OK is its good end without a commit. The first end counts. A commit that has
  // been sent to the sequencer is decided by its answer.
  void End(absl::Status why);
  // Ends the mapping if it belongs to the session.
  void EndSession(const std::string& session_id);

  // Reports the memory, if the client may still have it mapped: `earlier` where the generation of
  // its lease is over, else where it is not. On the loop, which also reports its release.
  void ReportHeld(bool earlier);

  bool writable() const { return writable_; }

 private:
  friend class Mappings;
  // kOpening: the lease has been requested. kOpen: the client may map the shards, and write them.
  // kUnmapping: the client is to unmap them. kReturning: the lease is being returned.
  // kCommitting: likewise, with new contents. kOver: nothing is left.
  enum class Phase { kIdle, kOpening, kOpen, kUnmapping, kReturning, kCommitting, kOver };

  void RequestLease(CallContext call, const v1::Tensor& tensor);
  void OnLease(absl::StatusOr<v1::BeginLeaseResponse> response);
  void OnReturned(absl::StatusOr<v1::EndLeaseResponse> response);
  // The client's connection to the file socket has ended.
  void OnUnmapped();
  // On the loop, kUnmapGrace after the client was to unmap.
  void OnStillMapped(pid_t client);
  absl::Status CheckGeneration() const;

  // With the lock, as all below.
  void Advance(Deferred* after);
  void ReturnLease(Deferred* after);
  // Tells the client the end, once.
  void Tell(const absl::Status& status, Deferred* after);
  void Finish(Deferred* after);
  // Fills `response` with the shards and the token of their files.
  absl::Status Offer(v1::MapTensorResponse* response);

  Mappings* const mappings_;
  const uint64_t local_generation_;
  CallContext call_;  // of Begin
  std::atomic<bool> writable_ = false;

  std::mutex mutex_;  // of all below
  Phase phase_ = Phase::kIdle;
  Client client_;                    // null once told the end
  std::string session_id_;           // ends the mapping
  bool commit_ = false;              // asked for
  std::optional<absl::Status> end_;  // the first one
  uint64_t lease_id_ = 0;
  v1::Tensor tensor_;
  std::set<int> ranks_;    // with mapped shards
  std::string token_;      // of the files; empty: not offered yet
  bool unmapped_ = false;  // no process has the memory mapped
  uint64_t hold_id_ = 0;   // under which it was reported as held; 0: it was not
};

// The mappings of this daemon's clients. Thread-safe.
class Mappings {
 public:
  using ReportFn = std::function<void(v1::Report)>;

  // All outlive the mappings. `node_names` by world rank. A client is to begin its mapping within
  // `silence`.
  Mappings(const TransferParts& parts, TensorStore* store, std::vector<std::string> node_names,
           absl::Duration silence = absl::Seconds(60));
  // Mappings are refused before. `files` is destroyed before this object.
  void SetFiles(FileSocket* files) { files_ = files; }
  // `report` takes memory that clients keep mapped, and its release; on the loop. Set before the
  // first mapping.
  void OnReport(ReportFn report) { report_ = std::move(report); }

  // A mapping for one client, which counts from now on. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<ServedMapping>> Create(ServedMapping::Client client);

  // End those of the session, or all, because their generation is over. Memory that clients still
  // have mapped keeps its lease, or is reported by ReportHeld.
  void EndSession(const std::string& session_id);
  void EndAll(const absl::Status& why);

  // Reports memory of earlier generations that clients still have mapped. On the loop.
  void ReportHeld();
  // Mappings that are not over.
  size_t count();
  absl::Duration silence() const { return silence_; }
  Loop* loop() const { return parts_.loop; }

 private:
  friend class ServedMapping;
  // OK if the shards of `tensor` can be mapped here: all of them to write, one to read.
  absl::Status CheckPlace(const v1::Tensor& tensor, bool writable) const;
  void Remove(ServedMapping* mapping);
  std::vector<std::shared_ptr<ServedMapping>> All();

  const TransferParts parts_;
  TensorStore* const store_;
  const std::vector<std::string> node_names_;
  const absl::Duration silence_;
  std::atomic<FileSocket*> files_ = nullptr;
  std::atomic<uint64_t> next_hold_ = 1;
  ReportFn report_ = [](const v1::Report&) {};
  std::mutex mutex_;
  std::map<ServedMapping*, std::weak_ptr<ServedMapping>> mappings_;  // with mutex_
};

}  // namespace agmm
