#include "daemon/link/join_proof.h"

#include "kernels/base/keyed_hash.h"
#include "kernels/base/random.h"

namespace agmm {

std::string JoinNonce() { return RandomBytes(16); }

std::string JoinProof::OfMember(const v1::Hello& hello) const {
  return KeyedHash(secret, {"agmm member", challenge, nonce, hello.incarnation()});
}
std::string JoinProof::OfSequencer() const {
  return KeyedHash(secret, {"agmm sequencer", challenge, nonce});
}
std::string JoinProof::CallToken() const {
  return ToHex(KeyedHash(secret, {"agmm calls", challenge, nonce}));
}

std::string JoinProof::HeartbeatKey() const {
  return KeyedHash(secret, {"agmm beats", challenge, nonce});
}

}  // namespace agmm
