// One rank's part of a schedule with every index resolved, from which the executors of all kinds of
// devices start.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/device/rank_plan.h"

namespace agmm {

// The receiver of the signal that a part of a step is done.
struct Signalled {
  int slot = 0;
  Executor* executor = nullptr;  // null: on another node
  int node = 0;
};

struct CopyOp {
  HeapPlace from;
  std::vector<HeapPlace> to;
  int64_t rows = 0, cols = 0;
  bool padded = false;     // the bytes between its rows at `from` are padding: see Rows
  std::vector<int> sends;  // indices into `to` on other nodes
  std::vector<bool> push;  // by index into `to`: see Message
};

struct MultiplyOp {
  int64_t rows = 0, n = 0, k = 0;
  HeapPlace a, b, acc, out;
  bool accumulate = false, finish = true;
  bool has_acc = false;       // partial sums live in `acc`, else on chip
  bool b_is_operand = false;  // the operand's version identifies b's contents
};

struct ReduceOp {
  int64_t rows = 0, cols = 0;
  std::vector<HeapPlace> from;
  HeapPlace acc, out;
  bool accumulate = true, finish = false;
  bool has_acc = false;
};

// Everything about a step except its work.
struct StepEdges {
  int lane = 0;
  std::vector<Wait> waits;         // its own waits, and those of the transfers that it carries
  std::vector<Signalled> signals;  // part i: to[i] of a copy is complete; the others: the step is
};

struct LoweredStep : StepEdges {
  std::variant<CopyOp, MultiplyOp, ReduceOp, Join> op;
};

struct LoweredRank {
  std::vector<LoweredStep> steps;
  std::vector<std::vector<int>> lanes;  // step indices in order
  int slots = 0;
};

// Lowers the steps of `plan`. Errors: INVALID_ARGUMENT for steps that VerifySteps refuses, and for
// peers that do not fit.
absl::StatusOr<LoweredRank> LowerRank(const RankPlan& plan);

}  // namespace agmm
