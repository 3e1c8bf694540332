#include "daemon/sequencer/progress_queries.h"

#include <algorithm>
#include <utility>

namespace agmm::scheduler {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kFresh = absl::Milliseconds(100);

}  // namespace

void ProgressQueries::Ask(const Job& job, bool step_times, Callback done) {
  const auto same = std::find_if(queries_.begin(), queries_.end(), [&](const auto& entry) {
    return entry.second.job == job.id && entry.second.step_times == step_times;
  });
  if (same != queries_.end()) {
    if (!same->second.over) return same->second.done.push_back(std::move(done));
    const Answer answer = same->second.answer;  // a callback may end the generation
    return done(answer);
  }
  const uint64_t id = next_++;
  Query& query = queries_[id];
  query.job = job.id;
  query.step_times = step_times;
  query.answer.ranks = job.reports;
  query.answer.silent = job.reporting;
  for (auto& [rank, report] : query.answer.ranks) {
    if (!step_times) report.clear_steps();
    if (!report.has_progress()) report.mutable_progress()->set_epochs_done(job.spec.repeat);
  }
  query.done.push_back(std::move(done));
  query.timer = loop_->PostAfter(kPatience, [this, id] { End(id); });
  v1::Command command;
  v1::ReportProgress* ask = command.mutable_report_progress();
  ask->set_query_id(id);
  ask->set_job_id(job.id);
  ask->set_step_times(step_times);
  for (int node : job.reporting) members_->Send(node, command);
}

void ProgressQueries::OnAnswer(int node, const v1::LaunchProgress& progress) {
  const auto it = queries_.find(progress.query_id());
  if (it == queries_.end() || it->second.over) return;
  Answer& answer = it->second.answer;
  if (answer.silent.erase(node) == 0) return;
  if (progress.arriving_count() > 0) answer.busy.insert(node);
  for (const v1::RankReport& rank : progress.ranks()) {
    if (rank.progress().in_flight_count() > 0) answer.busy.insert(node);
    answer.ranks[rank.rank()] = rank;
  }
  answer.paths.insert(answer.paths.end(), progress.paths().begin(), progress.paths().end());
  if (answer.silent.empty()) End(it->first);
}

void ProgressQueries::End(uint64_t id) {
  Query& query = queries_.at(id);
  loop_->Cancel(query.timer);
  query.over = true;
  query.timer = loop_->PostAfter(kFresh, [this, id] { queries_.erase(id); });
  // A callback may ask again, or end the generation.
  const Answer answer = query.answer;
  for (const Callback& done : std::exchange(query.done, {})) done(answer);
}

void ProgressQueries::Clear() {
  for (auto& [id, query] : std::exchange(queries_, {})) {
    loop_->Cancel(query.timer);
    for (const Callback& done : query.done) done(query.answer);
  }
}

}  // namespace agmm::scheduler
