// The connections to the other nodes, and the messages being sent on them. Progress thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/transport/done.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/staging.h"
#include "daemon/transport/types.h"
#include "daemon/transport/ucx_worker.h"
#include "daemon/transport/wire.h"

namespace agmm::transport {

struct Endpoint;

// One active message. UCX reads header and data until it completes the send.
struct Outbound {
  Outbound(wire::Kind kind, std::shared_ptr<const Generation> generation)
      : kind(kind), generation(std::move(generation)) {}

  const wire::Kind kind;
  const std::shared_ptr<const Generation> generation;  // to which it belongs
  std::array<std::byte, sizeof(wire::BulkHeader)> header;
  size_t header_length = 0;
  Outgoing data;
  bool push = false;  // eager, however large
  std::string text;   // the data of an answer that is an error
  Done done;
  std::shared_ptr<Endpoint> endpoint;
};

// The error of all requests and messages that a lost peer leaves behind.
absl::Status PeerLost(int node, absl::string_view why);

class Endpoints {
 public:
  // `on_failure`: a connection broke. `on_cut`: nothing more can arrive for `scope`, and receives
  // that UCX has not completed by now must be abandoned.
  Endpoints(Shared& shared, absl::Duration flush_timeout,
            std::function<void(int node, absl::Status why)> on_failure,
            std::function<void(const Scope& scope)> on_cut);
  // Requires that the worker is closed.
  ~Endpoints();

  // `generation`: the last one that an older connection to the node can have served.
  void Open(int node, const std::string& worker_address, uint64_t incarnation, uint64_t generation);
  void Close(int node, uint64_t generation);
  void CloseAll(uint64_t generation);
  // Fails all messages that UCX has not completed.
  void AbandonAll();

  // Sends `message` with `header`, whose envelope and check it sets.
  template <typename Header>
  void Send(int node, Header header, std::unique_ptr<Outbound> message) {
    static_assert(sizeof(Header) <= sizeof(message->header));
    const Generation& generation = *message->generation;
    header.envelope = {wire::kVersion, message->kind, generation.self_node, generation.number};
    if (!generation.key->Seal(&header))
      return message->done(absl::InternalError("OpenSSL failed to compute a header's check"));
    std::memcpy(message->header.data(), &header, sizeof(header));
    message->header_length = sizeof(header);
    SendSealed(node, std::move(message));
  }

  bool idle() const { return open_.empty() && closing_.empty(); }
  bool busy() const { return sending_ > 0 || !closing_.empty(); }

 private:
  void SendSealed(int node, std::unique_ptr<Outbound> message);
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static void OnFlushed(void* request, ucs_status_t status, void* endpoint);
  static void OnSent(void* request, ucs_status_t status, void* message);
  void Fail(const std::shared_ptr<Endpoint>& endpoint, absl::Status why);
  void StartClose(const std::shared_ptr<Endpoint>& endpoint, uint64_t generation);
  void Drained(const std::shared_ptr<Endpoint>& endpoint);
  void Cut(const std::shared_ptr<Endpoint>& endpoint);
  void Abandon(Endpoint* endpoint);

  Shared& shared_;
  const absl::Duration flush_timeout_;
  const std::function<void(int, absl::Status)> on_failure_;
  const std::function<void(const Scope&)> on_cut_;
  std::map<int, std::shared_ptr<Endpoint>> open_;
  std::list<std::shared_ptr<Endpoint>> closing_;  // until UCX has completed all sends
  int64_t sending_ = 0;
};

}  // namespace agmm::transport
