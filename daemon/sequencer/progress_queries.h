// Questions to the nodes of launched jobs: where each of their ranks is. Touched on the loop only.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
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
    RankReports ranks;  // also of nodes that have reported the end
    std::vector<v1::NodePath> paths;
    std::set<int> busy;    // nodes with messages of the job under way, to or from them
    std::set<int> silent;  // nodes that did not answer in time
  };
  using Callback = std::function<void(const Answer&)>;

  ProgressQueries(Members* members, Loop* loop) : members_(members), loop_(loop) {}

  // Asks the nodes that have not reported the end of `job`, a launched one, and passes their
  // answers to `done`, after kPatience at the latest. Callers that ask the same while a question is
  // under way, or kFresh after it, share its answer, so that many callers cost the nodes no more
  // than one.
  void Ask(const Job& job, bool step_times, Callback done);
  void OnAnswer(int node, const v1::LaunchProgress& progress);
  // The generation has ended: no node answers.
  void Clear();

 private:
  struct Query {
    uint64_t job = 0;
    bool step_times = false;
    Answer answer;  // `silent`: the nodes that have not answered
    std::vector<Callback> done;
    bool over = false;
    Loop::Timer timer;  // of its end; once it is over, of the end of its answer
  };
  void End(uint64_t id);

  Members* const members_;
  Loop* const loop_;
  std::map<uint64_t, Query> queries_;
  uint64_t next_ = 1;
};

}  // namespace agmm::scheduler
