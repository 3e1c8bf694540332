#include "daemon/rpc/call_context.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <string>
#include <unordered_map>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/random.h"
#include "proto/convert/metadata.h"

namespace agmm {
namespace {

// gRPC gives a handler no way to its interceptor, so contexts are found by the call's server
// context.
class Calls {
 public:
  void Put(const grpc::ServerContextBase* key, const CallContext* call) {
    std::lock_guard lock(mutex_);
    calls_[key] = call;
  }
  // The next call may already use the same key.
  void Remove(const grpc::ServerContextBase* key, const CallContext* call) {
    std::lock_guard lock(mutex_);
    auto it = calls_.find(key);
    if (it != calls_.end() && it->second == call) calls_.erase(it);
  }
  bool Find(const grpc::ServerContextBase* key, CallContext* call) {
    std::lock_guard lock(mutex_);
    auto it = calls_.find(key);
    if (it == calls_.end()) return false;
    *call = *it->second;
    return true;
  }
  static Calls& Global() {
    static Calls* const calls = new Calls;
    return *calls;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<const grpc::ServerContextBase*, const CallContext*> calls_;
};

constexpr size_t kMaxValueBytes = 256;
constexpr absl::Duration kLongest = absl::Hours(24 * 365);

// Fit for logs, and for being sent on: gRPC ends the process over metadata that HTTP does not
// allow.
std::string Metadata(const grpc::ServerContextBase& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  if (it == context.client_metadata().end()) return "";
  std::string value(it->second.data(), std::min(it->second.size(), kMaxValueBytes));
  for (char& c : value)
    if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
  return value;
}

CallContext MakeCallContext(const grpc::ServerContextBase& context) {
  CallContext call;
  const std::string peer = context.peer();
  if (absl::StartsWith(peer, "unix:")) {
    // The socket's mode lets in its owner (and root, who can be anybody).
    call.principal = absl::StrCat("uid:", geteuid());
  } else {
    call.principal = Metadata(context, kPrincipalKey);
    if (call.principal.empty()) call.principal = peer;
  }
  call.request_id = Metadata(context, kRequestIdKey);
  if (call.request_id.empty()) call.request_id = RandomHex(8);
  // gRPC's "never" is a date far ahead.
  call.deadline = absl::FromChrono(context.deadline());
  if (call.deadline > absl::Now() + kLongest) call.deadline = absl::InfiniteFuture();
  call.traceparent = Metadata(context, kTraceparentKey);
  call.session = Metadata(context, kSessionKey);
  call.sequencer = Metadata(context, kSequencerKey);
  return call;
}

class Interceptor final : public grpc::experimental::Interceptor {
 public:
  Interceptor(grpc::experimental::ServerRpcInfo* info, Metrics::Counter* total,
              Metrics::Counter* failed)
      : context_(info->server_context()), method_(info->method()), failed_(failed) {
    total->Add();
  }
  ~Interceptor() override { Calls::Global().Remove(context_, &call_); }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    using grpc::experimental::InterceptionHookPoints;
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      call_ = MakeCallContext(*context_);
      Calls::Global().Put(context_, &call_);
    }
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (!status.ok()) {
        failed_->Add();
        spdlog::debug("call {} request {} by {}: code {}: {}", method_, call_.request_id,
                      call_.principal, static_cast<int>(status.error_code()),
                      status.error_message());
      }
    }
    methods->Proceed();
  }

 private:
  grpc::ServerContextBase* const context_;
  const char* const method_;
  Metrics::Counter* const failed_;
  CallContext call_;
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

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeCallContextInterceptors(
    Metrics* metrics) {
  return std::make_unique<Factory>(metrics);
}

CallContext CallContextOf(const grpc::ServerContextBase* context) {
  CallContext call;
  if (!Calls::Global().Find(context, &call)) call = MakeCallContext(*context);
  return call;
}

}  // namespace agmm
