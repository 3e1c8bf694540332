#include "daemon/transport/endpoints.h"

#include <unordered_set>
#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"

namespace agmm::transport {

struct Endpoint : std::enable_shared_from_this<Endpoint> {
  Endpoints* owner = nullptr;
  int node = -1;
  TransportAddress address;
  // Two connections: this node sends only on the first, and the peer only on the second. On a
  // single connection, the "go ahead" for the peer's bytes would queue behind this node's own
  // bytes, so one direction would wait for the other to end (NOTES.md).
  ucp_ep_h out = nullptr, in = nullptr;
  std::string broken;  // the failure, once it has failed
  std::unordered_set<Outbound*> sending;
  std::vector<std::unique_ptr<Outbound>> waiting;  // until it is connected
};

namespace {
constexpr unsigned kBothGreeted = 0b11;
}  // namespace

absl::Status PeerLost(const Shared& shared, int node, absl::string_view why) {
  return WithReason(
      absl::AbortedError(absl::StrFormat(
          "%s was lost: %s; its jobs end, and new ones run once the world has formed again",
          shared.describe(node), why)),
      kReasonPeerLost);
}

Endpoints::Endpoints(Shared& shared, std::function<void(int, absl::Status)> on_failure)
    : shared_(shared), on_failure_(std::move(on_failure)) {}

Endpoints::~Endpoints() { Reset(absl::AbortedError("the transport is closing")); }

void Endpoints::Open(int node, const TransportAddress& address) {
  if (all_.count(node) > 0) return;
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->owner = this;
  endpoint->node = node;
  endpoint->address = address;
  all_[node] = endpoint;
  if (shared_.worker->address() < address.worker) {
    Connect(endpoint.get());
    Greet(endpoint.get());
  } else if (greeted_[node] == kBothGreeted) {
    Connect(endpoint.get());
  }
}

void Endpoints::Connect(Endpoint* endpoint) {
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(endpoint->address.worker.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Endpoints::OnError;
  params.err_handler.arg = endpoint;
  // UCX pairs the connections of both ends in the order of opening, so both ends must use the same
  // order.
  const bool first = shared_.worker->address() < endpoint->address.worker;
  for (ucp_ep_h* handle :
       {first ? &endpoint->out : &endpoint->in, first ? &endpoint->in : &endpoint->out}) {
    const ucs_status_t status = shared_.worker->handle() == nullptr
                                    ? UCS_ERR_NO_DEVICE
                                    : ucp_ep_create(shared_.worker->handle(), &params, handle);
    if (status != UCS_OK) return OnError(endpoint, nullptr, status);
  }
  for (auto& message : std::exchange(endpoint->waiting, {}))
    SendOn(endpoint, endpoint->out, std::move(message));
}

void Endpoints::Greet(Endpoint* endpoint) {
  const std::shared_ptr<const Generation> generation = shared_.current.Get();
  if (generation == nullptr || !endpoint->broken.empty()) return;
  for (int connection : {0, 1}) {
    auto message = std::make_unique<Outbound>(wire::kGreet, generation);
    wire::BulkHeader header;
    header.rank = connection;
    if (Seal(header, message.get()))
      SendOn(endpoint, connection == 0 ? endpoint->out : endpoint->in, std::move(message));
  }
}

ucs_status_t Endpoints::OnGreeting(const void* bytes, size_t length) {
  wire::BulkHeader header;
  if (!Admit(shared_.current, wire::kGreet, bytes, length, &header, &shared_.counters))
    return UCS_OK;
  if (header.rank < 0 || header.rank > 1) {
    shared_.counters.malformed.Add();
    return UCS_OK;
  }
  const int node = header.envelope.source_node;
  unsigned& greeted = greeted_[node];
  greeted |= 1u << header.rank;
  if (greeted != kBothGreeted) return UCS_OK;
  // Posted, because this is a call from within UCX.
  shared_.worker->Post([this, node, generation = shared_.current.number()] {
    const auto it = all_.find(node);
    if (it == all_.end() || shared_.current.number() != generation) return;
    Endpoint& endpoint = *it->second;
    if (endpoint.out == nullptr && endpoint.broken.empty()) Connect(&endpoint);
  });
  return UCS_OK;
}

void Endpoints::StartClose() {
  for (auto& [node, endpoint] : all_) {
    for (ucp_ep_h* handle : {&endpoint->out, &endpoint->in}) {
      if (*handle == nullptr) continue;
      ucp_request_param_t params{};
      params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
      params.flags = UCP_EP_CLOSE_FLAG_FORCE;
      const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(*handle, nullptr), &params);
      if (UCS_PTR_IS_PTR(request)) closing_.push_back(request);
    }
  }
}

bool Endpoints::closed() {
  while (!closing_.empty() && ucp_request_check_status(closing_.back()) != UCS_INPROGRESS) {
    ucp_request_free(closing_.back());
    closing_.pop_back();
  }
  return closing_.empty() && sending_ == 0;
}

void Endpoints::Reset(const absl::Status& why) {
  greeted_.clear();
  for (auto& [node, endpoint] : std::exchange(all_, {})) {
    for (const auto& message : std::exchange(endpoint->waiting, {})) message->done(why);
    for (Outbound* message : std::exchange(endpoint->sending, {})) {
      const std::unique_ptr<Outbound> owned(message);
      owned->done(why);
    }
  }
  closing_.clear();
  sending_ = 0;
}

void Endpoints::SendSealed(int node, std::unique_ptr<Outbound> message) {
  auto it = all_.find(node);
  if (it == all_.end()) return message->done(PeerLost(shared_, node, "it is not connected"));
  Endpoint& endpoint = *it->second;
  if (!endpoint.broken.empty()) return message->done(PeerLost(shared_, node, endpoint.broken));
  if (endpoint.out == nullptr) return endpoint.waiting.push_back(std::move(message));
  SendOn(&endpoint, endpoint.out, std::move(message));
}

void Endpoints::SendOn(Endpoint* endpoint, ucp_ep_h handle, std::unique_ptr<Outbound> message) {
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Endpoints::OnSent;
  params.user_data = message.get();
  if (message->push) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(handle, message->kind, message->header.data(), message->header_length,
                      message->data.data, message->data.length, &params);
  if (UCS_PTR_IS_PTR(request)) {
    message->endpoint = endpoint->shared_from_this();
    endpoint->sending.insert(message.release());
    ++sending_;
    return;
  }
  message->done(
      UCS_PTR_STATUS(request) == UCS_OK
          ? absl::OkStatus()
          : PeerLost(shared_, endpoint->node, ucs_status_string(UCS_PTR_STATUS(request))));
}

void Endpoints::OnSent(void* request, ucs_status_t status, void* user) {
  std::unique_ptr<Outbound> message(static_cast<Outbound*>(user));
  ucp_request_free(request);
  const std::shared_ptr<Endpoint> endpoint = std::move(message->endpoint);
  endpoint->sending.erase(message.get());
  --endpoint->owner->sending_;
  message->done(status == UCS_OK ? absl::OkStatus()
                                 : PeerLost(endpoint->owner->shared_, endpoint->node,
                                            ucs_status_string(status)));
}

void Endpoints::OnError(void* user, ucp_ep_h, ucs_status_t status) {
  const auto endpoint = static_cast<Endpoint*>(user)->shared_from_this();
  Endpoints* const self = endpoint->owner;
  if (!endpoint->broken.empty()) return;  // of its other connection, too
  endpoint->broken =
      absl::StrFormat("its transport at %s: %s", endpoint->address.listener.socket.ToString(),
                      ucs_status_string(status));
  // Posted, because this may be a call from within any call of UCX.
  self->shared_.worker->Post([self, endpoint] { self->Fail(endpoint); });
}

// UCX keeps the connection until the worker ends, which is soon, because a broken connection ends
// the generation. Closing it here would mix its late events with those of new connections
// (NOTES.md).
void Endpoints::Fail(const std::shared_ptr<Endpoint>& endpoint) {
  auto it = all_.find(endpoint->node);
  if (it == all_.end() || it->second != endpoint) return;  // of an earlier worker
  // UCX may still read their bytes, but these do not arrive anywhere.
  const std::vector<Outbound*> sending(endpoint->sending.begin(), endpoint->sending.end());
  const absl::Status failure = PeerLost(shared_, endpoint->node, endpoint->broken);
  for (Outbound* message : sending) message->done(failure);
  for (const auto& message : std::exchange(endpoint->waiting, {})) message->done(failure);
  shared_.counters.peers_failed.Add();
  on_failure_(endpoint->node, absl::AbortedError(endpoint->broken));
}

}  // namespace agmm::transport
