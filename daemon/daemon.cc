#include "daemon/daemon.h"

#include <spdlog/spdlog.h>

#include <latch>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/observe/process.h"
#include "daemon/world/local_link.h"
#include "kernels/base/clock.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_device.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

void AddTransportGauges(const UcxTransport* transport, Metrics* metrics) {
  const auto add = [&](const char* name, int64_t (*read)(const TransportCounters&)) {
    metrics->SetGauge(name, [=] { return static_cast<double>(read(transport->counters())); });
  };
  add("transport_sent_bytes_total", [](const TransportCounters& c) {
    return c.plan.bytes_sent + c.bulk_write.bytes_sent + c.bulk_read.bytes_sent +
           c.bulk_reply.bytes_sent;
  });
  add("transport_received_bytes_total", [](const TransportCounters& c) {
    return c.plan.bytes_received + c.bulk_write.bytes_received + c.bulk_read.bytes_received +
           c.bulk_reply.bytes_received;
  });
  add("transport_messages_sent_total",
      [](const TransportCounters& c) { return c.plan.messages_sent; });
  add("transport_messages_received_total",
      [](const TransportCounters& c) { return c.plan.messages_received; });
  add("transport_dropped_total", [](const TransportCounters& c) { return c.dropped(); });
  add("transport_stale_total", [](const TransportCounters& c) { return c.stale_generation; });
  add("transport_parked_messages", [](const TransportCounters& c) { return c.parked; });
  add("transport_staging_bytes", [](const TransportCounters& c) { return c.staging_bytes; });
  add("transport_abandoned_total", [](const TransportCounters& c) { return c.abandoned; });
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(
    const Config& config, std::function<void(absl::Status)> on_refused) {
  std::unique_ptr<Daemon> daemon(new Daemon(config));
  AddProcessGauges(&daemon->metrics_);
  AGMM_RETURN_IF_ERROR(daemon->CreateDevices());
  AGMM_RETURN_IF_ERROR(daemon->CreateTransport());
  daemon->CreateMember(std::move(on_refused));
  if (config.is_sequencer()) {
    daemon->CreateSequencer();
  } else {
    daemon->CreateRemote();
  }
  AGMM_RETURN_IF_ERROR(daemon->Serve());
  daemon->EnterWorld();
  return daemon;
}

absl::Status Daemon::CreateDevices() {
  std::vector<Heap*> heaps;
  std::vector<Runner::LocalDevice> local;
  for (const DeviceConfig& config : config_.devices) {
    std::unique_ptr<Device> device = CreateCpuDevice(config.threads);
    AGMM_ASSIGN_OR_RETURN(std::unique_ptr<Heap> heap, device->CreateHeap(config.heap_bytes));
    const DeviceInfo info = device->info();
    v1::DeviceHello& hello = hello_.emplace_back();
    hello.set_kind(info.kind);
    hello.set_description(info.description);
    hello.set_thread_count(info.threads);
    hello.set_heap_bytes(heap->size_bytes());
    spdlog::info("rank {}: {}, heap {}", config_.first_rank(config_.self) + heaps.size(),
                 info.description, FormatBytes(heap->size_bytes()));
    heaps.push_back(heap.get());
    local.push_back({device.get(), heap.get()});
    devices_.push_back(std::move(device));
    heaps_.push_back(std::move(heap));
  }
  std::vector<int> files;
  for (const Heap* heap : heaps) files.push_back(heap->fd());
  AddHeapGauge(std::move(files), &metrics_);
  const int first_rank = config_.first_rank(config_.self);
  store_ = std::make_unique<TensorStore>(
      first_rank, heaps, [this, heaps](int local, int64_t offset, int64_t bytes) {
        devices_[local]->ForgetContents(heaps[local], offset, bytes);
      });
  runner_ =
      Runner::Create(config_.self, first_rank, std::move(local), config_.node_of_rank(), &metrics_,
                     [this](v1::Report report) { member_->Report(std::move(report)); });
  filler_ = std::make_unique<Filler>(
      store_.get(), [this](v1::Report report) { member_->Report(std::move(report)); });
  return absl::OkStatus();
}

absl::Status Daemon::CreateTransport() {
  if (!alone()) {
    TransportOptions options;
    AGMM_ASSIGN_OR_RETURN(options.bind_address, ResolveHost(config_.transport_address));
    AGMM_ASSIGN_OR_RETURN(transport_, UcxTransport::Create(options, runner_.get(), store_.get()));
    transport_->OnPeerFailure([this, failures = metrics_.counter("transport_peer_failures_total")](
                                  int node, const absl::Status& why) {
      failures->Add();
      spdlog::warn("the transport's connection to node {} broke: {}", config_.nodes[node].name,
                   why.ToString());
      loop_->Post([this, node, reason = std::string(why.message())] {
        member_->OnPeerBroken(node, reason);
      });
    });
    AddTransportGauges(transport_.get(), &metrics_);
    heartbeat_ = std::make_unique<Heartbeat>();
  }
  // Several workers have somebody to drive while one waits.
  if (transport_ != nullptr && devices_.size() == 1 && config_.devices[0].threads == 1)
    devices_[0]->Lend(transport_->progress());
  runner_->SetTransport(transport_.get(), [this] {
    if (transport_ != nullptr) transport_->Resume();
  });
  view_ = std::make_unique<StatusView>(config_, runner_.get(), transport_.get(), &metrics_);
  tensor_io_ = std::make_unique<TensorIo>(store_.get(), transport_.get(), config_.self,
                                          config_.node_of_rank());
  return absl::OkStatus();
}

void Daemon::CreateMember(std::function<void(absl::Status)> on_refused) {
  Member::Parts parts;
  parts.loop = loop_.get();
  parts.runner = runner_.get();
  parts.store = store_.get();
  parts.filler = filler_.get();
  parts.transport = transport_.get();
  parts.metrics = &metrics_;
  parts.devices = hello_;
  member_ = std::make_unique<Member>(config_, std::move(parts));
  Member::Handlers handlers;
  handlers.refused = std::move(on_refused);
  if (!config_.is_sequencer()) {
    handlers.joined = [this](const std::shared_ptr<SequencerLink>& link) {
      remote_->SetConnected(link);
    };
    handlers.lost = [this](const absl::Status& reason, const std::string& next) {
      remote_->SetLost(reason, next);
      cluster_service_->EndSessions(reason);
    };
    handlers.complete = [this](bool complete) { server_->SetServing(complete); };
  }
  handlers.held = [this] { return mappings_->Held(); };
  member_->SetHandlers(std::move(handlers));
}

void Daemon::CreateSequencer() {
  sequencer_ = std::make_unique<Sequencer>(config_, &metrics_, ToHex(member_->incarnation()));
  catalog_ = Catalog::Create(sequencer_.get(), &placement_);
  planner_ = std::make_unique<Loop>();
  Scheduler::Parts scheduler;
  scheduler.loop = loop_.get();
  scheduler.planner = planner_.get();
  scheduler.members = sequencer_.get();
  scheduler.placement = &placement_;
  scheduler.catalog = catalog_.get();
  scheduler.metrics = &metrics_;
  if (transport_ != nullptr) scheduler.transport = transport_->description();
  scheduler_ = Scheduler::Create(scheduler);
  LocalControl::Parts parts;
  parts.loop = loop_.get();
  parts.sequencer = sequencer_.get();
  parts.placement = &placement_;
  parts.catalog = catalog_.get();
  parts.scheduler = scheduler_.get();
  local_ = std::make_unique<LocalControl>(parts);
  sequencer_->SetListeners({catalog_.get(), scheduler_.get()});
  sequencer_->OnNodeLost([this](int node) { local_->OnNodeLost(node); });
  sequencer_->OnForwardedJobs(
      [this](const std::shared_ptr<MemberLink>& link, const v1::ForwardedJobs& jobs) {
        local_->RunForwarded(link, jobs);
      });
  sequencer_->OnReadyChanged([this](bool ready) { server_->SetServing(ready); });
  control_ = local_.get();
}

void Daemon::CreateRemote() {
  const NodeConfig& sequencer = config_.nodes[0];
  channel_ = PeerChannel(sequencer.address);
  remote_ = std::make_unique<RemoteControl>(
      channel_, absl::StrFormat("node %s (%s)", sequencer.name, sequencer.address), view_.get());
  control_ = remote_.get();
  join_ =
      std::make_unique<Join>(channel_, loop_.get(), heartbeat_.get(), member_.get(), view_.get());
  join_->OnOutcomes([this](google::protobuf::RepeatedPtrField<v1::ForwardedOutcome>* outcomes) {
    remote_->OnOutcomes(outcomes);
  });
}

absl::Status Daemon::Serve() {
  cluster_service_ = std::make_unique<ClusterService>(control_, view_.get(), config_.self,
                                                      [this](const std::string& session_id) {
                                                        uploads_->EndSession(session_id);
                                                        mappings_->EndSession(session_id);
                                                      });
  const TransferParts transfers{control_, tensor_io_.get(), loop_.get(), config_.self};
  uploads_ = std::make_unique<Uploads>(transfers);
  std::vector<std::string> node_names;
  for (int node : config_.node_of_rank()) node_names.push_back(config_.nodes[node].name);
  mappings_ = std::make_unique<Mappings>(transfers, store_.get(), std::move(node_names));
  mappings_->OnReport([this](v1::Report report) { member_->Report(std::move(report)); });
  store_->OnEraEnded([this] {
    mappings_->EndAll(
        WithReason(absl::AbortedError("the world changed; map the tensor again"), kReasonPeerLost));
  });
  tensor_service_ = std::make_unique<TensorService>(transfers, uploads_.get(), mappings_.get());
  job_service_ = std::make_unique<JobService>(control_);
  std::vector<grpc::Service*> services = {cluster_service_.get(), tensor_service_.get(),
                                          job_service_.get()};
  if (config_.is_sequencer() && !alone()) {
    peer_service_ =
        std::make_unique<PeerService>(control_, loop_.get(), sequencer_.get(), heartbeat_.get());
    services.push_back(peer_service_.get());
  }
  AGMM_ASSIGN_OR_RETURN(server_,
                        RpcServer::Start(config_.listen, config_.socket, &metrics_, services));
  if (!config_.socket.empty()) {
    spdlog::info("listening on unix:{}", config_.socket);
    ServeFiles();
  }
  if (!config_.listen.empty()) {
    spdlog::info("listening on {}, port {}", config_.listen, server_->port());
    spdlog::warn("TCP is insecure: whoever reaches port {} can use this daemon", server_->port());
  }
  return absl::OkStatus();
}

void Daemon::ServeFiles() {
  // Once the socket beside it is known to be ours.
  absl::StatusOr<std::unique_ptr<FileSocket>> files = FileSocket::Start(config_.socket + ".files");
  if (!files.ok()) {
    spdlog::warn("clients cannot map tensors: {}", files.status().ToString());
    return;
  }
  files_ = *std::move(files);
  mappings_->SetFiles(files_.get());
}

void Daemon::EnterWorld() {
  loop_->Post([this] {
    if (config_.is_sequencer()) {
      auto link = std::make_shared<LocalMemberLink>(loop_.get(), member_.get(), alone());
      member_->OnStream(std::make_shared<LocalSequencerLink>(sequencer_.get(), link));
    } else {
      spdlog::info("joining the world at node {} ({})", config_.nodes[0].name,
                   config_.nodes[0].address);
      join_->Start();
    }
  });
}

Daemon::~Daemon() {
  // Runs also for a daemon that was never whole.
  std::latch drained(1);
  if (member_ != nullptr) {
    loop_->Post([&] {
      if (sequencer_ != nullptr) sequencer_->Stop();
      member_->Stop(absl::UnavailableError("the daemon is stopping"),
                    [&] { drained.count_down(); });
    });
  }
  join_.reset();
  if (server_ != nullptr) server_->Stop();
  // Clients that let go from now on have nothing to give back.
  files_.reset();
  uploads_.reset();
  remote_.reset();
  heartbeat_.reset();
  if (member_ != nullptr) drained.wait();
  loop_->Stop();
  for (const auto& device : devices_) device->Lend(nullptr);
  transport_.reset();
}

}  // namespace agmm
