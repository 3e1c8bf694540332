// How both ends of a Join show that they know the world's secret, which is never sent. Until TLS
// replaces it, this keeps strangers out, who cannot read the secret; it does not protect the bytes
// that follow.
#pragma once

#include <string>

#include "agmm/v1/peer.pb.h"

namespace agmm {

// Random bytes for a challenge or a hello's nonce.
std::string JoinNonce();

// The two ends of one stream have these in common.
struct JoinProof {
  std::string secret, challenge, nonce;

  std::string OfMember(const v1::Hello& hello) const;
  std::string OfSequencer() const;
  // Shown by the member's calls while the stream lives. In hex.
  std::string CallToken() const;
  // The key of the stream's UDP heartbeats, which is never sent.
  std::string HeartbeatKey() const;
};

}  // namespace agmm
