// The state of a run: GPUs, grids, clusters, CTAs and warps, and what instructions use of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "tests/model/ptx/program/program.h"
#include "tests/model/ptx/state/races.h"

namespace ptx {

struct Cta;
struct Cluster;
class Grid;
class World;

// Lanes at one place of the program.
struct Fragment {
  uint32_t at = 0;  // an index in Kernel::instructions
  uint32_t lanes = 0;
  bool waiting = false;  // for other lanes, to converge
  uint64_t stalled = 0;  // World::events at a poll without success: other lanes go first
};

// The reason why a warp cannot go on, and its end.
struct Wait {
  std::string text;  // for the report of a deadlock: "barrier 3"
  std::function<bool()>
      over;  // may join knowledge into the warp when it becomes true; asked again until then
  bool active() const { return over != nullptr; }
};

// The bulk stores of a thread between two commits, or its cp.async.
struct AsyncGroup {
  int reads = 0, writes = 0;  // parts that have not ended
  Knowledge read, all;  // of the ended ones: that the source was read; that everything has happened
};
struct ThreadGroups {
  std::shared_ptr<AsyncGroup> open;                   // not committed; null: empty
  std::deque<std::shared_ptr<AsyncGroup>> committed;  // the oldest first
};

// A wgmma.mma_async that its warp has issued, and that has not been carried out.
struct WgmmaIssue {
  const Instruction* instruction = nullptr;
  uint64_t a_descriptor = 0, b_descriptor = 0;  // a_descriptor: 0 if A is in registers
  bool scale_d = true;
  Clock clock = 0;  // of the warp's wgmma agent
};

// The use of a register by wgmma.mma_async.
struct WgmmaUse {
  const Instruction* instruction = nullptr;  // the last one; null: none
  uint32_t fence = 0;                        // Warp::wgmma_fence at that time
  bool accumulator = false;                  // else a fragment of A
};

struct Warp {
  Cta* cta = nullptr;
  uint32_t index = 0;  // in the CTA
  std::vector<Lanes> registers;
  std::vector<uint32_t> predicates;  // a bit for each lane
  uint32_t carry = 0;                // of add.cc and its kin, a bit for each lane
  std::vector<Fragment> fragments;
  uint32_t live = 0;      // lanes that have not ended
  uint32_t launched = 0;  // lanes that exist
  bool done = false;
  // It polls again once World::events is larger. A warp that polls in vain again and again lets
  // more events pass each time.
  uint64_t stalled = 0;
  uint32_t patience = 0;    // events that it lets pass next
  uint32_t since_poll = 0;  // instructions since the last poll without success
  Wait wait;

  // The race check. Lanes that have acquired different things know different things; usually there
  // is one group.
  struct Knowing {
    uint32_t lanes;
    Knowledge known;
  };
  Agent agent = 0;
  Clock clock = 1;  // grows by one with each instruction
  std::vector<Knowing> knowing;
  // Fences and relaxed accesses of a lane, by scope: what its release fences have covered, and what
  // its relaxed reads saw.
  struct Fences {
    Knowledge fenced[5], seen[5];
    bool has_fenced[5] = {};
  };
  std::map<int, Fences> fences;

  ThreadGroups bulk[32];         // cp.async.bulk, by lane
  ThreadGroups copies[32];       // cp.async, by lane
  std::map<int, Clocks> copied;  // by lane: its cp.async that it has waited for

  std::deque<WgmmaIssue> wgmma;
  std::deque<Clock> wgmma_groups;  // committed, and no wait_group has waited for them: the clocks
                                   // of their last wgmma
  Agent wgmma_agent = 0;
  Clock wgmma_clock = 0;     // issued so far
  uint32_t wgmma_fence = 1;  // the number of wgmma.fence so far, plus one
  // By register; empty until the first wgmma: wgmma_fence at the last ordinary use, wgmma in flight
  // that use it, and the last of all.
  std::vector<uint32_t> register_fence;
  std::vector<uint16_t> register_in_flight;
  std::vector<WgmmaUse> register_wgmma;
  std::deque<std::pair<const Instruction*, Clock>>
      landing;  // wgmma in flight: no wait_group has waited for them

  // The last strong loads, by address: a loop may poll several words.
  struct Poll {
    uint64_t value, events, releases;  // the World's at the load
  };
  std::map<uint64_t, Poll> polls;

