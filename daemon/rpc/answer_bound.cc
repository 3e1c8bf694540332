#include "daemon/rpc/answer_bound.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "absl/strings/match.h"
#include "daemon/link/grpc_context.h"
#include "daemon/link/owner_quota.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

// Smaller answers are bounded by the number of calls that may be open.
constexpr int64_t kSmallBytes = 4 << 10;
constexpr int64_t kUnreadWarning_ns = 2'000'000'000;
// A stream keeps its message while gRPC keeps the bytes; the message takes at most this many times
// as much memory. Other messages are freed once they are serialized (Outgoing).
constexpr int64_t kMessageFactor = 8;

// The unread answers of a server.
class AnswerBound final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  AnswerBound(Metrics* metrics, int64_t bound_bytes)
      : cancelled_(metrics->counter("rpc_unread_answers_cancelled_total")),
        waiting_bytes_(metrics->counter("rpc_unread_answer_bytes")),
        quota_({"unread answers", "wait for their clients",
                "read them faster, or make fewer concurrent calls", /*bytes=*/true},
               OwnerQuota::Quarters(bound_bytes)) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override;

  bool Take(const std::string& principal, int64_t bytes) {
    const absl::Status taken = quota_.Take(principal, bytes);
    if (taken.ok()) {
      waiting_bytes_->Add(bytes);
      return true;
    }
    cancelled_->Add();
    const int64_t now_ns = MonotonicNanos();
    int64_t due_ns = next_warning_ns_;
    if (now_ns >= due_ns &&
        next_warning_ns_.compare_exchange_strong(due_ns, now_ns + kUnreadWarning_ns))
      spdlog::warn("cancelled a call of {}: {}", principal, std::string(taken.message()));
    return false;
  }
  void Return(const std::string& principal, int64_t bytes) {
    quota_.Return(principal, bytes);
    waiting_bytes_->Add(-bytes);
  }

 private:
  Metrics::Counter* const cancelled_;
  Metrics::Counter* const waiting_bytes_;  // now
  std::atomic<int64_t> next_warning_ns_ = 0;
  OwnerQuota quota_;
};

class AnswerInterceptor final : public grpc::experimental::Interceptor {
 public:
  AnswerInterceptor(grpc::experimental::ServerRpcInfo* info, AnswerBound* bound)
      // ReadTensor has its own bound.
      : bounded_(!absl::EndsWith(info->method(), "/ReadTensor")),
        factor_(info->type() == grpc::experimental::ServerRpcInfo::Type::SERVER_STREAMING
                    ? kMessageFactor
                    : 1),
        context_(info->server_context()),
        bound_(bound) {}
  ~AnswerInterceptor() override { Return(); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (bounded_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      const auto bytes = static_cast<int64_t>(methods->GetSerializedSendMessage()->Length());
      if (bytes >= kSmallBytes) Take(bytes * factor_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_SEND_MESSAGE)) Return();
    methods->Proceed();
  }

 private:
  void Take(int64_t bytes) {
    if (principal_.empty()) principal_ = CallContextOf(context_).principal;
    if (bound_->Take(principal_, bytes)) {
      taken_ = bytes;
    } else {
      context_->TryCancel();
    }
  }
  void Return() {
    if (const int64_t bytes = taken_.exchange(0); bytes > 0) bound_->Return(principal_, bytes);
  }

  const bool bounded_;
  const int64_t factor_;
  grpc::ServerContextBase* const context_;
  AnswerBound* const bound_;
  std::string principal_;           // once needed
  std::atomic<int64_t> taken_ = 0;  // a message at a time
};

grpc::experimental::Interceptor* AnswerBound::CreateServerInterceptor(
    grpc::experimental::ServerRpcInfo* info) {
  return new AnswerInterceptor(info, this);
}

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeAnswerBound(
    Metrics* metrics, int64_t bound_bytes) {
  return std::make_unique<AnswerBound>(metrics, bound_bytes);
}

}  // namespace agmm
