// Jobs that are admitted and not launched, in the order of admission, and the resources that jobs
// hold until they end: leases, plans, and their place among the writers of tensors. Touched on the
// loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "daemon/link/owner_quota.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/job.h"
#include "daemon/sequencer/launches.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/plan_cache.h"

namespace agmm::scheduler {

// Jobs that later ones pass, because they wait for a plan that is being made or prepared, or for a
// tensor of such a job.
class Passed {
 public:
  // Returns true if the job waits for its plan, or for a job that is passed. To be called for the
  // queue's jobs in their order.
  bool Waits(const Job& job) const;
  // Lets later jobs pass `job`, which waits. Returns false if too many are passed: then no later
  // job on its ranks can be launched.
  bool Add(const Job& job);

 private:
  std::vector<const Job*> jobs_;
};

class Queue {
 public:
  struct Parts {
    const Members* members;
    Catalog* catalog;
    PlanCache* plans;
    const Launches* launches;
    // Called when a queued job may have become ready.
    std::function<void()> on_change;
  };
  explicit Queue(Parts parts);

  // Errors: RESOURCE_EXHAUSTED when the queue, or the owner's share of it, is full.
  absl::Status CheckRoom(const std::string& principal) const { return quota_.Check(principal); }
  // To be called after CheckRoom. Takes the job's leases; its plan is already held, or a retired
  // plan of its key is in use.
  void Add(Job* job);
  // Requeues a job that was launched. Its plan is retired; it keeps its leases.
  void Requeue(Job* job);
  // Removes a job that is launched.
  void Remove(Job* job) { jobs_.erase(job->id); }
  // Releases everything that the job holds. Must not be called while a node may still use it.
  // `results_are_whole`: the tensors that it wrote have contents.
  void ReleaseAll(Job* job, bool results_are_whole);

  // By id, which is the order of admission.
  const std::map<uint64_t, Job*>& jobs() const { return jobs_; }
  // Returns true if a job that has not ended writes the tensor.
  bool IsWritten(uint64_t tensor) const { return writers_.count(tensor) > 0; }
  std::vector<Job*> JobsOn(const PreparedPlan* plan) const;

  // Makes the queued jobs on a retired plan wait for another plan.
  void DropPlan(PreparedPlan* plan);
  // Plans again for jobs without a plan, once the retired plan is no longer in use.
  void HoldPlans();

  // Returns true if the job can be launched now, as far as earlier jobs in the queue allow.
  bool IsReady(const Job& job) const;
  // Returns why a queued job is not launched.
  v1::QueueWait WaitOf(const Job& job) const;

 private:
  // Like WaitOf, for a job that waits for the lease.
  v1::QueueWait LeaseWaitOf(const Job& job, const Lease& lease) const;
  // Returns the lease that the job waits for; null: none.
  const Lease* AwaitedLease(const Job& job) const;
  // Returns the queued job that `job` waits for; null if it waits for something else.
  const Job* QueuedBefore(const Job& job) const;
  // Returns the first job of the chain in which each waits for the one before. `job` ends it.
  const Job& FirstInTheWay(const Job& job) const;

  const Parts parts_;
  OwnerQuota quota_;  // of jobs that are not over
  std::map<uint64_t, Job*> jobs_;
  std::map<uint64_t, int> writers_;  // tensor -> jobs that are not over and write it
  bool plans_missing_ = false;       // a queued job holds no plan
};

}  // namespace agmm::scheduler
