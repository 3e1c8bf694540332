// Calls that the sequencer answers, on its loop.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/measure/measurer.h"
#include "daemon/measure/tuner.h"
#include "daemon/rpc/call_turns.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/placement.h"
#include "daemon/sequencer/scheduler.h"
#include "daemon/sequencer/sequencer.h"
#include "daemon/sequencer/sessions.h"
#include "kernels/base/loop.h"
#include "kernels/base/reason.h"

namespace agmm {

// The sequencer's parts. All outlive the loop's run and are touched on the loop only.
struct SequencerParts {
  Loop* loop = nullptr;
  Sequencer* sequencer = nullptr;
  Placement* placement = nullptr;
  Catalog* catalog = nullptr;
  Scheduler* scheduler = nullptr;
  Sessions* sessions = nullptr;
  CallTurns* turns = nullptr;
  Measurer* measurer = nullptr;  // null: nothing is measured
  Tuner* tuner = nullptr;        // null: no tuned plans are kept
};

// Returns true if no measurement is in the way of a call that may need devices; else the call goes
// to Measurer::Await. To be called on the loop.
inline bool MayUseDevices(const SequencerParts& parts) {
  return parts.measurer == nullptr || parts.measurer->MakeWay();
}
// True for calls that may take memory or time of devices.
template <typename Request>
inline constexpr bool kUsesDevices =
    std::is_same_v<Request, v1::CreateTensorRequest> ||
    std::is_same_v<Request, v1::FillTensorRequest> ||
    std::is_same_v<Request, v1::BeginLeaseRequest> || std::is_same_v<Request, v1::SubmitJobRequest>;

// Returns the error for ids that were assigned before node 0's daemon restarted: ABORTED and
// PEER_LOST, naming the object of `request`.
template <typename Request>
absl::Status StaleIdError(const Request& request) {
  std::string lost =
      "the object of this call was lost when node 0's daemon restarted; create it again";
  const auto tensor = [](uint64_t id) {
    return absl::StrFormat(
        "tensor %d was lost when node 0's daemon restarted; put the tensor again", id);
  };
  if constexpr (requires { request.job_id(); }) {
    lost = absl::StrFormat("job %d was lost when node 0's daemon restarted; submit it again",
                           request.job_id());
  } else if constexpr (requires { request.tensor_id(); }) {
    if (request.tensor_id() != 0) lost = tensor(request.tensor_id());
  } else if constexpr (requires { request.tensor().tensor_id(); }) {
    if (request.tensor().tensor_id() != 0) lost = tensor(request.tensor().tensor_id());
  } else if constexpr (requires { request.repeat_count(); }) {
    lost =
        "the tensors of the job were lost when node 0's daemon restarted; put them and submit "
        "again";
  }
  return WithReason(absl::AbortedError(lost), kReasonPeerLost);
}

// Returns the session of the objects that `request` creates; empty without one.
template <typename Request>
std::string SessionOf(const Request& request) {
  if constexpr (requires { request.put(); }) {
    return request.put().session_id();
  } else if constexpr (requires { request.session_id(); }) {
    return request.session_id();
  } else {
    return "";
  }
}

// Errors: ABORTED with PEER_LOST for ids of an earlier sequencer; FAILED_PRECONDITION for a session
// that has ended. To be called on the loop.
template <typename Request>
absl::Status CheckCaller(const SequencerParts& parts, const CallContext& context,
                         const Request& request) {
  if (!context.sequencer.empty() && context.sequencer != parts.sequencer->incarnation())
    return StaleIdError(request);
  return parts.sessions->Check(SessionOf(request));
}

// Runs `call(context, request, reply)` once it may use devices, if CheckCaller passes and the
// caller has not left. Both are checked again after a wait. Calls that end something run even after
// their caller has left. To be called on the loop.
template <typename Request, typename Response, typename Call>
void RunNow(const SequencerParts& parts, const Call& call, const CallContext& context,
            const Request& request, Reply<Response> reply) {
  constexpr bool kEnds = std::is_same_v<Request, v1::EndLeaseRequest>;
  if (absl::Status left = context.cancel->status(); !kEnds && !left.ok())
    return reply(std::move(left));
  if (absl::Status refused = CheckCaller(parts, context, request); !refused.ok())
    return reply(std::move(refused));
  if (kUsesDevices<Request> && !MayUseDevices(parts)) {
    return parts.measurer->Await([parts, call, context, request, reply = std::move(reply)] {
      RunNow<Request, Response>(parts, call, context, request, reply);
    });
  }
  call(context, request, std::move(reply));
}

// Returns a handler that calls RunNow on the loop.
template <typename Request, typename Response, typename Call>
Handler<Request, Response> OnLoop(const SequencerParts& parts, Call call) {
  return [parts, call = std::move(call)](const CallContext& context, const Request& request,
                                         Reply<Response> reply) {
    parts.turns->Post(context.principal,
                      [parts, call, context, request, reply = std::move(reply)]() mutable {
                        RunNow<Request, Response>(parts, call, context, request, std::move(reply));
                      });
  };
}
template <typename Owner, typename Request, typename Response>
Handler<Request, Response> OnLoop(const SequencerParts& parts, Owner* owner,
                                  void (Owner::*method)(const CallContext&, const Request&,
                                                        Reply<Response>)) {
  return OnLoop<Request, Response>(parts, std::bind_front(method, owner));
}

}  // namespace agmm
