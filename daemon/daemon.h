// A whole daemon: its devices, its part in the world, its server. main.cc runs one; tests run
// several.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "daemon/config/config.h"
#include "daemon/job/runner.h"
#include "daemon/job/scheduler.h"
#include "daemon/observe/metrics.h"
#include "daemon/rpc/cluster_service.h"
#include "daemon/rpc/job_service.h"
#include "daemon/rpc/peer_service.h"
#include "daemon/rpc/server.h"
#include "daemon/rpc/tensor_service.h"
#include "daemon/tensor/catalog.h"
#include "daemon/tensor/placement.h"
#include "daemon/tensor/store.h"
#include "daemon/tensor/tensor_io.h"
#include "daemon/tensor/uploads.h"
#include "daemon/transport/ucx_transport.h"
#include "daemon/world/heartbeat.h"
#include "daemon/world/join.h"
#include "daemon/world/local_control.h"
#include "daemon/world/loop.h"
#include "daemon/world/member.h"
#include "daemon/world/remote_control.h"
#include "daemon/world/sequencer.h"
#include "daemon/world/status_view.h"

namespace agmm {

class Daemon {
 public:
  // `on_refused` runs once, on any thread, if the sequencer refuses this daemon for good.
  // Errors: ALREADY_EXISTS when an address is in use; RESOURCE_EXHAUSTED when the heaps do not fit.
  static absl::StatusOr<std::unique_ptr<Daemon>> Start(
      const Config& config, std::function<void(absl::Status)> on_refused);
  // Ends the calls and the jobs, and leaves the world.
  ~Daemon();
  Daemon(const Daemon&) = delete;

  // The TCP port that was bound, or 0.
  int port() const { return server_->port(); }

 private:
  explicit Daemon(const Config& config) : config_(config) {}
  absl::Status CreateDevices();
  absl::Status CreateTransport();
  void CreateMember(std::function<void(absl::Status)> on_refused);
  void CreateSequencer();
  void CreateRemote();
  absl::Status Serve();
  void ServeFiles();
  void EnterWorld();
  bool alone() const { return config_.nodes.size() == 1; }

  const Config config_;
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
  std::unique_ptr<Sequencer> sequencer_;  // these four, and planner_: on node 0 only
  std::unique_ptr<Catalog> catalog_;
  std::unique_ptr<Scheduler> scheduler_;
  std::unique_ptr<LocalControl> local_;
  std::unique_ptr<Member> member_;
  // Runs on top of all of the above.
  std::unique_ptr<Loop> loop_ = std::make_unique<Loop>();
  std::unique_ptr<Loop> planner_;           // of the scheduler; posts to loop_
  std::unique_ptr<Heartbeat> heartbeat_;    // null in a world of one node
  std::shared_ptr<grpc::Channel> channel_;  // these three: on the other nodes
  std::unique_ptr<RemoteControl> remote_;
  std::unique_ptr<Join> join_;
  Control* control_ = nullptr;  // local_ or remote_
  std::unique_ptr<Uploads> uploads_;
  std::unique_ptr<Mappings> mappings_;
  std::unique_ptr<FileSocket> files_;  // null without a unix socket
  std::unique_ptr<ClusterService> cluster_service_;
  std::unique_ptr<TensorService> tensor_service_;
  std::unique_ptr<JobService> job_service_;
  std::unique_ptr<PeerService> peer_service_;
  std::unique_ptr<RpcServer> server_;
};

}  // namespace agmm
