// Bulk async-groups: each thread has its own.
//
// Lanes that issue an operation as one may share a group object. It is divided when only some of
// them go on with it.
#include <map>

#include "tests/model/ptx/bulk/bulk.h"

namespace ptx {
namespace {

using GroupPointer = std::shared_ptr<AsyncGroup>;

// Gives these lanes open groups that no other lane has.
void Separate(Warp& warp, uint32_t lanes) {
  ForLanes(lanes, [&](int lane) {
    const GroupPointer group = warp.bulk[lane].open;
    if (group == nullptr) return;
    uint32_t owners = 0;
    for (int other = 0; other < 32; ++other) {
      if (warp.bulk[other].open == group) owners |= 1u << other;
    }
    if ((owners & ~lanes) == 0) return;
    const auto copy = std::make_shared<AsyncGroup>(*group);
    for (const auto& operation : warp.cta->grid->pending) FollowGroup(*operation, *group, copy);
    ForLanes(owners & lanes, [&](int owner) { warp.bulk[owner].open = copy; });
  });
}

Outcome Commit(Warp& warp, const Instruction&, uint32_t mask) {
  Separate(warp, mask);
  const auto empty = std::make_shared<AsyncGroup>();
  ForLanes(mask, [&](int lane) {
    ThreadGroups& groups = warp.bulk[lane];
    groups.committed.push_back(groups.open ? std::move(groups.open) : empty);
    groups.open = nullptr;
  });
  return Outcome::kNext;
}

bool IsOver(const AsyncGroup& group, bool reads_only) {
  return group.reads == 0 && (reads_only || group.writes == 0);
}

// The groups of a lane except the newest ones.
size_t Older(const ThreadGroups& groups, size_t newest) {
  return groups.committed.size() > newest ? groups.committed.size() - newest : 0;
}

// After a wait for reads, groups stay until a wait for their writes. Joins the oldest ones that are
// over into one, which keeps the number of the newer ones. Lanes often have the same groups.
void JoinEnded(Warp& warp, uint32_t mask, size_t newest) {
  std::map<std::pair<GroupPointer, GroupPointer>, GroupPointer> joined;
  ForLanes(mask, [&](int lane) {
    auto& committed = warp.bulk[lane].committed;
    while (Older(warp.bulk[lane], newest) >= 2 && IsOver(*committed[0], false) &&
           IsOver(*committed[1], false)) {
      GroupPointer& both = joined[{committed[0], committed[1]}];
      if (both == nullptr) {
        both = std::make_shared<AsyncGroup>(*committed[0]);
        both->all.Join(committed[1]->all);
      }
      committed.pop_front();
      committed.front() = both;
    }
  });
}

// Returns true once all groups of the lanes except the newest ones have ended. The lanes then know
// what happened.
bool Ended(Warp& warp, uint32_t mask, size_t newest, bool reads_only) {
  std::map<AsyncGroup*, uint32_t> ended;  // the lanes that have it
  for (uint32_t lanes = mask; lanes; lanes &= lanes - 1) {
    const int lane = FirstLane(lanes);
    const size_t older = Older(warp.bulk[lane], newest);
    for (size_t i = 0; i < older; ++i) {
      AsyncGroup* const group = warp.bulk[lane].committed[i].get();
      if (!IsOver(*group, reads_only)) return false;
      ended[group] |= 1u << lane;
    }
  }
  for (const auto& [group, lanes] : ended) {
    Acquire(warp, lanes, reads_only ? group->read : group->all);
  }
  if (reads_only) {
    JoinEnded(warp, mask, newest);
    return true;
  }
  ForLanes(mask, [&](int lane) {
    auto& committed = warp.bulk[lane].committed;
    committed.erase(committed.begin(),
                    committed.begin() + static_cast<int64_t>(Older(warp.bulk[lane], newest)));
  });
  return true;
}

// Operand 0 is the number of groups that may go on.
Outcome WaitGroup(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const auto newest = static_cast<size_t>(instruction.operands[0].bits);
  const bool reads_only = instruction.flags & kReadOnly;
  if (Ended(warp, mask, newest, reads_only)) return Outcome::kNext;
  warp.wait = {std::string("bulk stores") + (reads_only ? " (their reads)" : "") +
                   ", all but the newest " + std::to_string(newest) + " groups",
               [&warp, mask, newest, reads_only] { return Ended(warp, mask, newest, reads_only); }};
  return Outcome::kBlocked;
}

}  // namespace

std::vector<GroupPointer> OpenGroups(Warp& warp, uint32_t lanes) {
  Separate(warp, lanes);
  std::vector<GroupPointer> groups;
  GroupPointer fresh;
  ForLanes(lanes, [&](int lane) {
    GroupPointer& open = warp.bulk[lane].open;
    if (open == nullptr) {
      if (fresh == nullptr) fresh = std::make_shared<AsyncGroup>();
      open = fresh;
    }
    for (const GroupPointer& group : groups) {
      if (group == open) return;
    }
    groups.push_back(open);
  });
  return groups;
}

Execute DecodeCommitGroup(Instruction& instruction) {
  return instruction.operands.empty() ? Commit : nullptr;
}

Execute DecodeWaitGroup(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("read")) instruction.flags |= kReadOnly;
  const auto& operands = instruction.operands;
  return operands.size() == 1 && operands[0].kind == Operand::kConstant && operands[0].bits >= 0
             ? WaitGroup
             : nullptr;
}

}  // namespace ptx
