#include "daemon/sequencer/queue.h"

#include <algorithm>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/sequencer/lost_tensors.h"

namespace agmm::scheduler {
namespace {

constexpr int64_t kMaxJobs = 10000;
// The most jobs that one job passes. Each of them is compared with all that pass it.
constexpr size_t kMostPassed = 64;

v1::QueueWait WaitFor(std::string reason) {
  v1::QueueWait wait;
  wait.set_reason(std::move(reason));
  return wait;
}

v1::QueueWait WaitForJob(const Job& job, const Job& other, std::string reason) {
  v1::QueueWait wait = WaitFor(std::move(reason));
  wait.set_job_id(other.id);
  for (int rank : RanksOfBoth(job, other)) wait.add_ranks(rank);
  return wait;
}

bool HasLease(const Job& job, const Lease& lease) {
  const auto it = job.leases.find(lease.tensor);
  return it != job.leases.end() && it->second == lease.id;
}

}  // namespace

bool Passed::Waits(const Job& job) const {
  return (job.plan != nullptr && !job.plan->settled()) ||
         std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const Job* other) { return OrderMatters(*other, job); });
}

bool Passed::Add(const Job& job) {
  if (jobs_.size() == kMostPassed) return false;
  jobs_.push_back(&job);
  return true;
}

Queue::Queue(Parts parts)
    : parts_(std::move(parts)),
      quota_({"jobs", "are queued or running", "wait for some of them to end, or cancel some"},
             OwnerQuota::Quarters(kMaxJobs)) {}

void Queue::Add(Job* job) {
  quota_.Take(job->record.owner()).IgnoreError();  // cannot fail, because there is room
  jobs_[job->id] = job;
  if (job->plan == nullptr) plans_missing_ = true;
  std::map<uint64_t, bool> tensors;  // true: the job writes it
  for (const Binding& binding : job->spec.bindings) {
    tensors[binding.tensor] |= binding.writes;
    if (binding.writes) ++writers_[binding.tensor];
  }
  job->leases_awaited = static_cast<int>(tensors.size());
  // The catalog drops the callback with the lease, which the job outlives.
  const auto granted = [this, job](const absl::Status& status) {
    --job->leases_awaited;
    if (job->lease_error.ok()) job->lease_error = status;
    parts_.on_change();
  };
  for (const auto& [tensor, writes] : tensors)
    job->leases[tensor] = parts_.catalog->Acquire(tensor, writes, granted);
  parts_.on_change();
}

void Queue::Requeue(Job* job) {
  parts_.plans->LetGo(std::exchange(job->plan, nullptr));
  plans_missing_ = true;
  jobs_[job->id] = job;
  parts_.on_change();
}

void Queue::ReleaseAll(Job* job, bool results_are_whole) {
  quota_.Return(job->record.owner());
  jobs_.erase(job->id);
  for (const Binding& binding : job->spec.bindings) {
    if (!binding.writes) continue;
    if (job->began) parts_.catalog->SetContents(binding.tensor, results_are_whole);
    if (const auto it = writers_.find(binding.tensor); it != writers_.end() && --it->second == 0)
      writers_.erase(it);
  }
  for (const auto& [tensor, lease] : std::exchange(job->leases, {})) parts_.catalog->Release(lease);
  if (job->plan != nullptr) parts_.plans->LetGo(std::exchange(job->plan, nullptr));
  parts_.on_change();
}

std::vector<Job*> Queue::JobsOn(const PreparedPlan* plan) const {
  std::vector<Job*> jobs;
  for (const auto& [id, job] : jobs_) {
    if (job->plan == plan) jobs.push_back(job);
  }
  return jobs;
}

void Queue::DropPlan(PreparedPlan* plan) {
  for (Job* job : JobsOn(plan)) {
    parts_.plans->LetGo(std::exchange(job->plan, nullptr));
    plans_missing_ = true;
  }
}

void Queue::HoldPlans() {
  if (!std::exchange(plans_missing_, false)) return;
  for (const auto& [id, job] : jobs_) {
    if (job->plan != nullptr) continue;
    if (parts_.plans->Retiring(job->spec.plan_key)) {
      plans_missing_ = true;
      continue;
    }
    job->plan = parts_.plans->Hold(job->spec);
    RecordPlan(job);
  }
}

bool Queue::IsReady(const Job& job) const {
  return job.leases_awaited == 0 && job.plan != nullptr && job.plan->ready() &&
         parts_.launches->BlockerOf(job) == nullptr;
}

