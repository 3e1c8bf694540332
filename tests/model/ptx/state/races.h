// The race check: which accesses have happened before which, and the findings.
//
// An agent is what makes accesses in an order of its own: a warp, the wgmma of a warp, one bulk
// operation. Its clock grows. An access is ordered before a later one if the later agent knows the
// earlier one's clock by then. Knowledge travels from a release to an acquire, through barriers,
// and by waiting for the end of an asynchronous operation.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/model/ptx/program/program.h"

namespace ptx {

using Agent = uint32_t;  // 0: none
using Clock = uint32_t;

// The accesses that are known to have happened: of each agent, up to a clock.
class Clocks {
 public:
  bool Knows(Agent agent, Clock clock, uint32_t lanes = kAllLanes) const;
  // From now on knows the accesses of these lanes of the agent, up to the clock.
  void Learn(Agent agent, Clock clock, uint32_t lanes = kAllLanes);
  void Join(const Clocks& other);
  bool empty() const { return all_.empty() && some_.empty(); }

 private:
  // Lanes of a warp that are ahead of the rest, because they have not met it at a barrier since.
  struct Some {
    Agent agent;
    uint32_t lanes;
    Clock clock;
  };
  std::vector<Clock> all_;  // by agent
  std::vector<Some> some_;
};

// The knowledge of a thread, a barrier or a flag.
struct Knowledge {
  Clocks order;                       // has happened before
  Clocks async_shared, async_global;  // of those, what the async proxy sees, too
  Clocks inits;                       // mbarriers whose init is visible
  void Join(const Knowledge& other);
};

// Choices where the ISA's words admit more than one reading. The defaults are the strictest that
// CUTLASS and Triton pass.
struct Policy {
  // An async write that refills shared memory needs a proxy fence after generic reads of it, as
  // after generic writes.
  bool fence_before_refill = true;
  // In shared memory, a proxy fence covers only accesses of the threads that run it; else also what
  // they know.
  bool fence_own_only = true;
  // The completion of a bulk store is a proxy fence for its writes: another CTA's async reads then
  // need no fence after their acquire. JAX's kernels rely on this.
  bool store_completion_fences = false;
};

enum class Proxy : uint8_t { kGeneric, kAsync };

struct Access {
  Agent agent = 0;
  Clock clock = 0;
  uint32_t lanes = kAllLanes;
  bool write = false;
  Proxy proxy = Proxy::kGeneric;
  Scope scope = Scope::kNone;  // of a strong access; kNone: weak
  int gpu = 0;
  uint64_t cta = 0, cluster = 0;   // numbers of the CTA that issued it, and of its cluster; 0: none
  const Kernel* kernel = nullptr;  // null: the host, or a copy
  const Instruction* where = nullptr;
};

// The last accesses to 16 bytes of memory. Each access covers some of the bytes, so neighbours do
// not conflict.
class Cell {
 public:
  struct Past {
    Access access;
    uint16_t bytes;  // a bit each
  };
  std::vector<Past> past;
  uint16_t written = 0;  // the bytes that have been written
};

class Races {
 public:
  Policy policy;
  bool enabled = true;

  // Returns an agent and its clock. Agents of ended warps are used again if `known` has all that
  // they have done.
  std::pair<Agent, Clock> TakeAgent(const Knowledge& known, int gpu);
  void ReturnAgent(Agent agent, Clock clock, int gpu) { free_[gpu].emplace_back(agent, clock); }
  // Forgets the accesses of a GPU that is lost.
  void ForgetGpu(int gpu);

  // Checks an access to `bytes` bytes at `address` against the earlier ones, and remembers it. The
  // address is an offset in the shared memory of a CTA (`cells` has one for each 16 bytes), or
  // global.
  void TouchShared(std::vector<Cell>& cells, uint64_t address, uint64_t bytes, const Access& access,
                   const Knowledge& known);
  void TouchGlobal(uint64_t address, uint64_t bytes, const Access& access, const Knowledge& known);
  // The bytes count as written: by the host, before the launch.
  void SetWritten(uint64_t address, uint64_t bytes);
  // The host, which knows this, takes global memory away: a finding for each access that it does
  // not know to have ended.
  void Release(uint64_t address, uint64_t bytes, const Knowledge& host);
  // Forgets all accesses to global memory: everybody has met, as between two launches of all GPUs.
  void ForgetGlobal();

  // Adds a finding: `what` with its two lines; `order` says what would order them, or is empty.
  void Add(const std::string& what, const Access& later, const Access* earlier,
           const std::string& order);
  // By text, with the number of times.
  const std::map<std::string, int64_t>& findings() const { return findings_; }
  void ClearFindings() { findings_.clear(); }

  const std::vector<std::string>* files =
      nullptr;  // the names of source files, of the module that runs

 private:
  static constexpr uint64_t kPageCells = 256;

  void Touch(Cell& cell, uint16_t bytes, bool shared, const Access& access, const Knowledge& known);
  void Check(const Access& earlier, const Access& access, bool shared, const Knowledge& known);
  Cell& GlobalCell(uint64_t number);
  bool IsWritten(uint64_t address) const;

  friend class World;  // looks through the cells at the end of a run
  Agent next_agent_ = 1;
  std::map<int, std::vector<std::pair<Agent, Clock>>> free_;                            // by GPU
  std::unordered_map<uint64_t, std::unique_ptr<std::array<Cell, kPageCells>>> global_;  // by page
  uint64_t last_page_ = 0;
  std::array<Cell, kPageCells>* last_cells_ = nullptr;
  std::map<uint64_t, uint64_t> written_;  // ranges of global memory, begin to end
  std::map<std::string, int64_t> findings_;
};

// "PTX line 12 (gemm.cu:34)".
std::string PlaceOf(const Instruction& instruction, const std::vector<std::string>* files);

}  // namespace ptx
