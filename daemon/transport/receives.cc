#include "daemon/transport/receives.h"

#include <utility>

#include "daemon/transport/endpoints.h"

namespace agmm::transport {

struct Receives::Receive {
  Receives* owner = nullptr;
  int node = -1;
  Incoming into;
  Done done;
};

Receives::~Receives() { Reset(absl::AbortedError("the transport is closing")); }

bool Receives::Take(int node, const Payload& payload, const Rows& to, Done done) {
  absl::StatusOr<Incoming> into =
      Place(to, payload.length, /*stage=*/payload.rendezvous, &shared_.counters);
  if (!into.ok()) {
    if (absl::IsInvalidArgument(into.status())) shared_.counters.wrong_length.Add();
    done(into.status());
    return false;
  }
  if (!payload.rendezvous) {
    into->wire.data = static_cast<std::byte*>(payload.data);
    done(WriteRows(into->wire, to));
    return false;
  }
  auto receive = std::make_unique<Receive>();
  receive->owner = this;
  receive->node = node;
  receive->into = *std::move(into);
  receive->done = std::move(done);
  ucp_request_param_t params{};
  params.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  params.cb.recv_am = &Receives::OnReceived;
  params.user_data = receive.get();
  // The callback may run, and free it, before the call returns.
  Receive* const raw = receive.release();
  receiving_.insert(raw);
  const ucs_status_ptr_t request = ucp_am_recv_data_nbx(
      shared_.worker->handle(), payload.data, raw->into.wire.data, payload.length, &params);
  if (!UCS_PTR_IS_PTR(request)) Finish(raw, UCS_PTR_STATUS(request));
  return true;
}

void Receives::Release(const Payload& payload) {
  if (payload.rendezvous) ucp_am_data_release(shared_.worker->handle(), payload.data);
}

void Receives::OnReceived(void* request, ucs_status_t status, size_t, void* user) {
  auto* receive = static_cast<Receive*>(user);
  receive->owner->Finish(receive, status);
  ucp_request_free(request);
}

void Receives::Finish(Receive* raw, ucs_status_t status) {
  receiving_.erase(raw);
  std::unique_ptr<Receive> receive(raw);
  receive->done(status == UCS_OK ? receive->into.Scatter()
                                 : PeerLost(shared_, receive->node, ucs_status_string(status)));
}

void Receives::Reset(const absl::Status& why) {
  for (Receive* raw : std::exchange(receiving_, {})) {
    const std::unique_ptr<Receive> receive(raw);
    receive->done(why);
  }
}

}  // namespace agmm::transport