v1::QueueWait Queue::LeaseWaitOf(const Job& job, const Lease& lease) const {
  const std::string tensor = Describe(*parts_.catalog->Leased(lease.id));
  const Lease* holder = parts_.catalog->leases().HolderBefore(lease);
  if (holder == nullptr) return WaitFor(absl::StrCat(tensor, ", which not all nodes have placed"));
  if (IsJob(holder->kind)) {
    // Jobs share a tensor, so something between the two must be waiting, too.
    for (const auto& [number, other] : parts_.launches->jobs()) {
      if (!HasLease(*other, *holder)) continue;
      return WaitForJob(job, *other,
                        absl::StrFormat("%s, behind a transfer that waits for %s", tensor,
                                        parts_.launches->DescribeEnd(*other)));
    }
    if (const Job* const queued = QueuedBefore(job); queued != nullptr) {
      const Job& first = FirstInTheWay(*queued);
      const std::string between =
          first.id == queued->id ? "" : absl::StrFormat("is behind job %d, which ", first.id);
      return WaitForJob(job, first,
                        absl::StrFormat("%s, behind a transfer that waits for job %d, which "
                                        "%swaited for %s",
                                        tensor, queued->id, between, WaitOf(first).reason()));
    }
  }
  if (holder->held) return WaitFor(absl::StrCat(tensor, ", which a client still has mapped"));
  if (holder->node < 0) return WaitFor(absl::StrCat(tensor, ", which a fill writes"));
  const std::string& node = parts_.members->node_name(holder->node);
  // Then a writer between the two is waiting.
  if (CanShare(holder->kind, lease.kind)) {
    const Lease* const writer = parts_.catalog->leases().FirstWaiting(lease.tensor);
    for (const auto& [id, other] : jobs_) {
      if (other == &job || !HasLease(*other, *writer)) continue;
      return WaitForJob(
          job, *other,
          absl::StrFormat("%s, behind job %d, which waited for a transfer or a mapping "
                          "through node %s",
                          tensor, id, node));
    }
    return WaitFor(absl::StrFormat(
        "%s, behind a write that waits for a transfer or a mapping through node %s", tensor, node));
  }
  return WaitFor(absl::StrFormat("%s, which a transfer or a mapping through node %s %s", tensor,
                                 node, holder->kind == LeaseKind::kWrite ? "writes" : "reads"));
}

const Lease* Queue::AwaitedLease(const Job& job) const {
  for (const auto& [tensor, id] : job.leases) {
    const Lease* const lease = parts_.catalog->leases().Find(id);
    if (lease != nullptr && !lease->granted) return lease;
  }
  return nullptr;
}

const Job* Queue::QueuedBefore(const Job& job) const {
  if (const Lease* const lease = AwaitedLease(job); lease != nullptr) {
    const Lease* const holder = parts_.catalog->leases().HolderBefore(*lease);
    if (holder == nullptr || !IsJob(holder->kind)) return nullptr;
    for (const auto& [id, other] : jobs_)
      if (HasLease(*other, *holder)) return other;
    return nullptr;
  }
  if (job.plan == nullptr || !job.plan->settled()) return nullptr;
  Passed passed;
  for (const auto& [id, before] : jobs_) {
    if (id >= job.id) break;
    if (passed.Waits(*before) && passed.Add(*before) && !OrderMatters(*before, job)) continue;
    if (ShareRanks(*before, job)) return before;
  }
  return nullptr;
}

const Job& Queue::FirstInTheWay(const Job& job) const {
  const Job* first = &job;
  while (const Job* const before = QueuedBefore(*first)) first = before;
  return *first;
}

v1::QueueWait Queue::WaitOf(const Job& job) const {
  if (const Lease* const lease = AwaitedLease(job); lease != nullptr)
    return LeaseWaitOf(job, *lease);
  if (job.plan == nullptr) {
    return WaitFor("a new plan, because an earlier job failed on the same plan");
  }
  if (job.plan->planning) {
    return WaitFor("its plan, which was being made");
  }
  if (!job.plan->preparing.empty()) {
    std::vector<std::string> names;
    for (int node : job.plan->preparing) names.push_back(parts_.members->node_name(node));
    return WaitFor(
        absl::StrFormat("its plan, which %s had not prepared", absl::StrJoin(names, ", ")));
  }
  if (const Job& first = FirstInTheWay(job); first.id != job.id) {
    return WaitForJob(job, first,
                      absl::StrFormat("job %d, which is before it in the queue and waited for %s",
                                      first.id, WaitOf(first).reason()));
  }
  if (const Job* launched = parts_.launches->BlockerOf(job); launched != nullptr)
    return WaitForJob(job, *launched, parts_.launches->DescribeEnd(*launched));
  if (const Job* launched = parts_.launches->OnRanksOf(job); launched != nullptr) {
    return WaitForJob(
        job, *launched,
        absl::StrFormat("memory for its workspace, which job %d had not returned", launched->id));
  }
  return WaitFor("its launch");
}

}  // namespace agmm::scheduler
