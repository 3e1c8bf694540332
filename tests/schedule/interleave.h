// Runs schedules of tiny problems on real bytes, one small action at a time, in any order that an
// adversary picks. Shares only the meaning of a schedule with the verifier, so that each can find
// the other's bugs.
//
// Nothing is atomic: transfers copy piece by piece, multiplies read and write tile by tile,
// arrivals and signals take effect as late as the adversary likes. Between the epochs of a rank its
// environment checks the result, poisons it, and writes new inputs, also piece by piece, as soon as
// the rank's own steps have ended.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "kernels/schedule/schedule.h"

namespace agmm::test {

enum class TaskKind { kStep, kRead, kWrite, kSignal, kEnvironment };

// A unit that can act: a step of a lane, the reading or writing half of one copy of a transfer, a
// signal in flight, or the environment of a rank.
struct TaskId {
  TaskKind kind = TaskKind::kStep;
  Rank rank = 0;
  int step = 0;
  int part = 0;   // which destination, or which signal
  int epoch = 0;  // from 1
};

// The choice of the task that acts next. Tasks have fixed random priorities drawn from `seed`,
// except the tasks that a rule matches; or, with `walk`, the next task is drawn at random each
// time.
struct Strategy {
  struct Rule {
    bool any_kind = false, any_step = false, any_epoch = false;
    TaskId id;
    bool starve = true;  // acts only if nothing else can; false: acts whenever it can
  };
  uint64_t seed = 0;
  bool walk = false;
  std::vector<Rule> rules;
};

enum class Outcome { kExact, kWrong, kHang };

class Interleaver {
 public:
  // All tensors are f32. Both must outlive the interleaver.
  Interleaver(const Problem& problem, const Schedule& schedule, int epochs = 3);

  Outcome Run(const Strategy& strategy) const;

  // Tries `seeds` random strategies of both kinds, then starves and rushes each single task. Stops
  // at the first strategy with an inexact result and returns it.
  Outcome Explore(int seeds) const;

 private:
  friend class Execution;
  std::vector<Strategy> Strategies(int seeds) const;

  const Problem& problem_;
  const Schedule& schedule_;
  const int epochs_;
  using Matrix = std::vector<float>;  // row-major, whole
  struct Values {
    std::map<Operand, std::vector<Matrix>>
        inputs;  // the parts of an open sum; of a closed one, one
    Matrix result;
  };
  std::vector<Values> values_;  // by epoch, from 0 for epoch 1
};

}  // namespace agmm::test
