// Proofs by which both ends of a Join show that they know the world's secret, which is never sent.
// This excludes strangers, who cannot read the secret; it does not protect the bytes that follow,
// which needs TLS.
#pragma once

#include <string>

#include "agmm/v1/peer.pb.h"

namespace agmm {

// Returns random bytes for a challenge or a hello's nonce.
std::string JoinNonce();

// The values that the two ends of a stream share.
struct JoinProof {
  std::string secret, challenge, nonce;

  std::string OfMember(const v1::Hello& hello) const;
  std::string OfSequencer() const;
  // The token, in hex, that the member's calls carry while the stream lives.
  std::string CallToken() const;
  // The key of the stream's UDP heartbeats, which is never sent.
  std::string HeartbeatKey() const;
};

}  // namespace agmm
