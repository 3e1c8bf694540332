// The steps of wgmma. A wgmma.mma_async is one operation of its warpgroup: it begins when the
// four warps have issued it, and ends as a whole.
#include "tests/model/ptx/matrix/wgmma.h"

#include <algorithm>
#include <optional>

#include "tests/model/ptx/matrix/fragments.h"
#include "tests/model/ptx/matrix/wgmma_form.h"
#include "tests/model/ptx/matrix/wgmma_matrix.h"
#include "tests/model/ptx/matrix/wgmma_registers.h"

namespace ptx {
namespace {

constexpr int kRows = 64, kGroupWarps = 4;

Warp* GroupOf(const Warp& warp) { return &warp.cta->warps[warp.index / kGroupWarps * kGroupWarps]; }

void RequireWarpgroup(const Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (warp.index / kGroupWarps * kGroupWarps + kGroupWarps > warp.cta->warps.size()) {
    Fail(warp, instruction, "the warpgroup has fewer than four warps");
  }
  if (mask != kAllLanes) Fail(warp, instruction, "not all threads of the warp execute it");
}

// The value that all lanes have.
uint64_t UniformValue(const Warp& warp, const Instruction& instruction, const Operand& operand) {
  const Lanes& lanes = Source(warp, operand);
  for (const uint64_t value : lanes) {
    if (value != lanes[0]) Fail(warp, instruction, "lanes have different matrix descriptors");
  }
  return lanes[0];
}

// ---- The race check of shared memory

// Checks the reads of one warp. The check is made when the warp issues the wgmma, with all that the
// warp knows by then. Because the clock becomes known only with the end of the whole operation, a
// write in between is found, too: it follows a read that its agent cannot know.
class ReadCheck {
 public:
  ReadCheck(Warp& warp, const Instruction& instruction)
      : warp_(warp),
        instruction_(instruction),
        races_(warp.cta->grid->world->races),
        known_(&warp.knowing[0].known) {
    if (warp.knowing.size() > 1) UseCopy();
  }

  // Reads some rows of a matrix. With `remembered` false, another warp of the warpgroup has read
  // the same pieces in the same operation: the end of its read is that of this one, so that only
  // the order after earlier writes is left to check.
  void Read(const SharedMatrix& matrix, int row, int rows, bool remembered) {
    Cta& cta = *warp_.cta;
    Access access = AccessOf(warp_, instruction_, kAllLanes, false);
    access.agent = warp_.wgmma_agent;
    access.clock = warp_.wgmma_clock;
    access.proxy = Proxy::kAsync;
    matrix.ForPieces(row, rows, DepthOf(matrix.type), [&](uint32_t offset, int, int) {
      if (offset < kSharedBase || offset + 16 > cta.shared.size()) {
        FindShared(warp_, SharedAddress(cta.rank, offset), 16, instruction_);
      }
      if (!races_.enabled) return;
      const bool known = KnowsWrites(cta.cells[offset / 16]);
      if (!known) UseCopy();
      if (remembered || !known) races_.TouchShared(cta.cells, offset, 16, access, *known_);
    });
  }

 private:
  // From now on uses all that the warp knows and has done.
  void UseCopy() {
    if (copy_) return;
    copy_ = Publish(warp_, kAllLanes);
    known_ = &*copy_;
  }

  // Returns true if the warp knows all writes to these bytes, and a read has nothing to report.
  bool KnowsWrites(const Cell& cell) {
    for (const Cell::Past& past : cell.past) {
      const Access& access = past.access;
      if (!access.write || (access.agent == last_agent_ && access.clock == last_clock_)) continue;
      if (!known_->order.Knows(access.agent, access.clock, access.lanes)) return false;
      if (access.proxy == Proxy::kGeneric) {
        if (!known_->async_shared.Knows(access.agent, access.clock, access.lanes)) return false;
      } else {
        // An asynchronous operation writes many pieces.
        last_agent_ = access.agent;
        last_clock_ = access.clock;
      }
    }
    return true;
  }

