// Asks the nodes of launched jobs for the progress of their ranks. Touched on the loop only.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
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
  void Ask(const Job& job, bool step_times, Asker asker, Callback done);
  void OnAnswer(int node, const v1::LaunchProgress& progress);
  // Called when the generation has ended: no node will answer.
  void Clear();

 private:
  struct Query {
    uint64_t launch = 0;
    bool step_times = false;
    // `silent` are the nodes that have not answered. Constant once the query has ended.
    std::shared_ptr<Answer> answer = std::make_shared<Answer>();
    std::deque<Callback> sequencers, clients;
    bool over = false;
    Loop::Timer timer;  // ends the query; then ends the life of its answer
  };
  void End(uint64_t id);
  // Runs the callbacks, which may ask again or end the generation.
  void Reply(Query* query);
  void ReplyToClients(std::shared_ptr<const Answer> answer, std::deque<Callback> clients);

  Members* const members_;
  Loop* const loop_;
  std::map<uint64_t, Query> queries_;
  uint64_t next_ = 1;
};

}  // namespace agmm::scheduler
