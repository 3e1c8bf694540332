#include "daemon/rpc/answer_bound.h"

#include <spdlog/spdlog.h>

#include <atomic>
#include <cstdint>
#include <string>
#include <utility>

#include "daemon/link/grpc_context.h"
#include "daemon/link/owner_quota.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

// The bound of a server, in bytes as sent; an owner may have a quarter of it. While an answer
// waits, gRPC also keeps the message itself, which is several times as large.
constexpr int64_t kUnreadBytes = 256 << 20;
// Smaller answers are bounded by the number of calls that may be open.
constexpr int64_t kSmallBytes = 4 << 10;
constexpr int64_t kUnreadWarning_ns = 2'000'000'000;

class Unread {
 public:
  explicit Unread(Metrics::Counter* cancelled) : cancelled_(cancelled) {}

  bool Take(const std::string& principal, int64_t bytes) {
    const absl::Status taken = quota_.Take(principal, bytes);
    if (taken.ok()) return true;
    cancelled_->Add();
    const int64_t now_ns = MonotonicNanos();
    int64_t due_ns = next_warning_ns_;
    if (now_ns >= due_ns &&
        next_warning_ns_.compare_exchange_strong(due_ns, now_ns + kUnreadWarning_ns))
      spdlog::warn("cancelled a call of {}: {}", principal, std::string(taken.message()));
    return false;
  }
  void Return(const std::string& principal, int64_t bytes) { quota_.Return(principal, bytes); }

 private:
  Metrics::Counter* const cancelled_;
  std::atomic<int64_t> next_warning_ns_ = 0;
  OwnerQuota quota_{
      {"answers", "are not read", "read them, or make fewer calls at once", /*bytes=*/true},
      OwnerQuota::Quarters(kUnreadBytes)};
};

class AnswerInterceptor final : public grpc::experimental::Interceptor {
 public:
  AnswerInterceptor(grpc::experimental::ServerRpcInfo* info, Unread* unread)
      : bounded_(info->type() != grpc::experimental::ServerRpcInfo::Type::SERVER_STREAMING),
        context_(info->server_context()),
        unread_(unread) {}
  ~AnswerInterceptor() override { Return(); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    // ReadTensor has a bound of its own. Relayed calls are streams of both directions.
    if (bounded_ && methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      const auto bytes = static_cast<int64_t>(methods->GetSerializedSendMessage()->Length());
      if (bytes >= kSmallBytes) Take(bytes);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_SEND_MESSAGE)) Return();
    methods->Proceed();
  }

 private:
  void Take(int64_t bytes) {
    if (principal_.empty()) principal_ = CallContextOf(context_).principal;
    if (unread_->Take(principal_, bytes)) {
      taken_ = bytes;
    } else {
      context_->TryCancel();
    }
  }
  void Return() {
    if (const int64_t bytes = taken_.exchange(0); bytes > 0) unread_->Return(principal_, bytes);
  }

  const bool bounded_;
  grpc::ServerContextBase* const context_;
  Unread* const unread_;
  std::string principal_;           // once needed
  std::atomic<int64_t> taken_ = 0;  // a message at a time
};

class AnswerFactory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit AnswerFactory(Metrics* metrics)
      : unread_(metrics->counter("rpc_unread_answers_cancelled_total")) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(
      grpc::experimental::ServerRpcInfo* info) override {
    return new AnswerInterceptor(info, &unread_);
  }

 private:
  Unread unread_;
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeAnswerBound(
    Metrics* metrics) {
  return std::make_unique<AnswerFactory>(metrics);
}

}  // namespace agmm
