#include "daemon/transport/endpoints.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/reason.h"

namespace agmm::transport {

struct Endpoint : std::enable_shared_from_this<Endpoint> {
  Endpoints* owner = nullptr;
  int node = -1;
  uint64_t incarnation = 0;
  std::string address;
  uint64_t generation = 0;  // the last one served; set on close
  // Two connections: this node sends on the first alone, and the peer on the second. On a single
  // one, the "go ahead" for the peer's bytes would queue behind this node's own bytes, so that one
  // direction would wait for the other to end (NOTES.md).
  ucp_ep_h out = nullptr, in = nullptr;
  absl::Status failure;
  enum class Phase { kOpen, kFlushing, kCut } phase = Phase::kOpen;
  bool flushed = false;
  std::unordered_set<Outbound*> sending;
};

namespace {

void ForceClose(Endpoint* endpoint) {
  for (ucp_ep_h* handle : {&endpoint->out, &endpoint->in}) {
    if (*handle == nullptr) continue;
    ucp_request_param_t params{};
    params.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_EP_CLOSE_FLAG_FORCE;
    const ucs_status_ptr_t request = ucp_ep_close_nbx(std::exchange(*handle, nullptr), &params);
    if (UCS_PTR_IS_PTR(request)) ucp_request_free(request);
  }
}

}  // namespace

absl::Status PeerLost(int node, absl::string_view why) {
  return WithReason(
      absl::AbortedError(absl::StrFormat(
          "peer lost: node %d: %s; its jobs end, and new ones run once the world has formed again",
          node, why)),
      kReasonPeerLost);
}

Endpoints::Endpoints(Shared& shared, absl::Duration flush_timeout,
                     std::function<void(int, absl::Status)> on_failure,
                     std::function<void(const Scope&)> on_cut)
    : shared_(shared),
      flush_timeout_(flush_timeout),
      on_failure_(std::move(on_failure)),
      on_cut_(std::move(on_cut)) {}

Endpoints::~Endpoints() {
  for (auto& [node, endpoint] : open_) closing_.push_back(endpoint);
  for (const auto& endpoint : closing_) {
    for (Outbound* message : std::exchange(endpoint->sending, {})) delete message;
  }
}

void Endpoints::Open(int node, const std::string& worker_address, uint64_t incarnation,
                     uint64_t generation) {
  if (auto it = open_.find(node); it != open_.end()) {
    const Endpoint& old = *it->second;
    if (old.incarnation == incarnation && old.address == worker_address && old.failure.ok()) return;
    Close(node, generation);
  }
  auto endpoint = std::make_shared<Endpoint>();
  endpoint->owner = this;
  endpoint->node = node;
  endpoint->incarnation = incarnation;
  endpoint->address = worker_address;
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER;
  params.address = reinterpret_cast<const ucp_address_t*>(endpoint->address.data());
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler.cb = &Endpoints::OnError;
  params.err_handler.arg = endpoint.get();
  // UCX pairs the connections of both ends in the order of opening, so both ends must agree on it.
  const bool first = shared_.worker->address() < worker_address;
  for (ucp_ep_h* handle :
       {first ? &endpoint->out : &endpoint->in, first ? &endpoint->in : &endpoint->out}) {
    const ucs_status_t status = ucp_ep_create(shared_.worker->handle(), &params, handle);
    if (status == UCS_OK) continue;
    ForceClose(endpoint.get());
    shared_.counters.peers_failed.Add();
    on_failure_(node, FromUcs(status, absl::StrFormat("connecting to node %d", node)));
    return;
  }
  open_[node] = std::move(endpoint);
}

void Endpoints::SendSealed(int node, std::unique_ptr<Outbound> message) {
  auto it = open_.find(node);
  if (it == open_.end() || !it->second->failure.ok()) {
    message->done(
        PeerLost(node, it == open_.end() ? "it is not connected" : it->second->failure.message()));
    return;
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Endpoints::OnSent;
  params.user_data = message.get();
  if (message->push) {
    params.op_attr_mask |= UCP_OP_ATTR_FIELD_FLAGS;
    params.flags = UCP_AM_SEND_FLAG_EAGER;
  }
  const ucs_status_ptr_t request =
      ucp_am_send_nbx(it->second->out, message->kind, message->header.data(),
                      message->header_length, message->data.data, message->data.length, &params);
  if (UCS_PTR_IS_PTR(request)) {
    message->endpoint = it->second;
    it->second->sending.insert(message.release());
    ++sending_;
    return;
  }
  message->done(UCS_PTR_STATUS(request) == UCS_OK
                    ? absl::OkStatus()
                    : PeerLost(node, ucs_status_string(UCS_PTR_STATUS(request))));
}

void Endpoints::OnSent(void* request, ucs_status_t status, void* user) {
  std::unique_ptr<Outbound> message(static_cast<Outbound*>(user));
  ucp_request_free(request);
  const std::shared_ptr<Endpoint> endpoint = std::move(message->endpoint);
  Endpoints* const self = endpoint->owner;
  endpoint->sending.erase(message.get());
  --self->sending_;
  message->done(status == UCS_OK ? absl::OkStatus()
                                 : PeerLost(endpoint->node, ucs_status_string(status)));
  if (endpoint->phase != Endpoint::Phase::kOpen && endpoint->sending.empty()) {
    self->shared_.worker->Post([self, endpoint] { self->Drained(endpoint); });
  }
}

void Endpoints::OnError(void* user, ucp_ep_h, ucs_status_t status) {
  const auto endpoint = static_cast<Endpoint*>(user)->shared_from_this();
  Endpoints* const self = endpoint->owner;
  endpoint->failure = PeerLost(endpoint->node, ucs_status_string(status));
  // Posted, because an endpoint must not be closed inside its own callback.
  self->shared_.worker->Post([self, endpoint] { self->Fail(endpoint, endpoint->failure); });
}

void Endpoints::Fail(const std::shared_ptr<Endpoint>& endpoint, absl::Status why) {
  auto it = open_.find(endpoint->node);
  if (it == open_.end() || it->second != endpoint) {
    Cut(endpoint);  // it is closing already
    return;
  }
  open_.erase(it);
  StartClose(endpoint, shared_.current.number());
  shared_.counters.peers_failed.Add();
  on_failure_(endpoint->node, std::move(why));
}

void Endpoints::Close(int node, uint64_t generation) {
  auto it = open_.find(node);
  if (it == open_.end()) return;
  const std::shared_ptr<Endpoint> endpoint = std::move(it->second);
  open_.erase(it);
  StartClose(endpoint, generation);
}

void Endpoints::CloseAll(uint64_t generation) {
  while (!open_.empty()) Close(open_.begin()->first, generation);
}

void Endpoints::StartClose(const std::shared_ptr<Endpoint>& endpoint, uint64_t generation) {
  endpoint->phase = Endpoint::Phase::kFlushing;
  endpoint->generation = generation;
  closing_.push_back(endpoint);
  if (!endpoint->failure.ok()) {
    endpoint->flushed = true;
    Cut(endpoint);
    return;
  }
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.send = &Endpoints::OnFlushed;
  params.user_data = endpoint.get();
  endpoint->flushed = !UCS_PTR_IS_PTR(ucp_ep_flush_nbx(endpoint->out, &params));
  shared_.worker->After(flush_timeout_, [this, endpoint] { Cut(endpoint); });
  Drained(endpoint);
}

void Endpoints::OnFlushed(void* request, ucs_status_t, void* user) {
  ucp_request_free(request);
  const auto endpoint = static_cast<Endpoint*>(user)->shared_from_this();
  endpoint->flushed = true;
  endpoint->owner->shared_.worker->Post([endpoint] { endpoint->owner->Drained(endpoint); });
}

void Endpoints::Drained(const std::shared_ptr<Endpoint>& endpoint) {
  if (!endpoint->flushed || !endpoint->sending.empty()) return;
  Cut(endpoint);
  closing_.remove(endpoint);
}

void Endpoints::Cut(const std::shared_ptr<Endpoint>& endpoint) {
  if (std::exchange(endpoint->phase, Endpoint::Phase::kCut) == Endpoint::Phase::kCut) return;
  ForceClose(endpoint.get());
  shared_.worker->Post([this, endpoint] { Drained(endpoint); });
  shared_.worker->After(flush_timeout_, [this, endpoint] {
    Abandon(endpoint.get());
    on_cut_({endpoint->node, endpoint->generation});
  });
}

void Endpoints::Abandon(Endpoint* endpoint) {
  for (Outbound* message : endpoint->sending) {
    shared_.counters.abandoned.Add();
    message->done(PeerLost(endpoint->node, "UCX did not complete the send in time"));
  }
}

void Endpoints::AbandonAll() {
  for (const auto& endpoint : closing_) Abandon(endpoint.get());
}

}  // namespace agmm::transport
