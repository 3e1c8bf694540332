// Bytes of tensors between nodes, outside of any plan: requests of this node, and answers to
// others'. Progress thread only, but for Write and Read.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "daemon/transport/endpoints.h"
#include "daemon/transport/receives.h"
#include "daemon/transport/world.h"

namespace agmm::transport {

class Bulk {
 public:
  Bulk(UcxWorker* worker, const CurrentWorld& worlds, Endpoints* endpoints, Receives* receives,
       BulkStore* store, Stats* stats);

  // Any thread.
  void Write(int node, const BulkBlock& block, int64_t bytes, Outgoing data, Done done);
  void Read(int node, const BulkBlock& block, const Rows& to, Done done);

  // Active messages of the four kinds. They return UCS_INPROGRESS where `payload` is kept.
  ucs_status_t OnMessage(wire::Kind kind, const void* header, size_t header_length,
                         const Payload& payload);

  // Fails the requests to `node` that are as old as `generation`.
  void FailNode(int node, uint64_t generation, absl::Status why);
  // Fails the requests of another generation than the world's.
  void FailStale();
  void FailAll(absl::Status why);

 private:
  // Ends when it is answered (or failed) and UCX is done with what it sends.
  struct Request {
    int node = -1;
    uint64_t generation = 0;
    wire::Kind answer = wire::kWritten;
    Rows to;
    bool sending = true, waiting = true;
    absl::Status status;
    Done done;
  };

  void Start(const wire::BulkHeader& header, Request request, std::shared_ptr<const World> world,
             std::unique_ptr<Outbound> outbound);
  void OnSent(uint64_t id, absl::Status status);
  void Answer(uint64_t id, absl::Status status);
  void FinishIfDone(uint64_t id);

  ucs_status_t OnWrite(const wire::BulkHeader& header, const Payload& payload);
  void OnRead(const wire::BulkHeader& header);
  ucs_status_t OnAnswer(wire::Kind kind, const wire::BulkHeader& header, const Payload& payload);
  // Sends the answer to `request` on the way it came from: `status`, or its `data`.
  void Reply(const wire::BulkHeader& request, const absl::Status& status, Outgoing data);

  UcxWorker* const worker_;
  const CurrentWorld& worlds_;
  Endpoints* const endpoints_;
  Receives* const receives_;
  BulkStore* const store_;
  Stats* const stats_;
  uint64_t last_id_ = 0;
  std::unordered_map<uint64_t, Request> requests_;
};

}  // namespace agmm::transport
