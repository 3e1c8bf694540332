// Proofs by which both ends of a Join show that they know the world's secret, which is never sent.
// The proofs do not protect the bytes that follow, which would need TLS.
#pragma once

#include <string>

#include "agmm/v1/peer.pb.h"
#include "kernels/base/keyed_hash.h"
#include "kernels/base/random.h"

namespace agmm {

// Returns random bytes for a challenge or a hello's nonce.
inline std::string JoinNonce() { return RandomBytes(16); }

// The values that the two ends of a stream share.
struct JoinProof {
  std::string secret, challenge, nonce;

  std::string OfMember(const v1::Hello& hello) const {
    return KeyedHash(secret, {"agmm member", challenge, nonce, hello.incarnation()});
  }
  std::string OfSequencer() const {
    return KeyedHash(secret, {"agmm sequencer", challenge, nonce});
  }
  // The token, in hex, that the member's calls carry while the stream lives.
  std::string CallToken() const {
    return ToHex(KeyedHash(secret, {"agmm calls", challenge, nonce}));
  }
  // The key of the stream's UDP heartbeats, which is never sent.
  std::string HeartbeatKey() const { return KeyedHash(secret, {"agmm beats", challenge, nonce}); }
};

}  // namespace agmm
