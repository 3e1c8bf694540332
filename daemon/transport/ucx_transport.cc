#include "daemon/transport/ucx_transport.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "daemon/transport/address.h"
#include "daemon/transport/bulk.h"
#include "daemon/transport/endpoints.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/plan_messages.h"
#include "daemon/transport/receives.h"
#include "daemon/transport/ucx_config.h"
#include "daemon/transport/ucx_worker.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"

namespace agmm {

namespace transport {
namespace {

// UCX takes a few milliseconds to end the connections of a generation.
constexpr absl::Duration kEndLimit = absl::Seconds(1);
constexpr int kIdleCalls = 64;

class Impl final : public UcxTransport {
 public:
  Impl(const TransportOptions& options, std::unique_ptr<UcxWorker> worker, Receiver* receiver,
       BulkStore* store)
      : worker_(std::move(worker)),
        shared_{worker_.get(), options.describe},
        receives_(shared_),
        endpoints_(shared_, [this](int node, absl::Status why) { OnLost(node, std::move(why)); }),
        plans_(shared_, &endpoints_, &receives_, receiver),
        bulk_(shared_, &endpoints_, &receives_, store) {}

  absl::Status Start() {
    AGMM_RETURN_IF_ERROR(SetHandlers());
    return worker_->Start([this] { return endpoints_.busy() || !receives_.idle(); });
  }

  ~Impl() override {
    const absl::Status why = absl::AbortedError("the transport is closing");
    worker_->Post([this, why] {
      closing_ = true;
      plans_.Drop({});
      bulk_.Fail({}, why);
      closed_ = EndConnections();
    });
    worker_->Stop([this] { return closing_; });
    worker_->Close(closed_);
    endpoints_.Reset(why);
    receives_.Reset(why);
  }

  ProgressEngine* progress() override { return worker_.get(); }
  std::string description() const override { return UcxDescription(); }
  int64_t refused_connections() const override { return worker_->refused(); }
  const TransportCounters& counters() const override { return shared_.counters; }
  std::map<int, TcpUse> tcp_uses() const override { return tcp_paths_.Uses(); }

  void Renew(std::function<void(absl::StatusOr<TransportPort>)> done) override {
    worker_->Post([this, done = std::move(done)] {
      if (closing_) return;
      if (AGMM_FAILPOINT("transport.cannot_renew"))
        return done(absl::InternalError("refused by the failpoint transport.cannot_renew"));
      if (worker_->handle() != nullptr && endpoints_.unused()) return done(Port());
      const absl::Status why = absl::AbortedError(
          "the generation ended, and with it all connections between its nodes; retry");
      plans_.Drop({});
      const bool over = EndConnections();
      absl::Status renewed = worker_->Renew(over, [&] {
        endpoints_.Reset(why);
        receives_.Reset(why);
      });
      // The answers to requests that were sent cannot arrive any more.
      bulk_.Fail({}, why);
      renewed.Update(renewed.ok() ? SetHandlers() : renewed);
      if (!renewed.ok()) return done(renewed);
      done(Port());
    });
  }

  absl::Status Connect(int node, const std::string& address) override {
    if (node < 0) {
      return absl::InvalidArgumentError(
          absl::StrFormat("node %d is negative; nodes are numbered from 0", node));
    }
    AGMM_ASSIGN_OR_RETURN(TransportAddress to, Unframe(address));
    if (AGMM_FAILPOINT("transport.refuse_connect")) {
      return absl::InternalError("refused by the failpoint transport.refuse_connect");
    }
    tcp_paths_.Add(node, to.listener.socket);
    worker_->Post([this, node, to = std::move(to)] {
      if (closing_) return;
      if (worker_->handle() != nullptr) worker_->listener().AddPeer(to.listener);
      endpoints_.Open(node, to);
    });
    return absl::OkStatus();
  }

  void Ping(int node, std::function<void(absl::Status)> done) override {
    Done owned(std::move(done));
    absl::Status status = CheckRequest(node, {});
    if (!status.ok()) return Post(std::move(owned), std::move(status));
    bulk_.Start(wire::kPing, node, {}, 0, {}, {}, std::move(owned));
  }

  void SetWorld(uint64_t generation, int self_node, const std::array<uint8_t, 16>& key) override {
    auto current = std::make_shared<Generation>();
    current->number = generation;
    current->self_node = self_node;
    // Can fail only without memory, because Create has already made a key.
    current->key = wire::HeaderKey::Make(key).value();
    shared_.current.Set(std::move(current));
    worker_->Post([this] {
      plans_.Drop({kAllNodes, shared_.current.number() - 1});
      bulk_.FailStale();
    });
  }

  void Send(int node, const Message& message, Rows from,
            std::function<void(absl::Status)> done) override {
    SendRows(node, from, Done(std::move(done)), [&](Outgoing data, Done done) {
      plans_.Send(node, message, from.bytes(), std::move(data), std::move(done));
    });
  }

  void Resume() override {
    if (resuming_.exchange(true)) return;  // one is posted already and sees the same messages
    worker_->Post([this] {
      resuming_ = false;
      plans_.Resume();
    });
  }

  void WriteBlock(int node, const BulkBlock& block, Rows from,
                  std::function<void(absl::Status)> done) override {
    SendRows(node, from, Done(std::move(done)), [&](Outgoing data, Done done) {
      bulk_.Start(wire::kWrite, node, block, from.bytes(), std::move(data), {}, std::move(done));
    });
  }

