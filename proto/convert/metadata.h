// Keys of gRPC metadata that both sides of a call use.
#pragma once

namespace agmm {

// Names the request in logs.
inline constexpr char kRequestIdKey[] = "x-request-id";
// W3C trace context, forwarded unchanged.
inline constexpr char kTraceparentKey[] = "traceparent";
// The caller's session.
inline constexpr char kSessionKey[] = "x-agmm-session";
// The sequencer that assigned the ids in the request, as in Job and Tensor. Another sequencer
// refuses the request.
inline constexpr char kSequencerKey[] = "x-agmm-sequencer";
// Shows that the call comes from a daemon of the world. A server changes any other value into
// kFormerMember, and removes the next key then (daemon/rpc/caller_check.h).
inline constexpr char kMemberKey[] = "x-agmm-member";
inline constexpr char kFormerMember[] = "former";
// The caller at the node that relays the call. Ignored over a unix socket, where the kernel knows
// the caller.
inline constexpr char kPrincipalKey[] = "x-agmm-principal";

}  // namespace agmm
