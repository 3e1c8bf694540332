// Constants that all daemons of a world must agree on, besides the messages themselves.
#pragma once

#include "absl/time/time.h"

namespace agmm {

inline constexpr int kProtocolVersion = 15;   // the messages of peer.proto and their order
inline constexpr int kPlanFormatVersion = 3;  // the input of a plan's hash
inline constexpr int kMessageVersion = 1;     // the transport's headers

// Both ends of a stream send heartbeats, each from its own thread; silence ends the stream. Checked
// twice per heartbeat period; a heartbeat is sent only if one is due or the usage changed, to keep
// an idle daemon cheap.
inline constexpr absl::Duration kHeartbeatPeriod = absl::Seconds(1);
inline constexpr absl::Duration kSilenceLimit = absl::Milliseconds(2500);
// The silence limit while the other end's UDP heartbeats arrive: it lives, but something delays its
// stream.
inline constexpr absl::Duration kStreamSilenceLimit = absl::Seconds(10);

// gRPC keepalive. Both sides' values are here because a server ends connections that ping more
// often than it allows.
inline constexpr int kKeepaliveTimeMs = 10'000;
inline constexpr int kKeepaliveTimeoutMs = 5'000;
inline constexpr int kMinPingIntervalMs = 4'000;

inline constexpr int kMaxMessageBytes = 8 << 20;

// Delays before the next join: after the end of a stream, after a refusal that may be temporary,
// and while another daemon is the same node.
inline constexpr absl::Duration kRetryJoin = absl::Milliseconds(100);
inline constexpr absl::Duration kRetryRefused = absl::Seconds(2);
inline constexpr absl::Duration kRetryDuplicate = absl::Milliseconds(500);

// Time for all paths of the transport to be established, and the interval between two questions on
// a silent path.
inline constexpr absl::Duration kPathLimit = absl::Seconds(10);
inline constexpr absl::Duration kAskPathAgain = absl::Milliseconds(250);
// Delay before the renewal of a transport is tried again.
inline constexpr absl::Duration kRenewAgain = absl::Seconds(1);

// The field of a refusal that is sent without a proof of the secret.
inline constexpr char kSecretField[] = "local.secret";

// Grace period before a broken transport is reported alone, because a killed peer's stream breaks,
// too, and has the better reason.
inline constexpr absl::Duration kTransportGrace = absl::Seconds(1);

// Bound of generations: a hello with a higher one is a mistake or an attack.
inline constexpr uint64_t kMaxGeneration = uint64_t{1} << 62;

}  // namespace agmm
