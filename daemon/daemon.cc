#include "daemon/daemon.h"

#include <spdlog/spdlog.h>

#include <latch>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "daemon/config/reachable.h"
#include "daemon/devices.h"
#include "daemon/link/heartbeat_thread.h"
#include "daemon/link/link.h"
#include "daemon/link/sequencer_client.h"
#include "daemon/link/udp_heartbeats.h"
#include "daemon/measure/measurer.h"
#include "daemon/measure/preset.h"
#include "daemon/measure/tuner.h"
#include "daemon/node/join.h"
#include "daemon/node/member.h"
#include "daemon/node/runner.h"
#include "daemon/node/status_view.h"
#include "daemon/node/store.h"
#include "daemon/node/tensor_io.h"
#include "daemon/node/uploads.h"
#include "daemon/observe/metrics.h"
#include "daemon/observe/process.h"
#include "daemon/rpc/call_turns.h"
#include "daemon/rpc/cluster_service.h"
#include "daemon/rpc/listen.h"
#include "daemon/rpc/server.h"
#include "daemon/rpc/services.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/placement.h"
#include "daemon/sequencer/scheduler.h"
#include "daemon/sequencer/sequencer.h"
#include "daemon/sequencer/sessions.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/base/host_port.h"
#include "kernels/base/loop.h"
#include "kernels/base/memory.h"
#include "kernels/base/random.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// Memory is checked this often, and returned to the kernel every third time.
constexpr absl::Duration kMemoryPeriod = absl::Seconds(2);
constexpr int kTrimPeriods = 3;
// A busy daemon allocates less than this besides plans, records and transfers.
constexpr int64_t kStrainBytes = int64_t{256} << 20;
// Uploads leave less, which is kept for later uploads on purpose (main.cc).
constexpr size_t kKeptFreeBytes = size_t{256} << 20;

// The stream between the sequencer and the member of its own daemon. This is the sequencer's end.
// `loop` and `member` outlive the loop's run. On the loop only.
class LocalMemberLink final : public MemberLink {
 public:
  LocalMemberLink(Loop* loop, Member* member, bool alone)
      : loop_(loop), member_(member), alone_(alone) {}
  void Send(v1::SequencerMessage message) override {
    // Posts the message, so that a command never runs within the call that sent it.
    auto give = [member = member_, message = std::move(message)] { member->OnMessage(message); };
    if (alone_) return loop_->Post(std::move(give));
    // Runs after the streams to other nodes have written, which happens in the last round of the
    // loop: those messages have further to go, and a worker here would take the core.
    loop_->PostLast(
        [loop = loop_, give = std::move(give)]() mutable { loop->Post(std::move(give)); });
  }
  void Refuse(v1::Refusal refusal) override {
    v1::SequencerMessage message;
    *message.mutable_refusal() = std::move(refusal);
    Send(std::move(message));
  }
  // Ends with the daemon.
  void Close() override {}

 private:
  Loop* const loop_;
  Member* const member_;
  const bool alone_;  // in a world of one node
};

// The member's end.
class LocalSequencerLink final : public SequencerLink {
 public:
  LocalSequencerLink(Sequencer* sequencer, std::shared_ptr<MemberLink> member)
      : sequencer_(sequencer), member_(std::move(member)) {}
  void Send(v1::MemberMessage message) override { sequencer_->OnMessage(member_, message); }

 private:
  Sequencer* const sequencer_;
  const std::shared_ptr<MemberLink> member_;
};

void AddTransportGauges(const UcxTransport* transport, Metrics* metrics) {
  const TransportCounters& c = transport->counters();
  const auto add = [metrics](const char* name, const TransportCount& count) {
    metrics->SetGauge(name, [&count] { return static_cast<double>(count); });
  };
  add("transport_messages_sent_total", c.plan.messages_sent);
  add("transport_messages_received_total", c.plan.messages_received);
  add("transport_peer_failures_total", c.peers_failed);
  add("transport_stale_total", c.stale_generation);
  add("transport_parked_messages", c.parked);
  add("transport_staging_bytes", c.staging_bytes);
  metrics->SetGauge("transport_refused_connections_total",
                    [transport] { return static_cast<double>(transport->refused_connections()); });
  metrics->SetGauge("transport_sent_bytes_total", [&c] { return c.bytes_sent(); });
  metrics->SetGauge("transport_received_bytes_total", [&c] { return c.bytes_received(); });
  metrics->SetGauge("transport_dropped_total", [&c] { return c.dropped(); });
}

