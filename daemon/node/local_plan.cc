#include "daemon/node/local_plan.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/hash.h"
#include "kernels/base/malloc_bytes.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/plan_hash.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

absl::Status LocalPlan::Prepare(const LocalNode& node, const v1::PreparePlan& command,
                                std::string* hash) {
  id = command.plan_id();
  AGMM_ASSIGN_OR_RETURN(problem, ProblemOf(command));
  AGMM_ASSIGN_OR_RETURN(const Recipe recipe, FromProto(command.recipe(), problem.mesh));
  const int world_size = static_cast<int>(node.node_of_rank.size());
  for (int rank : problem.mesh.ranks) {
    if (rank >= world_size) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "plan %d names rank %d; the world has ranks 0 to %d", id, rank, world_size - 1));
    }
    peers.nodes.push_back(node.node_of_rank[rank]);
  }
  peers.islands = {command.islands().begin(), command.islands().end()};
  AGMM_ASSIGN_OR_RETURN(Schedule planned,
                        PlanWith(problem, Topology{peers.nodes, peers.islands}, recipe));
  *hash = HashHex(PlanHash(problem, planned));
  if (AGMM_FAILPOINT("runner.plan_differs")) *hash = HashHex(0);
  if (*hash != command.plan_hash()) {
    return absl::InternalError(
        absl::StrFormat("node %d planned %s but the sequencer planned %s, so the two daemons "
                        "differ; install one build everywhere",
                        node.index, *hash, command.plan_hash()));
  }
  std::vector<bool> mine;
  for (int of_rank : peers.nodes) mine.push_back(of_rank == node.index);
  SchedulePart part = PartOf(std::move(planned), mine);
  ShrinkToFit(&part.schedule);
  schedule = std::make_shared<const Schedule>(std::move(part.schedule));
  names = std::move(part.names);
  FindProducers(node.index);
  return CreateExecutors(node);
}

void LocalPlan::FindProducers(int self) {
  producers.resize(peers.nodes.size());
  for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
    const std::vector<Step>& steps = schedule->ranks[rank];
    for (size_t index = 0; index < steps.size(); ++index) {
      for (const Slot& slot : steps[index].signals) {
        if (peers.nodes[slot.rank] != self) continue;
        std::vector<Producer>& of_rank = producers[slot.rank];
        if (of_rank.size() <= static_cast<size_t>(slot.index)) of_rank.resize(slot.index + 1);
        of_rank[slot.index] = {static_cast<Rank>(rank), static_cast<int>(index)};
      }
    }
  }
  for (std::vector<Producer>& of_rank : producers) of_rank.shrink_to_fit();
}

absl::Status LocalPlan::CreateExecutors(const LocalNode& node) {
  const Mesh& mesh = problem.mesh;
  peers.executors.resize(mesh.size());
  peers.heaps.resize(mesh.size());
  peers.transport = node.transport;
  peers.plan = id;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    if (peers.nodes[rank] != node.index) continue;
    const int device = mesh.ranks[rank] - node.first_rank;
    locals.push_back({rank, device, node.devices[device].device->CreateExecutor()});
    peers.executors[rank] = locals.back().executor.get();
    peers.heaps[rank] = node.devices[device].heap;
  }
  for (LocalRank& local : locals) {
    peers.self = local.rank;
    AGMM_RETURN_IF_ERROR(local.executor->Prepare(problem, schedule, peers));
    size_bytes += local.executor->size_bytes();
    device_paths.merge(local.executor->device_paths());
    device_products.merge(local.executor->device_products());
  }
  size_bytes += SizeBytes(*schedule);
  for (const std::vector<int>& some : names) size_bytes += MallocBytesOf(some);
  for (const std::vector<Producer>& some : producers) size_bytes += MallocBytesOf(some);
  return absl::OkStatus();
}

void EraseIfOver(const PlanPtr& plan, Plans* plans) {
  if (plan->released && plan->launches.empty() && plan->receives == 0) plans->erase(plan->id);
}

}  // namespace agmm
