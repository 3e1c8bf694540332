// Mappings of tensor shards into the memory of a client on this host. A mapping takes a lease for
// each use of the shards, and pins their memory in between, so that they can stay mapped.
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

// One mapping. Thread-safe. Callbacks keep it alive until its lease and its pin have ended: the
// memory is mapped as long as the client's connection to the file socket is open, which may be
// longer than its call.
class ServedMapping : public std::enable_shared_from_this<ServedMapping> {
 public:
  // Sends the mapping's answers to its client; called without the lock, on any thread.
  struct Client {
    // Sends the shards once the client may map them, and then an answer to each commit, release and
    // renewal.
    std::function<void(v1::MapTensorResponse)> send;
    std::function<void(absl::Status)> end;  // called once, with the last answer
  };
  ServedMapping(Mappings* mappings, Client client);

  // Requests the lease, on behalf of `call`. To be called once.
  void Begin(const CallContext& call, const v1::BeginMapping& begin);
  // Returns the lease of an offered mapping; kCommitted makes the shards the new contents.
  void ReturnLease(LeaseEnd how);
  // Requests the lease again, after its return was answered.
  void Renew();
  // Ends the mapping; OK stands for the end that the client wants. The first end counts. If a
  // commit has been sent to the sequencer, its client gets the answer before the end.
  void End(absl::Status why);
  // Ends the mapping if it belongs to the session.
  void EndSession(const std::string& session_id);
  // Ends the mapping of a deleted tensor as soon as it has no lease.
  void EndDeleted(uint64_t tensor_id);

  // Reports the memory as held, if the client may still have it mapped. `earlier` selects mappings
  // whose generation has ended; otherwise mappings of the current one. Called on the loop, which
  // also reports the release.
  void ReportHeld(bool earlier);

  bool writable() const { return writable_; }

 private:
  friend class Mappings;
  // kOpening: a lease has been requested, the first one or for a renewal. kOpen: the client may
  // use the shards. kKeeping: the lease is being returned; the client may keep the shards mapped.
  // kKept: only the pin is left. kUnmapping: the client must unmap them. kReturning: the lease or
  // the pin is being returned. kOver: both have ended.
  enum class Phase { kIdle, kOpening, kOpen, kKeeping, kKept, kUnmapping, kReturning, kOver };

  void RequestLease(CallContext call, const v1::Tensor& tensor);
  void OnLease(absl::StatusOr<HeldLease> lease);
  void OnKept(absl::StatusOr<v1::EndLeaseResponse> response);
  void OnReturned(absl::StatusOr<v1::EndLeaseResponse> response);
  // Sends the answer that was not sent yet, if any.
  void SendAnswer();
  // Called when the client has sent `count` bytes after its token: one for each renewal, before it
  // uses the shards.
  void OnUses(int64_t count);
  // Called when the client's connection to the file socket has ended.
  void OnUnmapped();
  // Called on the loop, kUnmapGrace after the client was asked to unmap.
  void OnStillMapped(pid_t client);

  // These, and all below, require the lock.
  void EndLocked(absl::Status why, Deferred* after);
  void Advance(Deferred* after);
  // Returns the lease, or else the pin; finishes once it has neither.
  void ReturnRest(Deferred* after);
  // Reports the end to the client, once.
  void Tell(const absl::Status& status, Deferred* after);
  void Finish(Deferred* after);
  // Fills `response` with the shards and the token of their files.
  absl::Status Offer(v1::MapTensorResponse* response);

  Mappings* const mappings_;
  std::atomic<bool> writable_ = false;

  std::mutex sending_;  // while an answer is sent, so that no end overtakes it; before mutex_
  std::mutex mutex_;    // of all below
  std::function<void()> answer_;  // sends the last answer; null once it was taken
  Phase phase_ = Phase::kIdle;
  Client client_;                         // null once the end was reported
  std::string session_id_;                // ends the mapping
  CallContext call_;                      // of the mapping's stream
  std::optional<absl::Status> end_;       // the first one
  HeldLease lease_;                       // the last one
  bool leased_ = false;                   // it has not been returned
  bool offered_ = false;                  // to the client
  bool fetched_ = false;                  // the client has the files; known at the end
  int64_t renewals_ = 0, uses_ = 0;       // counts: the client was offered them; it used them
  HeldLease pin_;                         // from the first return of a lease on
  std::shared_ptr<CancelToken> renewal_;  // withdraws the lease of a renewal; null: no renewal
  bool deleted_ = false;                  // the tensor
  std::set<int> ranks_;                   // ranks with mapped shards
  std::string token_;                     // of the files; empty: not offered yet
  bool unmapped_ = false;                 // no process has the memory mapped
  uint64_t hold_id_ = 0;  // id of the report that the memory is held; 0: not reported
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
  void EndDeleted(uint64_t tensor_id);

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
