// One rank's part of a schedule, with every index resolved and every step cut into pieces.
// Immutable while epochs run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/rank_plan.h"

namespace agmm {

// Rows of a step that one worker handles at a time; rows of to[target] in a copy.
struct Piece {
  int target = 0;
  int64_t row = 0, rows = 0;
};

// Receiver of the signal that a part of a step is done.
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
  GemmKernel kernel = GemmKernel::kF32;
  std::shared_ptr<const Matmul> full, last;  // for a piece of piece_rows, and for the last one
  bool direct = false;      // the matmul writes to the result's place, not into scratch
  DType sum = DType::kF32;  // the dtype that the matmul writes
};

struct ReduceOp {
  int64_t cols = 0;
  HeapPlace from, into, out;
  bool finish = false;
};

struct ProgramStep {
  std::variant<CopyOp, MultiplyOp, ReduceOp> op;
  int lane = 0;
  std::vector<Wait> waits;  // its own, and those of the transfers it carries
  std::vector<Signalled> signals;
  std::vector<Piece> pieces;
};

struct Program {
  std::vector<ProgramStep> steps;
  std::vector<std::vector<int>> lanes;  // step indices in order
  std::vector<int64_t> chip_bytes;      // by lane: room for sums between multiplies
  std::vector<int64_t> packed_bytes;    // by lane: room for a packed B that has arrived
  int slots = 0;
};

// Memory that it takes, without the matmuls, which programs share.
int64_t SizeBytes(const Program& program);

// Lowers the steps of `plan` and makes the matmuls.
// Errors: INVALID_ARGUMENT for steps that VerifySteps refuses, and for peers that do not fit.
absl::StatusOr<Program> Lower(const RankPlan& plan, int threads, GemmLibrary& library);

}  // namespace agmm