  uint64_t cluster_phases = 0;  // of the cluster barrier that it has arrived at
  int registers_limit = 0;      // a thread's; setmaxnreg changes it
};

// bar.sync and its kin.
struct NamedBarrier {
  uint32_t threads = 0;   // that have arrived
  uint32_t expected = 0;  // 0: all of the CTA that have not ended
  uint64_t phase = 0;
  Knowledge arriving, passed[2];  // passed: by the parity of the phase
};

struct MbarrierState {
  bool live = false;
  Knowledge arriving, passed[2];  // passed: by the parity of the phase
  Access init;
};

struct Cta {
  uint64_t number = 0;  // in the world, from 1
  Cluster* cluster = nullptr;
  Grid* grid = nullptr;
  uint32_t rank = 0;  // in the cluster
  uint32_t id[3] = {};
  std::vector<std::byte> shared;  // addresses below kSharedBase are never valid
  std::vector<Cell> cells;        // of `shared`, by 16 bytes
  std::unordered_map<uint32_t, MbarrierState> mbarriers;  // by offset in `shared`
  std::vector<std::vector<std::byte>> local;              // by thread; empty without .local
  std::vector<Warp> warps;
  NamedBarrier barriers[16];
  uint32_t live_warps = 0;
  bool done = false;
  int pending_reads = 0;      // bulk stores that read its shared memory
  int pending_writes = 0;     // asynchronous writes into its shared memory
  int64_t register_pool = 0;  // registers that setmaxnreg.dec has given back
};

struct Cluster {
  uint64_t number = 0;  // in the world, from 1
  std::vector<std::unique_ptr<Cta>> ctas;
  uint32_t live = 0;   // CTAs
  uint64_t phase = 0;  // of the cluster barrier
  Knowledge arriving, passed;
};

// An operation that goes on beside the warps, piece by piece.
class AsyncOperation {
 public:
  explicit AsyncOperation(Cta& cta) : cta(&cta) {}
  virtual ~AsyncOperation() = default;
  // Carries out one piece, drawn by the world's seed. Returns true if it was the last one.
  virtual bool Step(World& world) = 0;
  Cta* const cta;  // the one that issued it
};

// The memory that global addresses stand for.
class GlobalMemory {
 public:
  virtual ~GlobalMemory() = default;
  // Returns where the bytes lie, or null if the GPU may not access them or they do not exist.
  virtual std::byte* Find(uint64_t address, uint64_t bytes, int gpu) = 0;
  // The addresses that a multicast address stands for, on all GPUs of its object; empty if it is
  // none.
  virtual std::vector<uint64_t> Multicast(uint64_t /*address*/, uint64_t /*bytes*/) { return {}; }
};

// Memory of the process itself: an address is a pointer.
class HostMemory : public GlobalMemory {
 public:
  // Adds bytes that belong to a GPU.
  void Add(const void* begin, uint64_t bytes, int gpu);
  void AddMulticast(uint64_t address, uint64_t bytes, std::vector<uint64_t> targets);
  std::byte* Find(uint64_t address, uint64_t bytes, int gpu) override;
  std::vector<uint64_t> Multicast(uint64_t address, uint64_t bytes) override;
  struct Buffer {
    uint64_t bytes;
    int gpu;
  };
  const std::map<uint64_t, Buffer>& buffers() const { return buffers_; }

 private:
  struct Team {
    uint64_t bytes;
    std::vector<uint64_t> targets;
  };
  std::map<uint64_t, Buffer> buffers_;  // by address
  std::map<uint64_t, Team> teams_;
};

struct Launch {
  const Module* module = nullptr;
  Kernel* kernel = nullptr;
  uint32_t grid[3] = {1, 1, 1}, block[3] = {32, 1, 1}, cluster[3] = {1, 1, 1};
  uint32_t dynamic_shared_bytes = 0;
  std::vector<std::byte> parameters;  // Kernel::parameter_bytes
  int gpu = 0;
  Knowledge known;  // of what has happened before the launch
};

// The bytes of a kernel's parameters, from pointers to the arguments as cuLaunchKernel takes them.
std::vector<std::byte> PackParameters(const Kernel& kernel, const void* const* arguments);

class Grid {
 public:
  World* world = nullptr;
  Launch launch;
  std::vector<std::byte> parameters;
  std::vector<std::unique_ptr<Cluster>> clusters;  // that are resident
  std::vector<std::unique_ptr<AsyncOperation>> pending;
  uint32_t next_cluster = 0;  // that has not started
  bool done = false;
  Knowledge at_end;  // what its warps knew when they ended

