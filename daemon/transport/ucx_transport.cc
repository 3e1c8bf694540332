#include "daemon/transport/ucx_transport.h"

#include <atomic>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/transport/bulk.h"
#include "daemon/transport/endpoints.h"
#include "daemon/transport/plan_messages.h"
#include "daemon/transport/receives.h"
#include "daemon/transport/ucx_config.h"
#include "daemon/transport/ucx_worker.h"
#include "daemon/transport/world.h"
#include "kernels/base/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"

namespace agmm {

using transport::Done;

class UcxTransport::Core {
 public:
  Core(const TransportOptions& options, std::unique_ptr<transport::UcxWorker> worker,
       Receiver* receiver, BulkStore* store)
      : options_(options),
        address_(wire::FrameAddress(worker->address())),
        worker_(std::move(worker)),
        receives_(worker_.get(), &stats_),
        endpoints_(
            worker_.get(), worlds_, &stats_, options.flush_timeout,
            [this](int node, absl::Status why) { OnLost(node, std::move(why)); },
            [this](int node, uint64_t generation) { receives_.Abandon(node, generation); }),
        plans_(worker_.get(), worlds_, &endpoints_, &receives_, receiver, &stats_),
        bulk_(worker_.get(), worlds_, &endpoints_, &receives_, store, &stats_) {}

  absl::Status Start() {
    for (wire::Kind kind : wire::kKinds) {
      handlers_[kind] = {this, kind};
      ucp_am_handler_param_t params{};
      params.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB |
                          UCP_AM_HANDLER_PARAM_FIELD_ARG;
      params.id = kind;
      params.cb = &Core::OnMessage;
      params.arg = &handlers_[kind];
      AGMM_RETURN_IF_ERROR(
          transport::FromUcs(ucp_worker_set_am_recv_handler(worker_->handle(), &params),
                             "registering an active message"));
    }
    worker_->Start([this] { return endpoints_.busy() || !receives_.idle(); });
    return absl::OkStatus();
  }

  void Shutdown() {
    worker_->Post([this] {
      closing_ = true;
      // Two flush timeouts are what the endpoints take at most; then UCX has had its time.
      give_up_ns_ = MonotonicNanos() + absl::ToInt64Nanoseconds(2 * options_.flush_timeout);
      plans_.DropAll();
      bulk_.FailAll(absl::AbortedError("the transport is closing"));
      endpoints_.CloseAll(worlds_.generation());
    });
    worker_->Stop([this] {
      return closing_ &&
             ((endpoints_.idle() && receives_.idle()) || MonotonicNanos() >= give_up_ns_);
    });
    endpoints_.AbandonAll();
    receives_.AbandonAll();
    worker_->Close();
  }

  static ucs_status_t OnMessage(void* arg, const void* header, size_t header_length, void* data,
                                size_t length, const ucp_am_recv_param_t* param) {
    const auto& handler = *static_cast<const Handler*>(arg);
    return handler.core->Dispatch(
        handler.kind, header, header_length,
        {data, static_cast<int64_t>(length), (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0});
  }

  ucs_status_t Dispatch(wire::Kind kind, const void* header, size_t header_length,
                        const transport::Payload& payload) {
    if (closing_) return UCS_OK;
    if (kind == wire::kPlan) return plans_.OnMessage(header, header_length, payload);
    return bulk_.OnMessage(kind, header, header_length, payload);
  }

  void OnLost(int node, absl::Status why) {
    bulk_.FailNode(node, worlds_.generation(), why);
    std::function<void(int, absl::Status)> handler;
    {
      std::lock_guard lock(mutex_);
      handler = on_peer_failure_;
    }
    if (handler != nullptr && !closing_) handler(node, std::move(why));
  }

  // Why nothing can be sent to `node` from `rows`; OK otherwise.
  absl::Status CheckRequest(int node, const Rows& rows) const {
    const auto world = worlds_.Get();
    if (world == nullptr) {
      return absl::FailedPreconditionError(
          "the world has not formed; nothing can be sent to another node before");
    }
    if (node < 0 || node == world->self_node) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "node %d is no other node (this is %d); what stays here needs no transport", node,
          world->self_node));
    }
    return transport::CheckRows(rows);
  }

  void Post(Done done, absl::Status status) {
    worker_->Post([done = std::move(done), status = std::move(status)]() mutable {
      done(std::move(status));
    });
  }

  struct Handler {
    Core* core = nullptr;
    wire::Kind kind = wire::kPlan;
  };

  const TransportOptions options_;
  const std::string address_;
  transport::Stats stats_;
  transport::CurrentWorld worlds_;
  const std::unique_ptr<transport::UcxWorker> worker_;
  transport::Receives receives_;
  transport::Endpoints endpoints_;
  transport::PlanMessages plans_;
  transport::Bulk bulk_;
  Handler handlers_[wire::kReadBack + 1];
  std::atomic<bool> resuming_{false};
  bool closing_ = false;    // on the progress thread
  int64_t give_up_ns_ = 0;  // on the progress thread
  std::mutex mutex_;
  std::function<void(int, absl::Status)> on_peer_failure_ ABSL_GUARDED_BY(mutex_);
};

