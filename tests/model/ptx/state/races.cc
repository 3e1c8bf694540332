#include "tests/model/ptx/state/races.h"

#include <algorithm>
#include <array>

namespace ptx {
namespace {

constexpr uint64_t kCellBytes = 16;

// Calls function(cell number, mask of its bytes) for the cells of a range.
template <typename Function>
void ForCells(uint64_t address, uint64_t bytes, Function function) {
  const uint64_t end = address + bytes;
  for (uint64_t at = address; at < end;) {
    const uint64_t cell = at / kCellBytes;
    const uint64_t from = at % kCellBytes, to = std::min(end - cell * kCellBytes, kCellBytes);
    function(cell, static_cast<uint16_t>((1u << to) - (1u << from)));
    at = (cell + 1) * kCellBytes;
  }
}

// Strong accesses do not race with each other if each one's scope includes the other's thread.
bool MorallyStrong(const Access& one, const Access& other) {
  const Scope scope = std::min(one.scope, other.scope);
  switch (scope) {
    case Scope::kNone: return false;
    case Scope::kSystem: return true;
    case Scope::kGpu: return one.gpu == other.gpu;
    case Scope::kCluster: return one.cluster == other.cluster;
    case Scope::kCta: return one.cta == other.cta;
  }
  return false;
}

std::string Does(const Access& access) {
  return std::string(access.proxy == Proxy::kAsync ? "asynchronous " : "") +
         (access.write ? "write" : "read");
}

}  // namespace

bool Clocks::Knows(Agent agent, Clock clock, uint32_t lanes) const {
  if (agent < all_.size() && all_[agent] >= clock) return true;
  for (const Some& some : some_) {
    if (some.agent == agent && some.clock >= clock) lanes &= ~some.lanes;
  }
  return lanes == 0;
}

void Clocks::Learn(Agent agent, Clock clock, uint32_t lanes) {
  if (agent >= all_.size()) all_.resize(agent + 1);
  if (all_[agent] >= clock) return;
  if (lanes != kAllLanes) {
    for (const Some& some : some_) {
      if (some.agent != agent) continue;
      if (some.clock == clock) lanes |= some.lanes;
      if (some.clock >= clock && (lanes & ~some.lanes) == 0) return;
    }
  }
  std::erase_if(some_, [&](const Some& some) {
    return some.agent == agent && some.clock <= clock && (some.lanes & ~lanes) == 0;
  });
  if (lanes == kAllLanes) {
    all_[agent] = clock;
  } else {
    some_.push_back({agent, lanes, clock});
  }
}

void Clocks::Join(const Clocks& other) {
  if (other.all_.size() > all_.size()) all_.resize(other.all_.size());
  const size_t count = other.all_.size();
  Clock* const mine = all_.data();
  const Clock* const theirs = other.all_.data();
  for (size_t i = 0; i < count; ++i) mine[i] = std::max(mine[i], theirs[i]);
  if (!some_.empty()) {
    std::erase_if(some_, [&](const Some& some) { return all_[some.agent] >= some.clock; });
  }
  for (const Some& some : other.some_) Learn(some.agent, some.clock, some.lanes);
}

void Knowledge::Join(const Knowledge& other) {
  order.Join(other.order);
  async_shared.Join(other.async_shared);
  async_global.Join(other.async_global);
  inits.Join(other.inits);
}

std::string PlaceOf(const Instruction& instruction, const std::vector<std::string>* files) {
  std::string place = "PTX line " + std::to_string(instruction.line);
  if (files == nullptr || instruction.source_file < 0 ||
      instruction.source_file >= static_cast<int>(files->size())) {
    return place;
  }
  const std::string& file = (*files)[instruction.source_file];
  return place + " (" + file.substr(file.rfind('/') + 1) + ":" +
         std::to_string(instruction.source_line) + ")";
}

void Races::Add(const std::string& what, const Access& later, const Access* earlier,
                const std::string& order) {
  const auto text = [&](const Access& access) {
    if (access.where == nullptr) return std::string("the host or a copy");
    return (access.kernel == nullptr ? "" : access.kernel->name + ", ") +
           PlaceOf(*access.where, files) + " `" + access.where->text.substr(0, 80) + "`";
  };
  std::string line = what + ": " + text(later);
  if (earlier != nullptr) line += ", after " + text(*earlier);
  if (!order.empty()) line += "; " + order;
  ++findings_[line];
}

// Reports a pair of accesses to the same bytes, one of them a write, that nothing orders.
void Races::Check(const Access& earlier, const Access& access, bool shared,
                  const Knowledge& known) {
  // Made only for a finding, because most pairs have none.
  const auto pair = [&] { return Does(access) + " after " + Does(earlier); };
  if (!known.order.Knows(earlier.agent, earlier.clock, earlier.lanes)) {
    if (earlier.agent == access.agent) {
      Add(pair() + " by other lanes of the warp, without an order", access, &earlier,
          "bar.warp.sync between them would order them");
      return;
    }
    const std::string order =
        earlier.proxy == Proxy::kAsync
            ? (earlier.write
                   ? "a wait for its completion (mbarrier, wait_group 0), passed on by a release, "
                     "would order them"
                   : "a wait for the end of its reads, passed on by a release, would order them")
            : "a release after the first and an acquire before the second, of a scope that "
              "includes both, would order them";
    Add(pair() + ", without an order", access, &earlier, order);
    return;
  }
  if (access.proxy != Proxy::kAsync) return;
  const Clocks& seen = shared ? known.async_shared : known.async_global;
  if (earlier.proxy == Proxy::kGeneric) {
    if (!earlier.write && !policy.fence_before_refill) return;
    if (seen.Knows(earlier.agent, earlier.clock, earlier.lanes)) return;
    Add(pair() + ", without a proxy fence", access, &earlier,
        shared
            ? "fence.proxy.async by the thread of the first, before its release, would order them"
            : "fence.proxy.async after the acquire would order them");
  } else if (!shared && earlier.cta != access.cta &&
             !seen.Knows(earlier.agent, earlier.clock, earlier.lanes)) {
    Add(pair() + " of another CTA, without a proxy fence", access, &earlier,
        "fence.proxy.async after the acquire would order them");
  }
}

void Races::Touch(Cell& cell, uint16_t bytes, bool shared, const Access& access,
                  const Knowledge& known) {
  bool merged = false;
  size_t kept = 0;
  for (size_t i = 0; i < cell.past.size(); ++i) {
    Cell::Past& past = cell.past[i];
    bool keep = true;
    if (past.bytes & bytes) {
      const Access& earlier = past.access;
      // The order of a program, within one proxy. Agents are used again by later CTAs.
      const bool same_lanes = earlier.agent == access.agent && earlier.cta == access.cta &&
                              earlier.proxy == access.proxy && (earlier.lanes & ~access.lanes) == 0;
      const bool same_instruction = earlier.agent == access.agent && earlier.clock == access.clock;
      const bool exempt = MorallyStrong(earlier, access);
      if ((earlier.write || access.write) && !same_lanes && !same_instruction && !exempt) {
        Check(earlier, access, shared, known);
      }
      // A write replaces what it is ordered after: an access after the write is ordered after
      // that, too.
      if (access.write && !(exempt && !same_lanes) && !same_instruction) {
        past.bytes &= ~bytes;
        keep = past.bytes != 0;
      }
    }
    if (keep && !merged && past.access.agent == access.agent && past.access.write == access.write &&
        past.access.lanes == access.lanes && past.access.proxy == access.proxy &&
        past.access.scope == access.scope &&
        (past.access.clock == access.clock || (past.bytes & ~bytes) == 0)) {
      past.access = access;
      past.bytes |= bytes;
      merged = true;
    }
    if (keep) {
      if (kept != i) cell.past[kept] = past;
      ++kept;
    }
  }
  cell.past.resize(kept);
  if (!merged) cell.past.push_back({access, bytes});
  if (access.write) cell.written |= bytes;
}

void Races::TouchShared(std::vector<Cell>& cells, uint64_t address, uint64_t bytes,
                        const Access& access, const Knowledge& known) {
  if (!enabled) return;
  ForCells(address, bytes, [&](uint64_t number, uint16_t mask) {
    Cell& cell = cells[number];
    if (!access.write && (mask & ~cell.written)) {
      Add("reads shared memory that nothing has written", access, nullptr, "");
    }
    Touch(cell, mask, true, access, known);
  });
}

Cell& Races::GlobalCell(uint64_t number) {
  const uint64_t page = number / kPageCells;
  if (page != last_page_ || last_cells_ == nullptr) {
    auto& cells = global_[page];
    if (cells == nullptr) cells = std::make_unique<std::array<Cell, kPageCells>>();
    last_page_ = page;
    last_cells_ = cells.get();
  }
  return (*last_cells_)[number % kPageCells];
}

void Races::TouchGlobal(uint64_t address, uint64_t bytes, const Access& access,
                        const Knowledge& known) {
  if (!enabled) return;
  ForCells(address, bytes, [&](uint64_t number, uint16_t mask) {
    Cell& cell = GlobalCell(number);
    if (!access.write && (mask & ~cell.written)) {
      // Memory that the host has written is in ranges, because it is large.
      const uint64_t at = number * kCellBytes;
      for (int byte = 0; byte < 16; ++byte) {
        if ((mask & ~cell.written) >> byte & 1 && IsWritten(at + byte)) cell.written |= 1u << byte;
      }
      if (mask & ~cell.written)
        Add("reads global memory that nothing has written", access, nullptr, "");
    }
    Touch(cell, mask, false, access, known);
  });
}

bool Races::IsWritten(uint64_t address) const {
  auto range = written_.upper_bound(address);
  return range != written_.begin() && address < (--range)->second;
}

void Races::SetWritten(uint64_t address, uint64_t bytes) {
  uint64_t& end = written_[address];
  end = std::max(end, address + bytes);
}

void Races::Release(uint64_t address, uint64_t bytes, const Knowledge& host) {
  const uint64_t first = (address + kCellBytes - 1) / kCellBytes,
                 last = (address + bytes) / kCellBytes;
  for (auto& [page, cells] : global_) {
    if ((page + 1) * kPageCells <= first || page * kPageCells >= last) continue;
    for (uint64_t i = 0; i < kPageCells; ++i) {
      if (page * kPageCells + i < first || page * kPageCells + i >= last) continue;
      for (const Cell::Past& past : (*cells)[i].past) {
        const Access& access = past.access;
        if (host.order.Knows(access.agent, access.clock, access.lanes)) continue;
        Add("memory is taken away, and the host does not know that a kernel's access has ended",
            access, nullptr, "a synchronization with the kernel's stream would order them");
      }
      (*cells)[i] = {};
    }
  }
}

std::pair<Agent, Clock> Races::TakeAgent(const Knowledge& known, int gpu) {
  constexpr size_t kMostTries = 64;
  auto& free = free_[gpu];
  for (size_t i = 0; i < std::min(free.size(), kMostTries); ++i) {
    auto& candidate = free[free.size() - 1 - i];
    if (!known.order.Knows(candidate.first, candidate.second)) continue;
    const auto taken = candidate;
    candidate = free.back();
    free.pop_back();
    return {taken.first, taken.second + 1};
  }
  return {next_agent_++, 1};
}

void Races::ForgetGpu(int gpu) {
  for (auto& [page, cells] : global_) {
    for (Cell& cell : *cells) {
      std::erase_if(cell.past, [&](const Cell::Past& past) { return past.access.gpu == gpu; });
    }
  }
}

void Races::ForgetGlobal() {
  for (auto& [page, cells] : global_) {
    for (Cell& cell : *cells) cell.past.clear();
  }
}

}  // namespace ptx
