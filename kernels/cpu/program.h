// What one rank runs: its part of a schedule with every index resolved and every step cut into
// pieces. Immutable while epochs run.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <variant>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/device/executor.h"
#include "kernels/device/gemm_config.h"

namespace agmm {

// A Place whose base is still open: operands and workspace move between epochs.
struct Memory {
  std::byte* heap = nullptr;  // null: on another node
  Buffer buffer = kWorkspace;
  int64_t offset_bytes = 0, pitch_bytes = 0;  // within the buffer
  DType dtype = DType::kF32;

  std::byte* At(const Operands& operands, int64_t row) const {
    const int64_t base =
        buffer == kWorkspace ? operands.workspace_offset : operands.offsets[buffer];
    return heap + base + offset_bytes + row * pitch_bytes;
  }
  Matrix Rows(const Operands& operands, int64_t row) const {
    return {At(operands, row), pitch_bytes, dtype};
  }
};

// Rows of a step that one worker does at a time; of to[target] in a copy.
struct Piece {
  int target = 0;
  int64_t row = 0, rows = 0;
};

// Who is told that a part of a step is done.
struct Signalled {
  Rank rank = 0;
  int slot = 0;
  Executor* executor = nullptr;  // null: on another node
  int node = 0;
};

struct CopyOp {
  Memory from;
  std::vector<Memory> to;
  int64_t rows = 0, cols = 0;
  std::vector<int> sends;  // indices into `to` on other nodes
  std::vector<bool> push;  // by index into `to`: see Message
};

struct MultiplyOp {
  int64_t rows = 0, n = 0, k = 0;
  Memory a, b, acc, out;
  bool accumulate = false, finish = true;
  bool has_acc = false;       // partial sums live in `acc`, else on chip
  bool b_is_operand = false;  // b's contents are named by its operand's version
  DType compute = DType::kF32;
  std::shared_ptr<const Matmul> full, last;  // for a piece of piece_rows, and for the last one
  bool direct = false;      // the matmul writes where the result belongs, not into scratch
  DType sum = DType::kF32;  // what the matmul writes
};

struct ReduceOp {
  int64_t cols = 0;
  Memory from, into, out;
  bool finish = false;
};

struct ProgramStep {
  std::variant<CopyOp, MultiplyOp, ReduceOp> op;
  int lane = 0;
  std::vector<Wait> waits;  // own, and those of the transfers it carries
  std::vector<Signalled> signals;
  std::vector<Piece> pieces;
};

struct Program {
  std::vector<ProgramStep> steps;
  std::vector<std::vector<int>> lanes;  // step indices in order
  std::vector<int64_t> chip_bytes;      // by lane: room for sums between multiplies
  std::vector<int64_t> operand_bytes;   // by operand: what a shard takes in a heap
  int64_t workspace_bytes = 0;
  int slots = 0;
};

// Lowers `schedule` for peers.self and makes the matmuls.
// Errors: INVALID_ARGUMENT for a schedule that names what is not there or what this device cannot
// run.
absl::StatusOr<Program> Lower(const Problem& problem, const Schedule& schedule, const Peers& peers,
                              int threads, GemmLibrary& library);

}  // namespace agmm
