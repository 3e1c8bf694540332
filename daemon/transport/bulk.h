// Bytes of tensors between nodes, outside plans: this node's requests, and its answers to other
// nodes. Progress thread only, except Start.
#pragma once

#include <cstdint>
#include <unordered_map>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/endpoints.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/receives.h"

namespace agmm::transport {

class Bulk {
 public:
  Bulk(Shared& shared, Endpoints* endpoints, Receives* receives, BulkStore* store)
      : shared_(shared), endpoints_(endpoints), receives_(receives), store_(store) {}

  // Sends a request for `bytes` bytes of `block`: kWrite with `data`, kRead into `to`, or kPing,
  // which has no bytes. Any thread.
  void Start(wire::Kind kind, int node, const BulkBlock& block, int64_t bytes, Outgoing data,
             const Rows& to, Done done);

  // Takes active messages of all kinds except kPlan. Returns UCS_INPROGRESS if `payload` is kept.
  ucs_status_t OnMessage(wire::Kind kind, const void* header, size_t header_length,
                         const Payload& payload);

  // Fails the requests of `scope`.
  void Fail(const Scope& scope, const absl::Status& why);
  // Fails the requests of older generations.
  void FailStale();

 private:
  // A request ends once UCX has sent it and it has been answered or has failed, in either order.
  struct Request {
    int node = -1;
    uint64_t generation = 0;
    wire::Kind answer = wire::kWritten;
    Rows to;
    bool sending = true;  // UCX reads its header and data
    bool waiting = true;  // for the answer
    absl::Status status;
    Done done;
  };

  void OnSent(uint64_t id, absl::Status status);
  void Answer(uint64_t id, absl::Status status);
  void FinishIfDone(uint64_t id);

  // Returns the memory on this node of the block in the header, with the size in the header.
  absl::StatusOr<Rows> Locate(const wire::BulkHeader& header, bool write) const;
  ucs_status_t OnWrite(const wire::BulkHeader& header, const Payload& payload);
  void OnRead(const wire::BulkHeader& header);
  ucs_status_t OnAnswer(wire::Kind kind, const wire::BulkHeader& header, const Payload& payload);
  // Sends `status`, or on success `data`, to the node that sent `request`.
  void Reply(const wire::BulkHeader& request, const absl::Status& status, Outgoing data);

  Shared& shared_;
  Endpoints* const endpoints_;
  Receives* const receives_;
  BulkStore* const store_;
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, Request> requests_;
};

}  // namespace agmm::transport
