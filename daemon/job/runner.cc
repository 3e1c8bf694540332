#include <algorithm>
#include <future>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/str_format.h"
#include "daemon/job/runner_impl.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace runner {

RunnerImpl::RunnerImpl(int self_node, int first_rank, std::vector<LocalDevice> devices,
                       std::vector<int> node_of_rank, Metrics* metrics, ReportFn report)
    : self_node_(self_node),
      first_rank_(first_rank),
      node_of_rank_(std::move(node_of_rank)),
      report_(std::move(report)),
      prepared_(metrics->counter("runner_plans_prepared_total")),
      launched_(metrics->counter("runner_launches_total")),
      dropped_(metrics->counter("runner_messages_dropped_total")),
      parked_total_(metrics->counter("runner_messages_parked_total")) {
  for (const LocalDevice& device : devices) devices_.push_back(DeviceQueue{device});
}

RunnerImpl::~RunnerImpl() {
  auto drained = std::make_shared<std::promise<void>>();
  EndGeneration(absl::CancelledError("the daemon is stopping"),
                [drained] { drained->set_value(); });
  drained->get_future().wait();
}

void RunnerImpl::SetTransport(Transport* transport, std::function<void()> resume) {
  transport_ = transport;
  resume_ = std::move(resume);
}

RunnerImpl::PlanPtr RunnerImpl::NewPlan() {
  std::lock_guard lock(mutex_);
  ++live_plans_;
  return PlanPtr(new Plan, [this](Plan* plan) {
    helper_.Post([this, plan] {
      delete plan;
      {
        std::lock_guard lock(mutex_);
        --live_plans_;
        ++busy_;
      }
      EndBusy();
    });
  });
}

RunnerImpl::PlanPtr RunnerImpl::FindPlan(uint64_t id) {
  const auto it = plans_.find(id);
  return it == plans_.end() ? nullptr : it->second;
}

void RunnerImpl::Prepare(const v1::PreparePlan& command) {
  {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    ++busy_;
  }
  helper_.Post([this, command] {
    PrepareNow(command);
    EndBusy();
  });
}

void RunnerImpl::PrepareNow(const v1::PreparePlan& command) {
  PlanPtr plan = NewPlan();
  v1::Report report;
  v1::PlanPrepared* answer = report.mutable_plan_prepared();
  answer->set_plan_id(command.plan_id());
  std::string hash;
  const absl::Status status = Make(command, plan.get(), &hash);
  answer->set_plan_hash(hash);
  if (!status.ok()) *answer->mutable_error() = ToProto(status);
  {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    if (status.ok()) plans_[plan->id] = plan;
    reports_.push_back(std::move(report));
  }
  if (status.ok()) prepared_->Add();
  SendReports();
}

absl::Status RunnerImpl::Make(const v1::PreparePlan& command, Plan* plan, std::string* hash) {
  plan->id = command.plan_id();
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(command.mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(command.dtype()));
  AGMM_ASSIGN_OR_RETURN(
      plan->problem,
      ParseProblem(command.spec(), mesh, {command.m(), command.n(), command.k()}, dtype));
  AGMM_ASSIGN_OR_RETURN(const PlanOptions options, FromProto(command.options()));
  for (int rank : mesh.ranks) {
    if (rank >= static_cast<int>(node_of_rank_.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("plan %d names rank %d; the world has ranks 0 to %d", plan->id, rank,
                          static_cast<int>(node_of_rank_.size()) - 1));
    }
    plan->nodes.push_back(node_of_rank_[rank]);
  }
  AGMM_ASSIGN_OR_RETURN(plan->schedule, agmm::Plan(plan->problem, Topology{plan->nodes}, options));
  *hash = HashHex(PlanHash(plan->problem, plan->schedule));
  if (AGMM_FAILPOINT("runner.plan_differs")) *hash = HashHex(0);
  if (*hash != command.plan_hash()) {
    return absl::InternalError(absl::StrFormat(
        "node %d planned %s where the sequencer planned %s; the daemons differ: install one build "
        "everywhere",
        self_node_, *hash, command.plan_hash()));
  }
  return PrepareExecutors(plan);
}

