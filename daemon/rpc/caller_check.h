// Trusts a call's statements about its caller only if a daemon of the world makes the call.
#pragma once

#include <grpcpp/support/server_interceptor.h>

#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "daemon/link/call_context.h"

namespace agmm {

// The tokens of the members whose streams are open (JoinProof::CallToken). Thread-safe.
class MemberTokens {
 public:
  void Add(const std::string& token) {
    std::lock_guard lock(mutex_);
    tokens_.insert(token);
  }
  void Remove(const std::string& token) {
    std::lock_guard lock(mutex_);
    tokens_.erase(token);
  }
  bool Has(const std::string& token) const {
    std::lock_guard lock(mutex_);
    return tokens_.count(token) > 0;
  }

 private:
  mutable std::mutex mutex_;
  std::set<std::string> tokens_;
};

// Returns OK for a call of a member. Errors: ABORTED (PEER_LOST) for a member whose stream has
// ended; PERMISSION_DENIED.
absl::Status CheckMember(const CallContext& call);

// For a call without a token in `tokens`: sets kMemberKey, if present, to kFormerMember, and
// removes kPrincipalKey, before any service sees them. `tokens` must outlive the server.
std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallerCheck(
    const MemberTokens* tokens);

}  // namespace agmm
