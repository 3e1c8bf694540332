// A node's own calls to the sequencer. Its clients' calls are relayed (rpc/relay.cc).
#pragma once

#include <functional>

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/call_context.h"

namespace agmm {

// Answers calls of one method. The request is valid only during the call: copy it for later.
template <typename Request, typename Response>
using Handler = std::function<void(const CallContext&, const Request&, Reply<Response>)>;

// The end of a lease on the contents of a tensor. kCommitted: a write has replaced the contents.
// kUntouched: the contents are as before the lease. kSpoiled: a write ended without a commit, so
// the tensor has no contents.
enum class LeaseEnd { kCommitted, kUntouched, kSpoiled };

// Answered in the same process on node 0 (rpc/sequencer_services.cc), and over the network on the
// other nodes (link/sequencer_client.h). Thread-safe; never block. Errors of every call:
// UNAVAILABLE while the sequencer is missing or the world is not complete (naming the nodes that
// are missing), ABORTED with PEER_LOST when the sequencer was lost during the call.
struct SequencerCalls {
  Handler<v1::GetStatusRequest, v1::GetStatusResponse> get_status;
  Handler<v1::ListSessionsRequest, v1::ListSessionsResponse> list_sessions;
  Handler<v1::OpenedSessionRequest, v1::OpenedSessionResponse> opened_session;
  Handler<v1::CloseSessionRequest, v1::CloseSessionResponse> close_session;
  Handler<v1::GetTensorRequest, v1::Tensor> get_tensor;
  Handler<v1::BeginLeaseRequest, v1::BeginLeaseResponse> begin_lease;
  Handler<v1::EndLeaseRequest, v1::EndLeaseResponse> end_lease;
};

}  // namespace agmm
