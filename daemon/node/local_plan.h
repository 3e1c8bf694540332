// A plan as this node runs it.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "agmm/v1/peer.pb.h"
#include "kernels/device/device.h"
#include "kernels/device/executor.h"
#include "kernels/device/transport.h"
#include "kernels/schedule/part.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

struct LocalDevice {
  Device* device = nullptr;
  Heap* heap = nullptr;
};

// The node's ranks, and their transport to other nodes.
struct LocalNode {
  int index = 0;
  int first_rank = 0;  // of the world; the devices are this rank and the following ones
  std::vector<LocalDevice> devices;
  std::vector<int> node_of_rank;   // covers the world
  Transport* transport = nullptr;  // null in a world of one node
};

struct LocalLaunch;

struct LocalPlan {
  struct LocalRank {
    Rank rank = 0;   // of the mesh
    int device = 0;  // of this node
    std::unique_ptr<Executor> executor;
  };

  // Constant after Prepare. The vectors are by rank of the mesh.
  uint64_t id = 0;
  Problem problem;
  // The part of the schedule that this node needs (PartOf), which the executors share.
  std::shared_ptr<const Schedule> schedule;
  StepNames names;
  // For each slot of this node's ranks, by rank of the mesh and index of the slot: the step that
  // raises it, as the rank that runs the step and the index into that rank's part of the schedule.
  struct Producer {
    Rank rank = -1;  // -1: not on this node
    int index = 0;
  };
  std::vector<std::vector<Producer>> producers;
  Peers peers;  // `self` differs for each executor
  std::vector<LocalRank> locals;
  int64_t size_bytes = 0;                               // the schedule and the executors
  std::set<std::string> device_paths, device_products;  // of all executors

  // Guarded by the runner's CallQueue.
  std::deque<std::shared_ptr<LocalLaunch>> launches;  // in command order, those not yet reported
  absl::Status failure;   // once it is set, no epoch begins and no message is accepted
  bool released = false;  // to be forgotten once nothing runs or arrives
  int receives = 0;       // accepted messages that have not arrived
  uint64_t next_epoch = 1;

  // Plans for `node` and builds the executors of its ranks. `hash` is set once there is a schedule.
  // Errors: those of the planner and the executors; INTERNAL if the sequencer's plan differs.
  absl::Status Prepare(const LocalNode& node, const v1::PreparePlan& command, std::string* hash);

 private:
  void FindProducers(int self);
  absl::Status CreateExecutors(const LocalNode& node);
};

using PlanPtr = std::shared_ptr<LocalPlan>;
using Plans = std::map<uint64_t, PlanPtr>;  // by id

// Forgets a released plan that nothing runs on or arrives for.
void EraseIfOver(const PlanPtr& plan, Plans* plans);

}  // namespace agmm