UcxTransport::UcxTransport(std::unique_ptr<Core> core) : core_(std::move(core)) {}
UcxTransport::~UcxTransport() { core_->Shutdown(); }

absl::StatusOr<std::unique_ptr<UcxTransport>> UcxTransport::Create(const TransportOptions& options,
                                                                   Receiver* receiver,
                                                                   BulkStore* store) {
  AGMM_RETURN_IF_ERROR(wire::HeaderKey::Make({}).status());
  AGMM_ASSIGN_OR_RETURN(auto worker, transport::UcxWorker::Create(options));
  auto core = std::make_unique<Core>(options, std::move(worker), receiver, store);
  AGMM_RETURN_IF_ERROR(core->Start());
  return std::unique_ptr<UcxTransport>(new UcxTransport(std::move(core)));
}

ProgressEngine* UcxTransport::progress() { return core_->worker_.get(); }
std::string UcxTransport::address() const { return core_->address_; }
std::string UcxTransport::description() const { return transport::UcxDescription(core_->options_); }

absl::Status UcxTransport::Connect(int node, const std::string& address, uint64_t incarnation) {
  if (node < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("node %d is negative; nodes count from 0", node));
  }
  AGMM_ASSIGN_OR_RETURN(std::string worker_address, wire::UnframeAddress(address));
  if (AGMM_FAILPOINT("transport.refuse_connect")) {
    return absl::InternalError("refused by the failpoint transport.refuse_connect");
  }
  Core* const core = core_.get();
  core->worker_->Post([core, node, incarnation, worker_address = std::move(worker_address),
                       generation = core->worlds_.generation()] {
    if (core->closing_) return;
    core->endpoints_.Open(node, worker_address, incarnation, generation);
  });
  return absl::OkStatus();
}

void UcxTransport::Disconnect(int node) {
  Core* const core = core_.get();
  core->worker_->Post([core, node, generation = core->worlds_.generation()] {
    core->endpoints_.Close(node, generation);
    core->plans_.DropNode(node, generation);
    core->bulk_.FailNode(node, generation, transport::PeerLost(node, "it was disconnected"));
  });
}

void UcxTransport::SetWorld(uint64_t generation, int self_node,
                            const std::array<uint8_t, 16>& key) {
  auto world = std::make_shared<transport::World>();
  world->generation = generation;
  world->self_node = self_node;
  // Create has made one already: this cannot fail but for want of memory.
  world->key = wire::HeaderKey::Make(key).value();
  Core* const core = core_.get();
  core->worlds_.Set(std::move(world));
  core->worker_->Post([core] {
    core->plans_.DropStale();
    core->bulk_.FailStale();
  });
}

void UcxTransport::Quiesce(uint64_t generation, std::function<void()> done) {
  Core* const core = core_.get();
  core->worker_->Post([core, generation, done = std::move(done)]() mutable {
    core->receives_.WhenQuiet(generation, std::move(done));
  });
}

void UcxTransport::Send(int node, const Message& message, Rows from,
                        std::function<void(absl::Status)> done) {
  Done owned(std::move(done));
  absl::Status status = core_->CheckRequest(node, from);
  if (!status.ok()) return core_->Post(std::move(owned), std::move(status));
  absl::StatusOr<transport::Outgoing> data = transport::Gather(from, &core_->stats_);
  if (!data.ok()) return core_->Post(std::move(owned), data.status());
  core_->plans_.Send(node, message, from.bytes(), *std::move(data), std::move(owned));
}

void UcxTransport::Resume() {
  Core* const core = core_.get();
  if (core->resuming_.exchange(true)) return;  // one is on its way and sees what this one would
  core->worker_->Post([core] {
    core->resuming_ = false;
    core->plans_.Resume();
  });
}

void UcxTransport::WriteBlock(int node, const BulkBlock& block, Rows from,
                              std::function<void(absl::Status)> done) {
  Done owned(std::move(done));
  absl::Status status = core_->CheckRequest(node, from);
  if (!status.ok()) return core_->Post(std::move(owned), std::move(status));
  absl::StatusOr<transport::Outgoing> data = transport::Gather(from, &core_->stats_);
  if (!data.ok()) return core_->Post(std::move(owned), data.status());
  core_->bulk_.Write(node, block, from.bytes(), *std::move(data), std::move(owned));
}

void UcxTransport::ReadBlock(int node, const BulkBlock& block, Rows to,
                             std::function<void(absl::Status)> done) {
  Done owned(std::move(done));
  absl::Status status = core_->CheckRequest(node, to);
  if (!status.ok()) return core_->Post(std::move(owned), std::move(status));
  core_->bulk_.Read(node, block, to, std::move(owned));
}

TransportCounters UcxTransport::counters() const { return core_->stats_.Snapshot(); }

void UcxTransport::OnPeerFailure(std::function<void(int, absl::Status)> handler) {
  std::lock_guard lock(core_->mutex_);
  core_->on_peer_failure_ = std::move(handler);
}

}  // namespace agmm
