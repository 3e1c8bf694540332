// Constants that all daemons of a world must agree on, besides the messages themselves.
#pragma once

#include "absl/time/time.h"

namespace agmm {

inline constexpr int kProtocolVersion = 7;    // the messages of peer.proto and their order
inline constexpr int kPlanFormatVersion = 1;  // what a plan hash is taken over
inline constexpr int kMessageVersion = 1;     // the transport's headers

// Both ends of a stream send heartbeats, each from its own thread; silence ends the stream. Checked
// twice per heartbeat period; a heartbeat is sent only if one is due or the usage changed, to keep
// an idle daemon cheap.
inline constexpr absl::Duration kHeartbeatPeriod = absl::Seconds(1);
inline constexpr absl::Duration kSilenceLimit = absl::Milliseconds(2500);

// gRPC keepalive. Both sides' values are here because a server ends connections that ping more
// often than it allows.
inline constexpr int kKeepaliveTimeMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;
inline constexpr int kMinPingIntervalMs = 4'000;

inline constexpr int kMaxMessageBytes = 8 << 20;

// Delays before the next join: after the end of a stream, and after a refusal that may be
// temporary.
inline constexpr absl::Duration kRetryJoin = absl::Milliseconds(100);
inline constexpr absl::Duration kRetryRefused = absl::Seconds(2);

// Grace period before a broken transport is reported alone, because a killed peer's stream breaks,
// too, and has the better reason.
inline constexpr absl::Duration kTransportGrace = absl::Seconds(1);

// Bound of generations: a hello with a higher one is a mistake or an attack.
inline constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

}  // namespace agmm
