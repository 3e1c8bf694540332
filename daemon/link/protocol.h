// What all daemons of a world must agree on, beyond the messages themselves.
#pragma once

#include "absl/time/time.h"

namespace agmm {

inline constexpr int kProtocolVersion = 5;    // the messages of peer.proto and their order
inline constexpr int kPlanFormatVersion = 1;  // what a plan hash is taken over
inline constexpr int kMessageVersion = 1;     // the transport's headers

// Both ends of a stream beat, each from a thread of its own; silence ends the stream. Silence is
// judged, and a usage that has changed told, twice in a period: what every beat costs an idle
// daemon, a look does not.
inline constexpr absl::Duration kHeartbeatPeriod = absl::Seconds(1);
inline constexpr absl::Duration kSilenceLimit = absl::Milliseconds(2500);

// gRPC keepalive. A server that is pinged more often than it allows ends the connection, so both
// stand here.
inline constexpr int kKeepaliveTimeMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;
inline constexpr int kMinPingIntervalMs = 4'000;

inline constexpr int kMaxMessageBytes = 8 << 20;

// After the end of a stream, and after a refusal that may pass.
inline constexpr absl::Duration kRetryJoin = absl::Milliseconds(100);
inline constexpr absl::Duration kRetryRefused = absl::Seconds(2);

// A killed peer's stream breaks, too, and says more; a broken transport alone is told after so
// long.
inline constexpr absl::Duration kTransportGrace = absl::Seconds(1);

// No world comes so far; what a hello says beyond is a mistake or an attack.
inline constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

}  // namespace agmm
