// Asks the nodes of launched jobs for the progress of their ranks. Touched on the loop only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include "agmm/v1/peer.pb.h"
#include "daemon/sequencer/job.h"
#include "daemon/sequencer/members.h"
#include "kernels/base/loop.h"

namespace agmm::scheduler {

class ProgressQueries {
 public:
  struct Answer {
    RankReports ranks;  // including nodes that have reported the end
    std::vector<v1::NodePath> paths;
    std::set<int> busy;    // nodes with messages of the job in flight, to or from them
    std::set<int> silent;  // nodes that did not answer in time
  };
  using Callback = std::function<void(const Answer&)>;
  // A client's callback builds a large record.
  enum class Asker { kSequencer, kClient };

  ProgressQueries(Members* members, Loop* loop) : members_(members), loop_(loop) {}

  // Asks the nodes that have not reported the end of `job`, a launched one, and passes their
  // answers to `done`, after kPatience at the latest. Callers with the same question share its
  // answer while it is in progress and for kFresh after it, so that many callers cost the nodes as
  // much as one. The sequencer's callbacks come first; clients' callbacks follow one by one, with
  // the loop's other work in between.
  void Ask(const Job& job, bool step_times, Asker asker, Callback done) {
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
  void OnAnswer(int node, const v1::LaunchProgress& progress) {
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
  // Called when the generation has ended: no node will answer.
  void Clear() {
    for (auto& [id, query] : std::exchange(queries_, {})) {
      loop_->Cancel(query.timer);
      Reply(&query);
    }
  }

 private:
  static constexpr absl::Duration kPatience = absl::Seconds(1);
  static constexpr absl::Duration kFresh = absl::Milliseconds(100);
  struct Query {
    uint64_t launch = 0;
    bool step_times = false;
    // `silent` are the nodes that have not answered. Constant once the query has ended.
    std::shared_ptr<Answer> answer = std::make_shared<Answer>();
    std::deque<Callback> sequencers, clients;
    bool over = false;
    Loop::Timer timer;  // ends the query; then ends the life of its answer
  };
  void End(uint64_t id) {
    Query& query = queries_.at(id);
    loop_->Cancel(query.timer);
    query.over = true;
    query.timer = loop_->PostAfter(kFresh, [this, id] { queries_.erase(id); });
    Reply(&query);
  }
  // Runs the callbacks, which may ask again or end the generation.
  void Reply(Query* query) {
    const auto answer = query->answer;
    ReplyToClients(answer, std::exchange(query->clients, {}));
    for (const Callback& done : std::exchange(query->sequencers, {})) done(*answer);
  }
  void ReplyToClients(std::shared_ptr<const Answer> answer, std::deque<Callback> clients) {
    if (clients.empty()) return;
    loop_->Post([this, answer = std::move(answer), clients = std::move(clients)]() mutable {
      clients.front()(*answer);
      clients.pop_front();
      ReplyToClients(std::move(answer), std::move(clients));
    });
  }

  Members* const members_;
  Loop* const loop_;
  std::map<uint64_t, Query> queries_;
  uint64_t next_ = 1;
};

}  // namespace agmm::scheduler