// All objects of a daemon, in the order of their creation.
class WholeDaemon final : public Daemon {
 public:
  explicit WholeDaemon(Config config)
      : config_(std::move(config)), pauses_(config_.Describe(config_.self)) {}
  ~WholeDaemon() override;

  absl::Status Start(std::function<void(absl::Status)> on_refused);
  int port() const override { return server_->port(); }

 private:
  absl::Status CreateDevices();
  absl::Status CreateTransport();
  void CreateMember(std::function<void(absl::Status)> on_refused);
  absl::Status CreateSequencer();
  void OpenJournal();
  absl::Status CreateMeasurer();
  void CreateTuner();
  absl::Status CreateClient();
  absl::Status Serve();
  absl::Status ServePeers();
  void ServeFiles();
  void EnterWorld();
  void WatchMemory();
  bool alone() const { return config_.nodes.size() == 1; }
  SequencerParts sequencer_parts() {
    return {loop_.get(),     sequencer_.get(), &placement_,     catalog_.get(), scheduler_.get(),
            sessions_.get(), &call_turns_,     measurer_.get(), tuner_.get()};
  }

  const Config config_;
  PauseWatch pauses_;
  Metrics metrics_;
  std::vector<std::unique_ptr<Device>> devices_;
  std::vector<std::unique_ptr<Heap>> heaps_;
  std::vector<v1::DeviceHello> hello_;
  Placement placement_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<Filler> filler_;
  std::unique_ptr<Runner> runner_;
  std::unique_ptr<UcxTransport> transport_;  // null in a world of one node
  std::unique_ptr<TensorIo> tensor_io_;
  std::unique_ptr<StatusView> view_;
  std::unique_ptr<scheduler::Journal> journal_;  // null: none
  std::unique_ptr<Sequencer> sequencer_;         // these six and the planners: on node 0 only
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<Sessions> sessions_;
  std::unique_ptr<Measurer> measurer_;
  std::unique_ptr<Tuner> tuner_;
  std::unique_ptr<Member> member_;
  // Runs on top of all of the above.
  std::unique_ptr<Loop> loop_ = std::make_unique<Loop>("the daemon's state");
  CallTurns call_turns_{loop_.get()};
  // The scheduler's planners; both post to loop_, and planner_ posts to large_planner_.
  std::unique_ptr<Loop> large_planner_, planner_;
  std::unique_ptr<Loop> measure_worker_;  // the measurer's and the tuner's, which posts to loop_
  std::unique_ptr<HeartbeatThread> heartbeats_;  // these two are null in a world of one node
  std::unique_ptr<UdpHeartbeats> udp_heartbeats_;
  std::shared_ptr<grpc::Channel> channel_;  // these three exist on the other nodes
  std::unique_ptr<SequencerClient> client_;
  std::unique_ptr<JoinStream> join_;
  SequencerCalls calls_;
  const std::shared_ptr<OwnerQuota> transfer_memory_ =
      TransferMemory(config_.transfer_memory_bytes);
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<Mappings> mappings_;
  std::unique_ptr<FileSocket> files_;  // null without a unix socket
  std::unique_ptr<ClusterService> cluster_service_;
  std::vector<std::unique_ptr<grpc::Service>> services_, peer_services_;  // the others
  MemberTokens member_tokens_;
  std::unique_ptr<RpcServer> server_;
  // Serves the other daemons, on the first of several nodes, so that a flood of clients cannot take
  // their connections.
  std::unique_ptr<RpcServer> peer_server_;
  int memory_checks_ = 0;
};

absl::Status WholeDaemon::Start(std::function<void(absl::Status)> on_refused) {
  AddProcessGauges(&metrics_);
  AGMM_RETURN_IF_ERROR(loop_->status());
  AGMM_RETURN_IF_ERROR(CreateDevices());
  AGMM_RETURN_IF_ERROR(CreateTransport());
  CreateMember(std::move(on_refused));
  if (config_.is_sequencer()) {
    AGMM_RETURN_IF_ERROR(CreateSequencer());
  } else {
    AGMM_RETURN_IF_ERROR(CreateClient());
  }
  AGMM_RETURN_IF_ERROR(Serve());
  if (udp_heartbeats_ != nullptr) {
    metrics_.SetGauge("udp_heartbeats_received_total", [heartbeats = udp_heartbeats_.get()] {
      return static_cast<double>(heartbeats->received_total());
    });
  }
  EnterWorld();
  WatchMemory();
  return absl::OkStatus();
}