  void ReadBlock(int node, const BulkBlock& block, Rows to,
                 std::function<void(absl::Status)> done) override {
    Done owned(std::move(done));
    absl::Status status = CheckRequest(node, to);
    if (!status.ok()) return Post(std::move(owned), std::move(status));
    bulk_.Start(wire::kRead, node, block, to.bytes(), {}, to, std::move(owned));
  }

  void OnPeerFailure(std::function<void(int, absl::Status)> handler) override {
    std::lock_guard lock(mutex_);
    on_peer_failure_ = std::move(handler);
  }

 private:
  struct Handler {
    Impl* transport = nullptr;
    wire::Kind kind = wire::kPlan;
  };

  // Returns true once UCX has no work left for the connections. UCX must not be ended earlier,
  // because its cleanup would free memory that it still uses (NOTES.md).
  bool EndConnections() {
    if (worker_->handle() == nullptr) return true;
    // Messages that arrive from here on are not kept, because UCX frees them with the worker.
    ending_ = true;
    const absl::Cleanup ended = [this] { ending_ = false; };
    endpoints_.StartClose();
    const int64_t end_ns = MonotonicNanos() + absl::ToInt64Nanoseconds(kEndLimit);
    // UCX finishes some of it in later calls, which do not count as progress.
    for (int idle = 0; idle < kIdleCalls;) {
      if (MonotonicNanos() >= end_ns) return false;
      const bool worked = ucp_worker_progress(worker_->handle()) != 0;
      idle = worked || !endpoints_.closed() || !receives_.idle() ? 0 : idle + 1;
    }
    return true;
  }

  absl::Status SetHandlers() {
    for (wire::Kind kind : wire::kKinds) {
      handlers_[kind] = {this, kind};
      ucp_am_handler_param_t params{};
      params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG;
      params.id = kind;
      params.cb = &Impl::OnMessage;
      params.arg = &handlers_[kind];
      AGMM_RETURN_IF_ERROR(FromUcs(ucp_worker_set_am_recv_handler(worker_->handle(), &params),
                                   "registering an active message"));
    }
    return absl::OkStatus();
  }

  // Requires a worker without connections.
  TransportPort Port() {
    const ListenerAddress& listener = worker_->listener().address();
    tcp_paths_.Reset(listener.socket.port());
    return {Frame({listener, worker_->address()}), listener.socket.ToString()};
  }

  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    const auto& [self, kind] = *static_cast<const Handler*>(arg);
    if (self->ending_) return UCS_OK;
    const Payload payload{data, static_cast<int64_t>(length),
                          (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0};
    if (kind == wire::kGreet) return self->endpoints_.OnGreeting(header, header_length);
    if (kind == wire::kPlan) return self->plans_.OnMessage(header, header_length, payload);
    return self->bulk_.OnMessage(kind, header, header_length, payload);
  }

  void OnLost(int node, absl::Status why) {
    bulk_.Fail({node, shared_.current.number()}, why);
    std::function<void(int, absl::Status)> handler;
    {
      std::lock_guard lock(mutex_);
      handler = on_peer_failure_;
    }
    if (handler != nullptr && !closing_) handler(node, std::move(why));
  }

  // Returns the reason why nothing can be sent to `node` from `rows`, or OK.
  absl::Status CheckRequest(int node, const Rows& rows) const {
    const auto generation = shared_.current.Get();
    if (generation == nullptr) {
      return absl::FailedPreconditionError(
          "the world has not formed yet, so nothing can be sent to another node; retry later");
    }
    if (node < 0 || node == generation->self_node) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "node %d is not another node (this is node %d); local bytes need no transport", node,
          generation->self_node));
    }
    return CheckRows(rows);
  }

  void Post(Done done, absl::Status status) {
    worker_->Post([done = std::move(done), status = std::move(status)]() mutable {
      done(std::move(status));
    });
  }

  // Calls `send` with the bytes of `from`, or `done` with the reason why they cannot be sent.
  template <typename Sender>
  void SendRows(int node, const Rows& from, Done done, const Sender& send) {
    const absl::Status status = CheckRequest(node, from);
    absl::StatusOr<Outgoing> data = status.ok() ? Gather(from, &shared_.counters) : status;
    if (!data.ok()) return Post(std::move(done), data.status());
    send(*std::move(data), std::move(done));
  }

  const std::unique_ptr<UcxWorker> worker_;
  Shared shared_;
  Receives receives_;
  Endpoints endpoints_;
  PlanMessages plans_;
  Bulk bulk_;
  TcpPaths tcp_paths_;
  Handler handlers_[wire::kGreet + 1];
  std::atomic<bool> resuming_{false};
  bool closing_ = false;  // used on the progress thread
  bool ending_ = false;   // used on the progress thread; the connections are ending
  bool closed_ = false;   // the destructor closed it in time
  std::mutex mutex_;
  std::function<void(int, absl::Status)> on_peer_failure_;  // guarded by mutex_
};

}  // namespace
}  // namespace transport

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const TransportOptions& options,
                                                                   Receiver* receiver,
                                                                   BulkStore* store) {
  AGMM_RETURN_IF_ERROR(wire::HeaderKey::Make({}).status());
  AGMM_ASSIGN_OR_RETURN(auto worker, transport::UcxWorker::Create(options));
  auto made = std::make_unique<transport::Impl>(options, std::move(worker), receiver, store);
  AGMM_RETURN_IF_ERROR(made->Start());
  return made;
}

}  // namespace agmm