  Warp& warp_;
  const Instruction& instruction_;
  Races& races_;
  const Knowledge* known_;
  std::optional<Knowledge> copy_;
  Agent last_agent_ = 0;
  Clock last_clock_ = 0;
};

SharedMatrix MatrixA(const Warp& warp, const WgmmaIssue& issue) {
  const Instruction& instruction = *issue.instruction;
  SharedMatrix matrix;
  const std::string error = ReadDescriptor(issue.a_descriptor, instruction.from,
                                           instruction.flags & kTransposedA, kRows, matrix);
  if (!error.empty()) Fail(warp, instruction, "matrix A: " + error);
  return matrix;
}

SharedMatrix MatrixB(const Warp& warp, const WgmmaIssue& issue) {
  const Instruction& instruction = *issue.instruction;
  SharedMatrix matrix;
  const std::string error =
      ReadDescriptor(issue.b_descriptor, TypeOfB(instruction), instruction.flags & kTransposedB,
                     instruction.count, matrix);
  if (!error.empty()) Fail(warp, instruction, "matrix B: " + error);
  return matrix;
}

void CheckReads(Warp& warp, const WgmmaIssue& issue) {
  ReadCheck check(warp, *issue.instruction);
  if (!(issue.instruction->flags & kRegistersA)) {
    check.Read(MatrixA(warp, issue), warp.index % kGroupWarps * kWarpRows, kWarpRows, true);
  }
  const Warp* const group = GroupOf(warp);
  const bool first = std::all_of(group, group + kGroupWarps, [&](const Warp& other) {
    return &other == &warp || other.wgmma_clock < warp.wgmma_clock;
  });
  check.Read(MatrixB(warp, issue), 0, issue.instruction->count, first);
}

// ---- The operation

void RequireSame(const Warp& first, const Warp& other) {
  const WgmmaIssue& one = first.wgmma.front();
  const WgmmaIssue& two = other.wgmma.front();
  const auto fail = [&](const std::string& what) {
    const Module* const module = first.cta->grid->launch.module;
    Fail(other, *two.instruction,
         "the warps of a warpgroup issue wgmma.mma_async with different " + what + ": warp " +
             std::to_string(first.index) + " at " +
             PlaceOf(*one.instruction, module ? &module->files : nullptr));
  };
  if (one.instruction != two.instruction) fail("instructions");
  if (one.a_descriptor != two.a_descriptor) fail("descriptors of A");
  if (one.b_descriptor != two.b_descriptor) fail("descriptors of B");
  if (one.scale_d != two.scale_d) fail("scale-d");
}

void Multiply(Warp* warps) {
  const WgmmaIssue& issue = warps->wgmma.front();
  const Instruction& instruction = *issue.instruction;
  const int depth = DepthOf(instruction.from), columns = instruction.count;
  alignas(64) float a[kRows * kMaxDepth], b[kMaxDepth * kMaxColumns], d[kWarpRows * kMaxColumns];
  ReadMatrix(*warps->cta, MatrixB(*warps, issue), columns, depth, 1, columns, b);
  if (instruction.flags & kRegistersA) {
    for (int i = 0; i < kGroupWarps; ++i) {
      ReadFragmentA(warps[i], instruction.operands[1], instruction.from, depth,
                    a + i * kWarpRows * depth);
    }
  } else {
    ReadMatrix(*warps->cta, MatrixA(*warps, issue), kRows, depth, depth, 1, a);
  }
  if (instruction.flags & kNegated) {
    for (int i = 0; i < kRows * depth; ++i) a[i] = -a[i];
  }
  for (int i = 0; i < kGroupWarps; ++i) {
    const Operand& registers = instruction.operands[0];
    if (issue.scale_d) {
      ReadAccumulators(warps[i], registers, instruction.type, columns, d);
    } else {
      std::fill(d, d + kWarpRows * columns, 0.0f);
    }
    MultiplyAdd(a + i * kWarpRows * depth, b, depth, columns, d);
    WriteAccumulators(warps[i], registers, instruction.type, columns, d);
  }
  warps->cta->grid->world->counts.wgmma_flops += int64_t{2} * kRows * columns * depth;
}

// Carries out the warp's wgmma up to a clock. Returns null, or a warp that has not issued one.
const Warp* Finish(Warp& warp, Clock clock) {
  while (!warp.wgmma.empty() && warp.wgmma.front().clock <= clock) {
    if (AdvanceWgmma(warp)) continue;
    const Warp* const group = GroupOf(warp);
    return std::find_if(group, group + kGroupWarps,
                        [](const Warp& other) { return other.wgmma.empty(); });
  }
  return nullptr;
}

// Ends a wait for all groups but the newest `left`.
void Land(Warp& warp, size_t left) {
  while (warp.wgmma_groups.size() > left + 1) warp.wgmma_groups.pop_front();
  const Clock clock = warp.wgmma_groups.front();
  warp.wgmma_groups.pop_front();
  // All four count the same operations.
  const Warp* const group = GroupOf(warp);
  for (Warp::Knowing& lanes : warp.knowing) {
    for (int i = 0; i < kGroupWarps; ++i) lanes.known.order.Learn(group[i].wgmma_agent, clock);
  }
  ReleaseRegisters(warp, clock);
}

}  // namespace

// ---- Instructions

Outcome RunWgmmaFence(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarpgroup(warp, instruction, mask);
  PrepareRegisters(warp);
  ++warp.wgmma_fence;
  return Outcome::kNext;
}

Outcome RunWgmmaMma(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarpgroup(warp, instruction, mask);
  PrepareRegisters(warp);
  CheckRegisters(warp, instruction);
  WgmmaIssue issue{.instruction = &instruction, .clock = ++warp.wgmma_clock};
  const std::vector<Operand>& operands = instruction.operands;
  if (!(instruction.flags & kRegistersA)) {
    issue.a_descriptor = UniformValue(warp, instruction, operands[1]);
  }
  issue.b_descriptor = UniformValue(warp, instruction, operands[2]);
  const uint32_t scale = PredicateOf(warp, operands[3]);
  if (scale != 0 && scale != kAllLanes) {
    Fail(warp, instruction, "scale-d differs between the lanes of the warp");
  }
  issue.scale_d = scale != 0;
  CheckReads(warp, issue);
  TakeRegisters(warp, instruction);
  warp.wgmma.push_back(issue);
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

Outcome RunWgmmaCommit(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarpgroup(warp, instruction, mask);
  warp.wgmma_groups.push_back(warp.wgmma_clock);
  return Outcome::kNext;
}

Outcome RunWgmmaWait(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarpgroup(warp, instruction, mask);
  const auto left = static_cast<size_t>(instruction.operands[0].bits);
  if (warp.wgmma_groups.size() <= left) return Outcome::kNext;
  const Clock clock = warp.wgmma_groups[warp.wgmma_groups.size() - 1 - left];
  const auto text = [left](const Warp& missing) {
    return "wgmma.wait_group " + std::to_string(left) + ": warp " + std::to_string(missing.index) +
           " has not issued";
  };
  const Warp* const missing = Finish(warp, clock);
  if (missing == nullptr) {
    Land(warp, left);
    return Outcome::kNext;
  }
  warp.wait.text = text(*missing);
  warp.wait.over = [&warp, left, clock, text] {
    if (const Warp* const still = Finish(warp, clock)) {
      warp.wait.text = text(*still);
      return false;
    }
    Land(warp, left);
    return true;
  };
  return Outcome::kBlocked;
}

bool AdvanceWgmma(Warp& warp) {
  // A warp that has issued one is in a whole warpgroup.
  if (warp.wgmma.empty()) return false;
  Warp* const group = GroupOf(warp);
  for (int i = 0; i < kGroupWarps; ++i) {
    if (group[i].wgmma.empty()) return false;
  }
  for (int i = 1; i < kGroupWarps; ++i) RequireSame(group[0], group[i]);
  Multiply(group);
  for (int i = 0; i < kGroupWarps; ++i) group[i].wgmma.pop_front();
  ++warp.cta->grid->world->events;
  return true;
}

bool WgmmaPending(const Warp& warp) { return !warp.landing.empty(); }

}  // namespace ptx
