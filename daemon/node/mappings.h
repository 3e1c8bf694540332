// Mappings of tensor shards into the memory of a client on this host, under a lease that lasts
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

// One mapping. Thread-safe. Callbacks keep it alive until its lease has ended: the memory is mapped
// as long as the client's connection to the file socket is open, which may be longer than its call.
class ServedMapping : public std::enable_shared_from_this<ServedMapping> {
 public:
  // Sends the mapping's answers to its client; called without the lock, on any thread.
  struct Client {
    // Sends the shards once the client may map them, and after a commit the tensor with its new
    // version.
    std::function<void(v1::MapTensorResponse)> send;
    std::function<void(absl::Status)> end;  // called once, with the last answer
  };
  ServedMapping(Mappings* mappings, Client client);

  // Requests the lease, on behalf of `call`. To be called once.
  void Begin(const CallContext& call, const v1::BeginMapping& begin);
  // Makes the shards the new contents. Answered once the client has unmapped them.
  void Commit();
  // Ends the mapping; OK stands for a normal end without a commit. The first end counts. If a
  // commit has been sent to the sequencer, its answer decides.
  void End(absl::Status why);
  // Ends the mapping if it belongs to the session.
  void EndSession(const std::string& session_id);

  // Reports the memory as held, if the client may still have it mapped. `earlier` selects mappings
  // whose generation has ended; otherwise mappings of the current one. Called on the loop, which
  // also reports the release.
  void ReportHeld(bool earlier);

  bool writable() const { return writable_; }

 private:
  friend class Mappings;
  // kOpening: the lease has been requested. kOpen: the client may map the shards, and write them.
  // kUnmapping: the client must unmap them. kReturning: the lease is being returned. kCommitting:
  // the lease is being returned with new contents. kOver: the lease has ended.
  enum class Phase { kIdle, kOpening, kOpen, kUnmapping, kReturning, kCommitting, kOver };

  void RequestLease(CallContext call, const v1::Tensor& tensor);
  void OnLease(absl::StatusOr<HeldLease> lease);
  void OnReturned(absl::StatusOr<v1::EndLeaseResponse> response);
  // Called when the client's connection to the file socket has ended.
  void OnUnmapped();
  // Called on the loop, kUnmapGrace after the client was asked to unmap.
  void OnStillMapped(pid_t client);

  // These, and all below, require the lock.
  void Advance(Deferred* after);
  void ReturnLease(Deferred* after);
  // Reports the end to the client, once.
  void Tell(const absl::Status& status, Deferred* after);
  void Finish(Deferred* after);
  // Fills `response` with the shards and the token of their files.
  absl::Status Offer(v1::MapTensorResponse* response);

  Mappings* const mappings_;
  std::atomic<bool> writable_ = false;

  std::mutex mutex_;  // of all below
  Phase phase_ = Phase::kIdle;
  Client client_;                    // null once the end was reported
  std::string session_id_;           // ends the mapping
  bool commit_ = false;              // requested
  std::optional<absl::Status> end_;  // the first one
  HeldLease lease_;
  std::set<int> ranks_;    // ranks with mapped shards
  std::string token_;      // of the files; empty: not offered yet
  bool unmapped_ = false;  // no process has the memory mapped
  uint64_t hold_id_ = 0;   // id of the report that the memory is held; 0: not reported
};

// The mappings of this daemon's clients. Thread-safe.
class Mappings {
 public:
  using ReportFn = std::function<void(v1::Report)>;

  // All arguments must outlive the mappings. `node_names` is by world rank. A client must begin its
  // mapping within `silence`.
  Mappings(const TransferParts& parts, TensorStore* store, std::vector<std::string> node_names,
           absl::Duration silence = absl::Seconds(60));
  // Until this call, mappings are refused. `files` is destroyed before this object.
  void SetFiles(FileSocket* files) { files_ = files; }
  // `report` receives the memory that clients keep mapped, and its release, on the loop. Must be
  // set before the first mapping.
  void OnReport(ReportFn report) { report_ = std::move(report); }

  // Creates a mapping for one client, and counts it from now on. Errors: RESOURCE_EXHAUSTED.
  absl::StatusOr<std::shared_ptr<ServedMapping>> Create(ServedMapping::Client client);

  // End the session's mappings, or all mappings because their generation has ended. Memory that
  // clients still have mapped keeps its lease, or is reported by ReportHeld.
  void EndSession(const std::string& session_id);
  void EndAll(const absl::Status& why);

  // Reports memory of earlier generations that clients still have mapped. Called on the loop.
  void ReportHeld();
  // Returns the number of mappings that have not ended.
  size_t count();
  absl::Duration silence() const { return silence_; }
  Loop* loop() const { return parts_.loop; }

 private:
  friend class ServedMapping;
  // Returns OK if the shards of `tensor` can be mapped here: all of them for writing, at least one
  // for reading.
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
