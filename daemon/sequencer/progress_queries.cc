#include "daemon/sequencer/progress_queries.h"

#include <algorithm>
#include <utility>

namespace agmm::scheduler {
namespace {

constexpr absl::Duration kPatience = absl::Seconds(1);
constexpr absl::Duration kFresh = absl::Milliseconds(100);

}  // namespace

void ProgressQueries::Ask(const Job& job, bool step_times, Asker asker, Callback done) {
  const auto same = std::find_if(queries_.begin(), queries_.end(), [&](const auto& entry) {
    return entry.second.launch == job.launch && entry.second.step_times == step_times;
  });
  const auto add = [&](Query* query) {
    (asker == Asker::kClient ? query->clients : query->sequencers).push_back(std::move(done));
  };
  if (same != queries_.end()) {
    if (!same->second.over) return add(&same->second);
    const auto answer = same->second.answer;  // a callback may end the generation
    return done(*answer);
  }
  const uint64_t id = next_++;
  Query& query = queries_[id];
  query.launch = job.launch;
  query.step_times = step_times;
  query.answer->ranks = job.reports;
  query.answer->silent = job.reporting;
  for (auto& [rank, report] : query.answer->ranks) {
    if (!step_times) report.clear_steps();
    if (!report.has_progress()) report.mutable_progress()->set_epochs_done(job.spec.repeat);
  }
  add(&query);
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
  Answer& answer = *it->second.answer;
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
  Reply(&query);
}

void ProgressQueries::Clear() {
  for (auto& [id, query] : std::exchange(queries_, {})) {
    loop_->Cancel(query.timer);
    Reply(&query);
  }
}

void ProgressQueries::Reply(Query* query) {
  const auto answer = query->answer;
  ReplyToClients(answer, std::exchange(query->clients, {}));
  for (const Callback& done : std::exchange(query->sequencers, {})) done(*answer);
}

void ProgressQueries::ReplyToClients(std::shared_ptr<const Answer> answer,
                                     std::deque<Callback> clients) {
  if (clients.empty()) return;
  loop_->Post([this, answer = std::move(answer), clients = std::move(clients)]() mutable {
    clients.front()(*answer);
    clients.pop_front();
    ReplyToClients(std::move(answer), std::move(clients));
  });
}

}  // namespace agmm::scheduler