absl::Status WholeDaemon::CreateDevices() {
  std::vector<Heap*> heaps;
  std::vector<LocalDevice> local;
  for (const DeviceConfig& config : config_.devices) {
    AGMM_ASSIGN_OR_RETURN(std::unique_ptr<Device> device, CreateDevice(config));
    AGMM_ASSIGN_OR_RETURN(std::unique_ptr<Heap> heap, device->CreateHeap(config.heap_bytes));
    const DeviceInfo info = device->info();
    v1::DeviceHello& hello = hello_.emplace_back();
    hello.set_kind(info.kind);
    hello.set_description(info.description);
    hello.set_thread_count(info.threads);
    hello.set_heap_bytes(heap->size_bytes());
    hello.set_island(info.island);
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
  runner_ = std::make_unique<Runner>(
      config_.self, first_rank, std::move(local), config_.node_of_rank(), &metrics_,
      [this](v1::Report report) { member_->Report(std::move(report)); });
  AGMM_RETURN_IF_ERROR(runner_->status());
  filler_ = std::make_unique<Filler>(
      store_.get(), [this](v1::Report report) { member_->Report(std::move(report)); });
  return filler_->status();
}

absl::Status WholeDaemon::CreateTransport() {
  if (!alone()) {
    AGMM_RETURN_IF_ERROR(CheckReachable(config_));
    if (const std::string warning = LoopbackPeer(config_); !warning.empty())
      spdlog::warn("{}", warning);
    TransportOptions options;
    AGMM_ASSIGN_OR_RETURN(const auto addresses, Resolve(config_.transport_address, 0));
    options.bind_address = addresses[0].ip();
    options.ports = {config_.first_transport_port, config_.last_transport_port};
    options.other_ports = config_.listen_ports();
    options.secret = config_.secret;
    options.describe = [this](int node) { return config_.Describe(node); };
    AGMM_ASSIGN_OR_RETURN(transport_, UcxTransport::Create(options, runner_.get(), store_.get()));
    transport_->OnPeerFailure([this](int node, const absl::Status& why) {
      spdlog::warn("the transport's connection to node {} broke: {}", config_.nodes[node].name,
                   why.ToString());
      loop_->Post([this, node, reason = std::string(why.message())] {
        member_->OnPeerBroken(node, reason);
      });
    });
    AddTransportGauges(transport_.get(), &metrics_);
    heartbeats_ = std::make_unique<HeartbeatThread>(&pauses_);
    AGMM_RETURN_IF_ERROR(heartbeats_->status());
  }
  // A device with several threads has a free one to drive the transport while another waits.
  if (transport_ != nullptr && devices_.size() == 1 && config_.devices[0].threads == 1)
    devices_[0]->Lend(transport_->progress());
  runner_->SetTransport(transport_.get(), [this] {
    if (transport_ != nullptr) transport_->Resume();
  });
  view_ = std::make_unique<StatusView>(config_, runner_.get(), transport_.get(), &metrics_);
  tensor_io_ = std::make_unique<TensorIo>(loop_.get(), store_.get(), transport_.get(), config_.self,
                                          config_.node_of_rank());
  return absl::OkStatus();
}

void WholeDaemon::CreateMember(std::function<void(absl::Status)> on_refused) {
  member_ = std::make_unique<Member>(config_, Member::Parts{.loop = loop_.get(),
                                                            .runner = runner_.get(),
                                                            .store = store_.get(),
                                                            .filler = filler_.get(),
                                                            .transport = transport_.get(),
                                                            .metrics = &metrics_,
                                                            .pauses = &pauses_,
                                                            .devices = hello_});
  Member::Handlers handlers;
  handlers.refused = std::move(on_refused);
  if (!config_.is_sequencer()) {
    handlers.joined = [this](const std::shared_ptr<SequencerLink>&) {
      client_->SetConnected(join_->token());
    };
    handlers.lost = [this](const absl::Status& reason, const std::string& next) {
      client_->SetLost(reason, next);
      cluster_service_->EndSessions(reason);
    };
    handlers.complete = [this](bool complete) { server_->SetServing(complete); };
  }
  handlers.report_held = [this] { mappings_->ReportHeld(); };
  handlers.end_mappings = [this](uint64_t tensor_id) { mappings_->EndDeleted(tensor_id); };
  member_->SetHandlers(std::move(handlers));
}

absl::Status WholeDaemon::CreateSequencer() {
  planner_ = std::make_unique<Loop>("plans and their proofs");
  large_planner_ = std::make_unique<Loop>("large plans and their proofs");
  for (const Loop* loop : {planner_.get(), large_planner_.get()})
    AGMM_RETURN_IF_ERROR(loop->status());
  sequencer_ = std::make_unique<Sequencer>(config_, &metrics_, ToHex(member_->incarnation()));
  sequencer_->SetPauses(&pauses_);
  catalog_ = std::make_unique<Catalog>(sequencer_.get(), &placement_);
  Scheduler::Parts scheduler;
  scheduler.loop = loop_.get();
  scheduler.planners = {planner_.get(), large_planner_.get()};
  scheduler.plan_cache_bytes = config_.plan_cache_bytes;
  OpenJournal();
  scheduler.journal = journal_.get();
  scheduler.members = sequencer_.get();
  scheduler.placement = &placement_;
  scheduler.catalog = catalog_.get();
  scheduler.metrics = &metrics_;
  if (transport_ != nullptr) scheduler.transport = transport_->description();
  // Made below; asked only when jobs are submitted.
  scheduler.basis = [this] { return PlanBasis{measurer_->machine(), tuner_->table()}; };
  scheduler_ = std::make_unique<Scheduler>(scheduler);
  sessions_ =
      std::make_unique<Sessions>(sequencer_->node_count(), catalog_.get(), scheduler_.get());
  AGMM_RETURN_IF_ERROR(CreateMeasurer());
  CreateTuner();
  sequencer_->SetListeners({catalog_.get(), scheduler_.get(), measurer_.get()});
  sequencer_->OnNodeLost([this](int node) { sessions_->OnNodeLost(node); });
  sequencer_->OnReadyChanged([this](bool ready) { server_->SetServing(ready); });
  calls_ = LocalCalls(sequencer_parts());
  return absl::OkStatus();
}

absl::Status WholeDaemon::CreateMeasurer() {
  measure_worker_ = std::make_unique<Loop>("plans of measurements");
  AGMM_RETURN_IF_ERROR(measure_worker_->status());
  Measurer::Parts parts;
  parts.loop = loop_.get();
  parts.worker = measure_worker_.get();
  parts.members = sequencer_.get();
  parts.placement = &placement_;
  parts.metrics = &metrics_;
  parts.is_idle = [this] { return scheduler_->IsIdle(); };
  if (const std::string folder = MachineFolderPath(config_); !folder.empty())
    parts.folder.emplace(folder);
  // Rank 0 is one of this node's devices.
  parts.preset = measure::PresetFor(hello_[0].kind());
  parts.cluster = config_.cluster;
  for (const NodeConfig& node : config_.nodes) {
    const absl::StatusOr<HostPort> address = ParseHostPort(node.address, 0);
    parts.hosts.push_back(address.ok() ? address->host : "this host");
  }
  parts.transport = "tcp";
  measurer_ = std::make_unique<Measurer>(std::move(parts));
  return absl::OkStatus();
}

void WholeDaemon::CreateTuner() {
  Tuner::Parts parts;
  parts.loop = loop_.get();
  parts.worker = measure_worker_.get();
  parts.members = sequencer_.get();
  parts.machine = [this] { return measurer_->machine(); };
  parts.folder = MachineFolderPath(config_);
  tuner_ = std::make_unique<Tuner>(std::move(parts));
}

void WholeDaemon::OpenJournal() {
  const std::string path = JournalPath(config_);
  if (path.empty()) return;
  // By default the journal is next to the socket. If the folder cannot be created, Serve reports
  // it.
  if (!config_.socket.empty()) MakeSocketFolder(config_.socket).IgnoreError();
  absl::StatusOr<std::unique_ptr<scheduler::Journal>> journal =
      scheduler::Journal::Open(path, &metrics_, {});
  if (!journal.ok()) {
    spdlog::warn("no journal of jobs is kept: {}; change local.journal, or set it to \"none\"",
                 std::string(journal.status().message()));
    return;
  }
  journal_ = *std::move(journal);
  spdlog::info("the journal of jobs is in {0}.0 and {0}.1, with {1} of earlier runs", path,
               Counted(static_cast<int64_t>(journal_->earlier().size()), "job"));
}

absl::Status WholeDaemon::CreateClient() {
  channel_ = PeerChannel(config_.peer_address);
  AGMM_ASSIGN_OR_RETURN(udp_heartbeats_, UdpHeartbeats::Ask(config_.peer_address));
  client_ = std::make_unique<SequencerClient>(channel_, config_.Describe(0), &pauses_);
  calls_ = client_->calls();
  join_ = std::make_unique<JoinStream>(config_.peer_address, channel_, config_.secret, loop_.get(),
                                       heartbeats_.get(), udp_heartbeats_.get(), member_.get(),
                                       view_.get());
  return absl::OkStatus();
}

absl::Status WholeDaemon::Serve() {
  cluster_service_ =
      std::make_unique<ClusterService>(&calls_, view_.get(), config_.self, config_.max_sessions,
                                       [this](const std::string& session_id) {
                                         uploads_->EndSession(session_id);
                                         mappings_->EndSession(session_id);
                                       });
  const TransferParts transfers{&calls_, tensor_io_.get(), loop_.get(), config_.self,
                                transfer_memory_};
  metrics_.SetGauge("transfer_memory_bytes",
                    [memory = transfer_memory_] { return static_cast<double>(memory->taken()); });
  uploads_ = std::make_unique<Uploads>(transfers);
  std::vector<std::string> node_names;
  for (int node : config_.node_of_rank()) node_names.push_back(config_.nodes[node].name);
  mappings_ = std::make_unique<Mappings>(transfers, store_.get(), std::move(node_names));
  mappings_->OnReport([this](v1::Report report) { member_->Report(std::move(report)); });
  store_->OnGenerationEnd([this](const absl::Status& why) {
    tensor_io_->OnGenerationEnd();
    mappings_->EndAll(
        WithReason(absl::AbortedError(absl::StrCat(why.message(), "; map the tensor again")),
                   kReasonPeerLost));
  });
  services_.push_back(MakeContentService(transfers, uploads_.get(), mappings_.get()));
  if (config_.is_sequencer()) {
    services_.push_back(MakeTensorService(sequencer_parts(), calls_));
    services_.push_back(MakeJobService(sequencer_parts()));
    services_.push_back(MakeMachineService(sequencer_parts()));
    services_.push_back(MakeTuningService(sequencer_parts()));
  } else {
    services_.push_back(MakeRelay("agmm.v1.TensorService", client_.get()));
    services_.push_back(MakeRelay("agmm.v1.JobService", client_.get()));
    services_.push_back(MakeRelay("agmm.v1.MachineService", client_.get()));
    services_.push_back(MakeRelay("agmm.v1.TuningService", client_.get()));
  }
  std::vector<grpc::Service*> services = {cluster_service_.get()};
  for (const auto& service : services_) services.push_back(service.get());
  AGMM_ASSIGN_OR_RETURN(server_, RpcServer::Start({config_.listen, config_.socket}, &metrics_,
                                                  &member_tokens_, services));
  if (!config_.socket.empty()) {
    spdlog::info("listening on unix:{}", config_.socket);
    ServeFiles();
  }
  if (!config_.listen.empty()) {
    spdlog::info("listening on {}, port {}", WithIps(config_.listen, server_->ips()),
                 server_->port());
    spdlog::warn("TCP is insecure: any host that reaches port {} can use this daemon",
                 server_->port());
  }
  // Runs after the socket has been locked, which waits until a dying process has left its ports.
  if (!config_.listen_peers.empty()) AGMM_RETURN_IF_ERROR(ServePeers());
  AGMM_RETURN_IF_ERROR(server_->Open());
  return peer_server_ == nullptr ? absl::OkStatus() : peer_server_->Open();
}

absl::Status WholeDaemon::ServePeers() {
  absl::StatusOr<std::vector<int>> sockets = BindUdp(config_.listen_peers);
  if (!sockets.ok()) {
    spdlog::warn("UDP heartbeats are disabled, so a node may be dropped under load: {}",
                 std::string(sockets.status().message()));
    sockets.emplace();
  }
  AGMM_ASSIGN_OR_RETURN(udp_heartbeats_, UdpHeartbeats::Answer(*std::move(sockets)));
  const JoinParts join{
      config_.secret, heartbeats_.get(), udp_heartbeats_.get(), &member_tokens_,
      [this](const std::string& peer) {
        if (peer_server_->Trust(peer)) return;
        spdlog::warn("could not lift the bounds on the connection of {}, although it has joined",
                     peer);
      }};
  peer_services_.push_back(MembersOnly(
      std::make_unique<ClusterService>(&calls_, view_.get(), config_.self, config_.max_sessions)));
  peer_services_.push_back(MembersOnly(MakeTensorService(sequencer_parts(), calls_)));
  peer_services_.push_back(MembersOnly(MakeJobService(sequencer_parts())));
  peer_services_.push_back(MembersOnly(MakeMachineService(sequencer_parts())));
  peer_services_.push_back(MembersOnly(MakeTuningService(sequencer_parts())));
  peer_services_.push_back(MakePeerService(sequencer_parts(), calls_, join));
  std::vector<grpc::Service*> services;
  for (const auto& service : peer_services_) services.push_back(service.get());
  AGMM_ASSIGN_OR_RETURN(
      peer_server_, RpcServer::Start({config_.listen_peers, "", /*members_only=*/true}, &metrics_,
                                     &member_tokens_, services));
  spdlog::info("the other daemons join at {}", WithIps(config_.listen_peers, peer_server_->ips()));
  return absl::OkStatus();
}

void WholeDaemon::ServeFiles() {
  // Only now does this daemon certainly own the socket next to it.
  absl::StatusOr<std::unique_ptr<FileSocket>> files = FileSocket::Start(config_.socket + ".files");
  if (!files.ok()) {
    spdlog::warn("clients cannot map tensors: {}", files.status().ToString());
    return;
  }
  files_ = *std::move(files);
  mappings_->SetFiles(files_.get());
}

void WholeDaemon::EnterWorld() {
  loop_->Post([this] {
    if (config_.is_sequencer()) {
      auto link = std::make_shared<LocalMemberLink>(loop_.get(), member_.get(), alone());
      member_->OnStream(std::make_shared<LocalSequencerLink>(sequencer_.get(), link));
    } else {
      spdlog::info("joining the world of {} at {}", config_.Describe(0),
                   WithIps(config_.peer_address, config_.nodes[0].ips));
      join_->Start();
    }
  });
}

// Detects floods of calls, and returns the memory that they leave free.
void WholeDaemon::WatchMemory() {
  loop_->PostAfter(kMemoryPeriod, [this] {
    const int64_t usual_bytes = runner_->plan_bytes() +
                                metrics_.counter("job_history_bytes")->value() +
                                transfer_memory_->taken();
    // Much more is allocated, probably by stalled calls.
    const bool strained = static_cast<int64_t>(AllocatedBytes()) > usual_bytes + kStrainBytes;
    for (RpcServer* server : {server_.get(), peer_server_.get()})
      if (server != nullptr) server->SetStrained(strained);
    if (++memory_checks_ % kTrimPeriods == 0) ReturnFreedMemory(kKeptFreeBytes);
    WatchMemory();
  });
}

WholeDaemon::~WholeDaemon() {
  // Also runs for a daemon whose start failed.
  std::latch drained(1);
  if (member_ != nullptr) {
    loop_->Post([&] {
      if (sequencer_ != nullptr) sequencer_->Stop();
      member_->Stop(absl::UnavailableError("the daemon is stopping"),
                    [&] { drained.count_down(); });
      // The generation has ended, and was the last one.
      if (tensor_io_ != nullptr) tensor_io_->Stop();
    });
  }
  // Stopped but not destroyed, because the loop may still use it.
  if (join_ != nullptr) join_->Stop();
  for (RpcServer* server : {server_.get(), peer_server_.get()})
    if (server != nullptr) server->Stop();
  // Clients that unmap from now on have no memory to release.
  files_.reset();
  // Stopped but not destroyed, because the end of a session may still call it.
  if (uploads_ != nullptr) uploads_->Stop();
  client_.reset();
  heartbeats_.reset();
  if (member_ != nullptr) drained.wait();
  loop_->Stop();
  for (const auto& device : devices_) device->Lend(nullptr);
  transport_.reset();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Daemon>> Daemon::Start(
    const Config& config, std::function<void(absl::Status)> on_refused) {
  auto daemon = std::make_unique<WholeDaemon>(ResolveNodes(config));
  AGMM_RETURN_IF_ERROR(daemon->Start(std::move(on_refused)));
  return daemon;
}

}  // namespace agmm