absl::Status RunnerImpl::PrepareExecutors(Plan* plan) {
  const Mesh& mesh = plan->problem.mesh;
  Peers peers;
  peers.nodes = plan->nodes;
  peers.plan = plan->id;
  peers.world_ranks = mesh.ranks;
  peers.executors.resize(mesh.size());
  peers.heaps.resize(mesh.size());
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    if (plan->nodes[rank] != self_node_) {
      if (transport_ == nullptr) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "rank %d is on node %d, and this daemon was started for a world of one node",
            mesh.ranks[rank], plan->nodes[rank]));
      }
      peers.transport = transport_;
      continue;
    }
    const int index = mesh.ranks[rank] - first_rank_;
    LocalDevice device;
    {
      std::lock_guard lock(mutex_);
      if (index < 0 || index >= static_cast<int>(devices_.size())) {
        return absl::InvalidArgumentError(
            absl::StrFormat("rank %d is not among this node's %d devices from rank %d",
                            mesh.ranks[rank], devices_.size(), first_rank_));
      }
      device = devices_[index].local;
    }
    plan->locals.push_back({rank, index, device.device->CreateExecutor()});
    peers.executors[rank] = plan->locals.back().executor.get();
    peers.heaps[rank] = device.heap;
  }
  plan->heaps = peers.heaps;
  for (LocalRank& local : plan->locals) {
    peers.self = local.rank;
    AGMM_RETURN_IF_ERROR(local.executor->Prepare(plan->problem, plan->schedule, peers));
  }
  return absl::OkStatus();
}

void RunnerImpl::Release(const v1::ReleasePlan& command) {
  {
    std::lock_guard lock(mutex_);
    ++busy_;
  }
  // Behind its Prepare.
  helper_.Post([this, id = command.plan_id()] {
    {
      std::lock_guard lock(mutex_);
      if (const PlanPtr plan = FindPlan(id); plan != nullptr) {
        plan->released = true;
        EraseIfOver(plan);
      }
    }
    EndBusy();
  });
}

void RunnerImpl::EraseIfOver(const PlanPtr& plan) {
  if (plan->released && plan->launches.empty() && plan->receives == 0) plans_.erase(plan->id);
}

void RunnerImpl::EndGeneration(const absl::Status& reason, std::function<void()> drained) {
  Actions actions;
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    parked_ = false;
    reports_.clear();
    ++busy_;
    drained_.push_back(std::move(drained));
    std::vector<PlanPtr> plans;
    for (const auto& [id, plan] : plans_) plans.push_back(plan);
    for (const PlanPtr& plan : plans) {
      plan->released = true;
      Fail(plan, reason, &actions);
      Advance(plan, &actions);
    }
  }
  Act(actions);
  EndBusy();
}

void RunnerImpl::EndBusy() {
  std::vector<std::function<void()>> drained;
  {
    std::lock_guard lock(mutex_);
    if (--busy_ > 0 || !ending_ || !plans_.empty() || live_plans_ > 0) return;
    ending_ = false;
    drained.swap(drained_);
  }
  for (const auto& call : drained) call();
}

void RunnerImpl::Act(const Actions& actions) {
  for (const auto& [plan, reason] : actions.cancels) {
    for (const LocalRank& local : plan->locals) local.executor->Cancel(reason);
  }
  SendReports();
  if (actions.resume && resume_) resume_();
  // A launch that was stopped may have been in front of others.
  if (!actions.cancels.empty()) FeedAll();
}

void RunnerImpl::SendReports() {
  std::unique_lock lock(mutex_);
  if (std::exchange(reporting_, true)) return;
  while (!reports_.empty()) {
    v1::Report report = std::move(reports_.front());
    reports_.pop_front();
    lock.unlock();
    report_(std::move(report));
    lock.lock();
  }
  reporting_ = false;
}

std::vector<DeviceCounters> RunnerImpl::counters() const {
  std::vector<Device*> devices;
  {
    std::lock_guard lock(mutex_);
    for (const DeviceQueue& queue : devices_) devices.push_back(queue.local.device);
  }
  std::vector<DeviceCounters> counters;
  for (Device* device : devices) counters.push_back(device->counters());
  return counters;
}

}  // namespace runner

std::unique_ptr<Runner> Runner::Create(int self_node, int first_rank,
                                       std::vector<LocalDevice> devices,
                                       std::vector<int> node_of_rank, Metrics* metrics,
                                       ReportFn report) {
  return std::make_unique<runner::RunnerImpl>(self_node, first_rank, std::move(devices),
                                              std::move(node_of_rank), metrics, std::move(report));
}

}  // namespace agmm
