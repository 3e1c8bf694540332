#include "client/trace/ran_plan.h"

#include <map>
#include <string>

#include "absl/strings/str_format.h"
#include "kernels/base/hash.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan_hash.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

std::vector<const v1::RankReport*> ReportsByRank(const v1::Job& job, const Mesh& mesh) {
  std::map<int, const v1::RankReport*> by_world_rank;
  for (const v1::RankReport& report : job.ranks()) by_world_rank[report.rank()] = &report;
  std::vector<const v1::RankReport*> reports;
  for (int world_rank : mesh.ranks) {
    const auto it = by_world_rank.find(world_rank);
    reports.push_back(it == by_world_rank.end() ? nullptr : it->second);
  }
  return reports;
}

absl::StatusOr<Schedule> PlanAgain(const Problem& problem, const Topology& topology,
                                   const v1::Job& job) {
  const PlanOptions options = FromProto(job.options());
  AGMM_ASSIGN_OR_RETURN(Schedule schedule, Plan(problem, topology, options));
  const std::string hash = HashHex(PlanHash(problem, schedule));
  if (hash == job.plan_hash()) return schedule;
  return absl::FailedPreconditionError(absl::StrFormat(
      "job %d (%s) ran plan %s, but this program plans %s; use one of the daemons' version",
      job.job_id(), options.algorithm, job.plan_hash(), hash));
}

}  // namespace agmm