  uint32_t threads() const { return launch.block[0] * launch.block[1] * launch.block[2]; }
  uint32_t cluster_ctas() const {
    return launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  }
};

enum class Mode : uint8_t {
  kRandom,  // warps and asynchronous pieces by the seed
  kLate,    // asynchronous operations run once no warp can go on
  kEager,   // asynchronous operations run at once
};

struct RunOptions {
  uint64_t seed = 1;
  Mode mode = Mode::kRandom;
  int starved_gpu = -1,
      starved_cta = -1;     // this CTA (by %ctaid.x) goes on only when no other can
  int resident_ctas = 132;  // of each GPU
  int quantum = 64;         // the most instructions of a warp in a row
  int64_t instruction_limit = 1'000'000'000;  // of all warps; then the run stops; 0: none
};

struct Counts {
  int64_t instructions = 0;  // of warps
  int64_t async_pieces = 0, bulk_bytes = 0, wgmma_flops = 0;
  // From and to global memory, by bulk copies. The bytes of a multicast count once, and those out
  // of bounds count.
  int64_t bulk_loaded_bytes = 0, bulk_stored_bytes = 0;
};

// All GPUs, and the engine that decides who goes on.
class World {
 public:
  World(GlobalMemory& memory, RunOptions options);

  GlobalMemory& memory;
  RunOptions options;
  Races races;
  Counts counts;
  uint64_t events = 1;  // grows with everything that may let a waiting warp go on

  // Starts a grid. Throws Stop if the launch does not fit its kernel.
  Grid& Start(Launch launch);
  // Runs a quantum of some warp or asynchronous operation. Returns false if nothing can go on:
  // everything has ended, or waits for something outside.
  bool Step();
  bool done() const;
  // Runs until all grids have ended. Throws Stop for a deadlock, with every waiter.
  void Run();
  // Accesses of other GPUs to the memory of a GPU must be known to it when its kernel ends. Call
  // after Run, for memory that the kernels' own GPUs use next.
  void CheckEnd(const HostMemory& buffers);
  // Removes the grids that have ended, or one of them.
  void RemoveEnded(const Grid* only = nullptr);
  // Ends all grids of a GPU at once, and forgets their accesses.
  void Lose(int gpu);
  // One line for each warp that waits.
  std::string Waiters() const;
  const std::vector<std::unique_ptr<Grid>>& grids() const { return grids_; }

  // Adds an asynchronous operation; with Mode::kEager it runs at once.
  void Add(std::unique_ptr<AsyncOperation> operation);
  // Returns an agent and a clock for an operation that `known` is behind: the agent's earlier
  // operations are known.
  std::pair<Agent, Clock> AgentFor(Warp& warp, const Knowledge& known);
  // Returns a number in [0, n), drawn by the seed.
  uint32_t Random(uint32_t n);

  // A release at an address (of the host), for acquires of it.
  struct Release {
    Scope scope;
    int gpu;
    uint64_t cluster, cta;  // numbers
    Agent agent;
    Knowledge known;
  };
  std::unordered_map<uint64_t, std::vector<Release>> released;
  uint64_t releases = 0;  // grows with each of them
  // The last change of each tensor map in global memory, by its address (of the host). The agent
  // stands for the change: fence.proxy.tensormap teaches it.
  std::unordered_map<uint64_t, Access> map_changes;

 private:
  void StartCluster(Grid& grid);
  void StartWarp(Cta& cta, uint32_t index);
  // Takes what is kept by the addresses of a cluster's CTAs and warps.
  void Retire(Cluster& cluster);
  void Refill();
  bool Ready(Warp& warp);
  void RunWarp(Warp& warp, int quantum);
  void EndWarp(Warp& warp);
  bool StepWarp(bool starved);
  bool StepAsync(bool starved);
  bool IsStarved(const Cta& cta) const;

