#include "daemon/rpc/caller_check.h"

#include "proto/convert/metadata.h"

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

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallerCheck(
    const MemberTokens* tokens) {
  return std::make_unique<CheckFactory>(tokens);
}

}  // namespace agmm
