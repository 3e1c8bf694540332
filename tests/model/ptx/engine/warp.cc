// A warp: how its lanes part and meet, and how it ends.
#include <algorithm>

#include "tests/model/ptx/instructions/barrier.h"
#include "tests/model/ptx/matrix/wgmma.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

// The lanes that must run this instruction together.
uint32_t MembersOf(const Warp& warp, const Instruction& instruction, uint32_t lanes) {
  if (instruction.members < 0) return warp.live;
  const Operand& members = instruction.operands[instruction.members];
  return warp.live & static_cast<uint32_t>(Source(warp, members)[FirstLane(lanes)]);
}

// The fragment that goes on: the one that is behind the others, so that they meet again soon. A
// fragment that polls lets the others go first. Returns -1 if all have polled without success.
int Choose(Warp& warp, uint64_t events) {
  if (warp.fragments.size() == 1) return 0;
  int chosen = -1;
  bool all_wait = true;
  for (size_t i = 0; i < warp.fragments.size(); ++i) {
    const Fragment& fragment = warp.fragments[i];
    if (fragment.waiting) continue;
    all_wait = false;
    if (fragment.stalled == events) continue;
    if (chosen < 0 || fragment.at < warp.fragments[chosen].at) chosen = static_cast<int>(i);
  }
  if (all_wait) {
    const auto& instructions = KernelOf(warp).instructions;
    Fail(warp, instructions[warp.fragments[0].at],
         "the lanes of the warp wait for each other here and at PTX line " +
             std::to_string(instructions[warp.fragments[1].at].line));
  }
  return chosen;
}

// Fragments at the same place are one again.
void Merge(Warp& warp) {
  for (size_t i = 0; i < warp.fragments.size(); ++i) {
    for (size_t k = i + 1; k < warp.fragments.size();) {
      if (warp.fragments[i].at != warp.fragments[k].at) {
        ++k;
        continue;
      }
      warp.fragments[i].lanes |= warp.fragments[k].lanes;
      warp.fragments.erase(warp.fragments.begin() + static_cast<int64_t>(k));
      for (Fragment& fragment : warp.fragments) fragment.waiting = false;
    }
  }
}

// Moves the fragment on after an instruction of the lanes of `mask`. Returns false if the fragment
// has ended.
bool Advance(Warp& warp, size_t index, const Instruction& instruction, Outcome outcome,
             uint32_t mask) {
  Fragment& fragment = warp.fragments[index];
  ++fragment.at;
  if (outcome == Outcome::kJump) {
    const uint32_t target = instruction.operands[0].index, rest = fragment.lanes & ~mask;
    if (rest == 0) {
      fragment.at = target;
    } else {
      fragment.lanes = rest;
      warp.fragments.push_back({target, mask});
    }
  } else if (outcome == Outcome::kExit) {
    warp.live &= ~mask;
    fragment.lanes &= ~mask;
    for (Fragment& other : warp.fragments) other.waiting = false;
    if (fragment.lanes == 0) {
      warp.fragments.erase(warp.fragments.begin() + static_cast<int64_t>(index));
      return false;
    }
  }
  return true;
}

// After a poll without success.
void Stall(Warp& warp, uint64_t events) {
  // A longer way from the last such poll means that one succeeded in between.
  constexpr uint32_t kLoopInstructions = 24, kMostPatience = 63;
  if (warp.since_poll > kLoopInstructions) warp.patience = 0;
  warp.since_poll = 0;
  warp.stalled = events + warp.patience;
  warp.patience = std::min(2 * warp.patience + 1, kMostPatience);
}

}  // namespace

void World::EndWarp(Warp& warp) {
  Cta& cta = *warp.cta;
  const auto& instructions = KernelOf(warp).instructions;
  if (WgmmaPending(warp)) Fail(warp, instructions.back(), "the warp ends before its wgmma");
  warp.done = true;
  cta.grid->at_end.Join(Publish(warp, warp.launched));
  warp.registers.clear();
  --cta.live_warps;
  ++events;
  if (cta.live_warps > 0) PassCtaBarriers(cta);
  PassClusterBarrier(*cta.cluster);
  if (cta.live_warps > 0) return;
  if (cta.pending_reads > 0)
    Fail(warp, instructions.back(), "the CTA ends while bulk stores read its shared memory");
  if (cta.pending_writes > 0)
    Fail(warp, instructions.back(),
         "the CTA ends while asynchronous copies write its shared memory");
  cta.done = true;
  if (--cta.cluster->live == 0) refill_ = true;
}

void World::RunWarp(Warp& warp, int quantum) {
  auto& instructions = warp.cta->grid->launch.kernel->instructions;
  while (quantum-- > 0) {
    const int index = Choose(warp, events);
    if (index < 0) {
      warp.stalled = events;
      return;
    }
    Fragment& fragment = warp.fragments[index];
    Instruction& instruction = instructions[fragment.at];
    if (instruction.converges && warp.fragments.size() > 1) {
      const uint32_t members = MembersOf(warp, instruction, fragment.lanes);
      if (members & ~fragment.lanes) {
        fragment.waiting = true;
        continue;
      }
    }
    uint32_t mask = fragment.lanes;
    if (instruction.guard >= 0) {
      const uint32_t holds = warp.predicates[instruction.guard];
      mask &= instruction.guard_negated ? ~holds : holds;
    }
    ++instruction.counts.runs;
    instruction.counts.taken += mask != 0;
    instruction.counts.lanes += __builtin_popcount(mask);
    ++counts.instructions;
    ++warp.clock;
    ++warp.since_poll;
    Outcome outcome = Outcome::kNext;
    if (mask != 0) {
      if (instruction.members >= 0 && mask & ~MembersOf(warp, instruction, mask)) {
        Fail(warp, instruction, "run by lanes outside of its member mask");
      }
      outcome = instruction.execute(warp, instruction, mask);
      if (!instruction.registers_async)
        NoteRegisterUse(warp, instruction);
      else if (options.mode == Mode::kEager)
        while (AdvanceWgmma(warp)) {
        }
    }
    if (outcome == Outcome::kAgain) {
      fragment.stalled = events;
      ++instruction.counts.repeats;
    }
    const bool ended = !Advance(warp, index, instruction, outcome, mask);
    if (ended && warp.fragments.empty()) {
      EndWarp(warp);
      return;
    }
    if (warp.fragments.size() > 1) Merge(warp);
    if (outcome == Outcome::kBlocked) return;
    if (outcome == Outcome::kAgain && warp.fragments.size() == 1) {
      Stall(warp, events);
      return;
    }
  }
  if (options.mode == Mode::kRandom && WgmmaPending(warp) && Random(8) == 0) AdvanceWgmma(warp);
}

}  // namespace ptx
