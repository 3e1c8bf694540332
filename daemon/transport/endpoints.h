// The connections to the other nodes, and the messages being sent on them. Progress thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "daemon/transport/address.h"
#include "daemon/transport/done.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/staging.h"
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
  bool push = false;  // sent eagerly in any size
  std::string text;   // the data of an answer that is an error
  Done done;
  std::shared_ptr<Endpoint> endpoint;
};

// Returns the error for all requests and messages to a lost peer.
absl::Status PeerLost(const Shared& shared, int node, absl::string_view why);

class Endpoints {
 public:
  // `on_failure` is called when a connection broke.
  Endpoints(Shared& shared, std::function<void(int node, absl::Status why)> on_failure);
  // Requires that the worker is closed.
  ~Endpoints();

  // Connects to `node`, or waits for its greetings. Only one of the two nodes connects first,
  // because UCX uses freed memory if two connections between the same ends cross (NOTES.md).
  // Messages wait until they are connected.
  void Open(int node, const TransportAddress& address);
  // Takes an active message of kind kGreet.
  ucs_status_t OnGreeting(const void* header, size_t header_length);
  // Starts to end all connections, which completes the messages in flight.
  void StartClose();
  // Returns true once UCX has closed them.
  bool closed();
  // Forgets all connections and fails the messages that UCX has not completed. Requires that no
  // thread calls UCX for them any more.
  void Reset(const absl::Status& why);

  // Sends `message` with `header`, whose envelope and check it sets.
  template <typename Header>
  void Send(int node, Header header, std::unique_ptr<Outbound> message) {
    if (!Seal(header, message.get()))
      return message->done(absl::InternalError("OpenSSL failed to compute a header's check"));
    SendSealed(node, std::move(message));
  }

  // No connection was opened since the last Reset.
  bool unused() const { return all_.empty(); }
  bool busy() const { return sending_ > 0; }

 private:
  template <typename Header>
  static bool Seal(Header header, Outbound* message) {
    static_assert(sizeof(Header) <= sizeof(message->header));
    const Generation& generation = *message->generation;
    header.envelope = {wire::kVersion, message->kind, generation.self_node, generation.number};
    if (!generation.key->Seal(&header)) return false;
    std::memcpy(message->header.data(), &header, sizeof(header));
    message->header_length = sizeof(header);
    return true;
  }
  void SendSealed(int node, std::unique_ptr<Outbound> message);
  // Sends through `handle`, a connection to the endpoint.
  void SendOn(Endpoint* endpoint, ucp_ep_h handle, std::unique_ptr<Outbound> message);
  void Connect(Endpoint* endpoint);
  void Greet(Endpoint* endpoint);
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static void OnSent(void* request, ucs_status_t status, void* message);
  void Fail(const std::shared_ptr<Endpoint>& endpoint);

  Shared& shared_;
  const std::function<void(int, absl::Status)> on_failure_;
  std::map<int, std::shared_ptr<Endpoint>> all_;
  std::map<int, unsigned> greeted_;  // the connections of a node that have greeted, a bit each
  int64_t sending_ = 0;
  std::vector<ucs_status_ptr_t> closing_;  // requests
};

}  // namespace agmm::transport
