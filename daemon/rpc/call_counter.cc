#include "daemon/rpc/call_counter.h"

#include <spdlog/spdlog.h>

#include <atomic>

#include "daemon/link/grpc_context.h"
#include "proto/convert/metadata.h"

namespace agmm {
namespace {

class Interceptor final : public grpc::experimental::Interceptor {
 public:
  Interceptor(grpc::experimental::ServerRpcInfo* info, Metrics::Counter* total,
              Metrics::Counter* failed)
      : context_(info->server_context()), method_(info->method()), failed_(failed) {
    total->Add();
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (!status.ok()) {
        cancelled_ = status.error_code() == grpc::StatusCode::CANCELLED;
        if (!cancelled_) failed_->Add();
        spdlog::debug("call {} request {} from {}: code {}: {}", method_,
                      MetadataOf(*context_, kRequestIdKey), context_->peer(),
                      static_cast<int>(status.error_code()), status.error_message());
      }
    }
    // Called after the status was sent; IsCancelled shows if the client left before that.
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_CLOSE) &&
        cancelled_ && !context_->IsCancelled()) {
      failed_->Add();
    }
    methods->Proceed();
  }

 private:
  grpc::ServerContextBase* const context_;
  const char* const method_;
  Metrics::Counter* const failed_;
  std::atomic<bool> cancelled_ = false;  // the status says so
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(Metrics* metrics)
      : total_(metrics->counter("rpcs_total")), failed_(metrics->counter("rpcs_failed_total")) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new Interceptor(info, total_, failed_);
  }

 private:
  Metrics::Counter* const total_;
  Metrics::Counter* const failed_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallCounter(
    Metrics* metrics) {
  return std::make_unique<Factory>(metrics);
}

}  // namespace agmm
