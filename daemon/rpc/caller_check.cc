#include "daemon/rpc/caller_check.h"

#include "kernels/base/reason.h"
#include "proto/convert/grpc_call.h"

namespace agmm {
namespace {

class CheckInterceptor final : public grpc::experimental::Interceptor {
 public:
  explicit CheckInterceptor(const MemberTokens* tokens) : tokens_(tokens) {}

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      auto* const metadata = methods->GetRecvInitialMetadata();
      const auto token = metadata->find(kMemberKey);
      const bool shown = token != metadata->end();
      if (!shown || !tokens_->Has(std::string(token->second.data(), token->second.size()))) {
        metadata->erase(kMemberKey);
        metadata->erase(kPrincipalKey);
        if (shown) metadata->emplace(kMemberKey, kFormerMember);
      }
    }
    methods->Proceed();
  }

 private:
  const MemberTokens* const tokens_;
};

class CheckFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit CheckFactory(const MemberTokens* tokens) : tokens_(tokens) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo*) override {
    return new CheckInterceptor(tokens_);
  }

 private:
  const MemberTokens* const tokens_;
};

}  // namespace

absl::Status CheckMember(const CallContext& call) {
  if (call.member) return absl::OkStatus();
  if (call.former_member) {
    return WithReason(absl::AbortedError("the stream of the calling daemon has ended; retry once "
                                         "it has joined again"),
                      kReasonPeerLost);
  }
  return absl::PermissionDeniedError(
      "this is for daemons that have joined this world; clients use the node's address and the "
      "other services");
}

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallerCheck(
    const MemberTokens* tokens) {
  return std::make_unique<CheckFactory>(tokens);
}

}  // namespace agmm