  std::vector<std::unique_ptr<Grid>> grids_;
  std::vector<Warp*> warps_;  // of resident clusters
  uint64_t last_number_ = 0;  // of CTAs and clusters
  bool refill_ = true;        // something has ended, or started
  int idle_ = 0;              // rounds in which no warp could go on
  uint64_t idle_events_ = 0;
  std::unordered_map<const Warp*, std::vector<std::pair<Agent, Clock>>>
      agents_;  // of bulk operations
  uint64_t random_;
};

// ---- Registers and operands

// The lanes of a register or constant.
inline const Lanes& Source(const Warp& warp, const Operand& operand);
inline Lanes& Target(Warp& warp, const Operand& operand) { return warp.registers[operand.index]; }
const Kernel& KernelOf(const Warp& warp);
inline const Lanes& Source(const Warp& warp, const Operand& operand) {
  return operand.kind == Operand::kConstant ? KernelOf(warp).constants[operand.index]
                                            : warp.registers[operand.index];
}
// The value of a lane as T, from its low bits.
template <typename T>
T As(uint64_t bits) {
  T value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}
template <typename T>
uint64_t Bits(T value) {
  uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}
// The lanes in which a predicate (or the constant 0 or 1) holds.
uint32_t PredicateOf(const Warp& warp, const Operand& operand);
inline void SetPredicate(Warp& warp, uint32_t index, uint32_t value, uint32_t mask) {
  warp.predicates[index] = (warp.predicates[index] & ~mask) | (value & mask);
}
// Calls function(lane) for each lane of the mask.
template <typename Function>
void ForLanes(uint32_t mask, Function function) {
  if (mask == kAllLanes) {
    for (int lane = 0; lane < 32; ++lane) function(lane);
  } else {
    for (; mask; mask &= mask - 1) function(__builtin_ctz(mask));
  }
}
inline int FirstLane(uint32_t mask) { return __builtin_ctz(mask); }

// The address of a symbol operand, as its space has it; of shared memory: with the CTA's rank (see
// below).
uint64_t SymbolAddress(const Warp& warp, const Operand& symbol);
// The address that [base+offset] has in a lane.
uint64_t AddressOf(const Warp& warp, const Operand& address, int lane);
uint64_t SpecialValue(const Warp& warp, Special special, int lane);

// ---- Shared memory
//
// A shared address has the CTA's rank in the cluster in bits 24 to 31, and the offset below: a
// CTA's own addresses are valid in the window of its cluster. A generic address of shared memory
// has kSharedWindow above that.
constexpr uint64_t kSharedWindow = uint64_t{0x7f} << 56, kParamWindow = uint64_t{0x7e} << 56,
                   kLocalWindow = uint64_t{0x7d} << 56;
constexpr uint32_t kSharedBase = 1024;  // the offset of the static part
inline uint32_t SharedAddress(uint32_t rank, uint32_t offset) { return rank << 24 | offset; }

struct SharedPlace {
  Cta* cta;
  uint32_t offset;
  std::byte* data() const { return cta->shared.data() + offset; }
};
// Throws Stop if the bytes lie outside of the shared memory of a CTA of the cluster, or if that CTA
// has ended.
SharedPlace FindShared(const Warp& warp, uint64_t address, uint64_t bytes,
                       const Instruction& instruction);
std::byte* FindGlobal(const Warp& warp, uint64_t address, uint64_t bytes,
                      const Instruction& instruction);

// ---- The race check, as instructions use it

// Throws Stop with the kernel, the place of the instruction, the GPU, CTA and warp, and the text.
[[noreturn]] void Fail(const Warp& warp, const Instruction& instruction, const std::string& text);
// A generic access of this lane.
Access AccessOf(const Warp& warp, const Instruction& instruction, uint32_t lanes, bool write);
// The knowledge of a lane.
Knowledge& KnownBy(Warp& warp, int lane);
// The knowledge of any of the lanes, for an operation that a warp issues as one.
Knowledge KnownByAny(const Warp& warp, uint32_t lanes);
// The lanes know this, too, from now on.
void Acquire(Warp& warp, uint32_t lanes, const Knowledge& known);
// The knowledge of the lanes and their accesses so far: a release passes it on.
Knowledge Publish(Warp& warp, uint32_t lanes);
// The lanes have met (bar.warp.sync, or a barrier of more threads): each knows what any of them
// knows and has done.
void Meet(Warp& warp, uint32_t lanes);

}  // namespace ptx
