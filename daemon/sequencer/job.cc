#include "daemon/sequencer/job.h"

#include <algorithm>

#include "proto/convert/plan_inputs.h"

namespace agmm::scheduler {

bool ShareRanks(const Job& a, const Job& b) {
  const std::vector<int>& theirs = b.spec.problem.mesh.ranks;
  return std::find_first_of(theirs.begin(), theirs.end(), a.spec.problem.mesh.ranks.begin(),
                            a.spec.problem.mesh.ranks.end()) != theirs.end();
}

std::vector<int> RanksOfBoth(const Job& a, const Job& b) {
  const std::vector<int>& theirs = b.spec.problem.mesh.ranks;
  std::vector<int> both;
  for (int rank : a.spec.problem.mesh.ranks)
    if (std::find(theirs.begin(), theirs.end(), rank) != theirs.end()) both.push_back(rank);
  return both;
}

void RecordPlan(Job* job) {
  v1::Job& record = job->record;
  if (job->plan == nullptr || job->plan->planning) {
    *record.mutable_options() = ToProto(job->spec.options);
    return;
  }
  const Planned& planned = job->plan->planned;
  *record.mutable_options() = ToProto(planned.options);
  record.set_explanation(planned.resolved.why);
  record.set_plan_hash(planned.hash);
  record.set_schedule(planned.schedule);
  record.clear_device_paths();
  if (job->plan->settled())
    for (const std::string& path : job->plan->device_paths) record.add_device_paths(path);
}

}  // namespace agmm::scheduler
