// Barriers of warps, CTAs and clusters, and fences.
#include "tests/model/ptx/instructions/barrier.h"

#include <algorithm>

#include "tests/model/ptx/program/decode.h"

namespace ptx {
namespace {

Outcome WarpSync(Warp& warp, const Instruction&, uint32_t mask) {
  Meet(warp, mask);
  return Outcome::kNext;
}

// bar.sync, bar.arrive, barrier.cta.sync, ...: operands are the barrier and the number of threads,
// or all threads.
constexpr int kSync = 0, kArrive = 1;
Outcome CtaBarrier(Warp& warp, const Instruction& instruction, uint32_t mask) {
  Cta& cta = *warp.cta;
  const uint32_t id = static_cast<uint32_t>(Source(warp, instruction.operands[0])[FirstLane(mask)]);
  if (id > 15)
    Fail(warp, instruction, "the barrier is " + std::to_string(id) + "; there are 0 to 15");
  const uint32_t threads =
      instruction.operands.size() > 1
          ? static_cast<uint32_t>(Source(warp, instruction.operands[1])[FirstLane(mask)])
          : 0;
  if (threads % 32) Fail(warp, instruction, "the number of threads is not a multiple of 32");
  NamedBarrier& barrier = cta.barriers[id];
  if (barrier.threads > 0 && barrier.expected != threads) {
    Fail(warp, instruction,
         "barrier " + std::to_string(id) + " expects " + std::to_string(barrier.expected) +
             " threads, because of others that have arrived, and this warp says " +
             std::to_string(threads));
  }
  barrier.expected = threads;
  barrier.threads += 32;
  // A sync orders the warp's own lanes, too.
  if (instruction.variant == kSync) Meet(warp, mask);
  barrier.arriving.Join(Publish(warp, mask));
  if (threads > 0 && barrier.threads > threads) {
    Fail(warp, instruction,
         "barrier " + std::to_string(id) + " has " + std::to_string(barrier.threads) +
             " threads of " + std::to_string(threads));
  }
  const uint64_t phase = barrier.phase;
  PassCtaBarriers(cta);
  if (instruction.variant == kArrive) return Outcome::kNext;
  warp.wait = {"barrier " + std::to_string(id), [&warp, &barrier, phase, mask] {
                 if (barrier.phase == phase) return false;
                 Acquire(warp, mask, barrier.passed[phase % 2]);
                 return true;
               }};
  return Outcome::kBlocked;
}

Outcome ClusterArrive(Warp& warp, const Instruction& instruction, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_phases > cluster.phase)
    Fail(warp, instruction, "the warp arrives twice at one phase of the cluster barrier");
  if (instruction.releases) {
    cluster.arriving.Join(Publish(warp, mask));
  } else {
    // .relaxed passes on the inits of mbarriers that a fence has covered.
    cluster.arriving.inits.Join(KnownByAny(warp, mask).inits);
  }
  warp.cluster_phases = cluster.phase + 1;
  PassClusterBarrier(cluster);
  return Outcome::kNext;
}

Outcome ClusterWait(Warp& warp, const Instruction& instruction, uint32_t mask) {
  Cluster& cluster = *warp.cta->cluster;
  if (warp.cluster_phases == 0)
    Fail(warp, instruction, "the warp waits at a cluster barrier that it has not arrived at");
  warp.wait = {"the cluster barrier", [&warp, &cluster, mask] {
                 if (cluster.phase < warp.cluster_phases) return false;
                 Acquire(warp, mask, cluster.passed);
                 return true;
               }};
  return Outcome::kBlocked;
}

Execute DecodeCluster(Instruction& instruction, Modifiers& modifiers) {
  instruction.converges = modifiers.Take("aligned");
  if (modifiers.Take("arrive")) {
    instruction.releases = !modifiers.Take("relaxed");
    modifiers.Take("release");
    return ClusterArrive;
  }
  modifiers.Take("acquire");
  return modifiers.Take("wait") ? ClusterWait : nullptr;
}

Execute DecodeBarrier(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("warp")) {
    if (!modifiers.Take("sync")) return nullptr;
    instruction.converges = true;
    instruction.members = 0;
    return WarpSync;
  }
  if (modifiers.Take("cluster")) return DecodeCluster(instruction, modifiers);
  modifiers.Take("cta");
  modifiers.Take("aligned");
  instruction.variant = modifiers.TakeOneOf({"sync", "arrive"});
  if (instruction.variant < 0 || instruction.operands.empty()) return nullptr;
  instruction.converges = true;
  return CtaBarrier;
}

// fence.proxy.async: `flags` are the state spaces that it covers.
constexpr uint32_t kGlobalSpace = 1, kSharedSpace = 2;
Outcome FenceAsync(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const Policy& policy = warp.cta->grid->world->races.policy;
  const uint32_t lanes = (mask & warp.launched) == warp.launched ? kAllLanes : mask;
  Acquire(warp, mask, Knowledge());  // these lanes may know more than others from now on
  for (Warp::Knowing& group : warp.knowing) {
    if (!(group.lanes & mask)) continue;
    Knowledge& known = group.known;
    if (instruction.flags & kSharedSpace) {
      if (!policy.fence_own_only) known.async_shared.Join(known.order);
      // The cp.async of a thread are its own accesses.
      ForLanes(group.lanes & mask, [&](int lane) {
        const auto copied = warp.copied.find(lane);
        if (copied != warp.copied.end()) known.async_shared.Join(copied->second);
      });
      known.async_shared.Learn(warp.agent, warp.clock, lanes);
    }
    if (instruction.flags & kGlobalSpace) {
      known.async_global.Join(known.order);
      known.async_global.Learn(warp.agent, warp.clock, lanes);
    }
  }
  return Outcome::kNext;
}

Outcome FenceInits(Warp& warp, const Instruction&, uint32_t mask) {
  Acquire(warp, mask, Knowledge());
  for (Warp::Knowing& group : warp.knowing) {
    if (!(group.lanes & mask)) continue;
    group.known.inits.Join(group.known.order);
    group.known.inits.Learn(warp.agent, warp.clock, group.lanes & mask);
  }
  return Outcome::kNext;
}

// fence.acq_rel, fence.sc, fence.acquire, fence.release and membar. A fence of a scope and a
// relaxed access of another one meet at the narrower scope.
Outcome Fence(Warp& warp, const Instruction& instruction, uint32_t mask) {
  const int scope = static_cast<int>(instruction.scope);
  ForLanes(mask, [&](int lane) {
    Warp::Fences& fences = warp.fences[lane];
    if (instruction.acquires) {
      Knowledge seen;
      for (int narrower = 1; narrower <= scope; ++narrower) seen.Join(fences.seen[narrower]);
      Acquire(warp, 1u << lane, seen);
    }
    if (!instruction.releases) return;
    const Knowledge known = Publish(warp, 1u << lane);
    for (int narrower = 1; narrower <= scope; ++narrower) {
      fences.fenced[narrower] = known;
      fences.has_fenced[narrower] = true;
    }
  });
  return Outcome::kNext;
}

// The model has one memory: what an alias writes is seen at once.
Outcome FenceAlias(Warp&, const Instruction&, uint32_t) { return Outcome::kNext; }

// fence.proxy.tensormap: the other half of tensormap.cp_fenceproxy; an acquire of what it released.
Outcome FenceTensorMap(Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (!instruction.acquires) return Outcome::kNext;
  ForLanes(mask, [&](int lane) {
    const uint64_t address = AddressOf(warp, instruction.operands[0], lane);
    AcquireAt(warp, lane, reinterpret_cast<uint64_t>(FindGlobal(warp, address, 128, instruction)),
              instruction.scope);
  });
  return Outcome::kNext;
}

Execute DecodeProxyFence(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("alias")) return FenceAlias;
  if (modifiers.Take("tensormap::generic")) {
    instruction.acquires = modifiers.Take("acquire");
    instruction.releases = modifiers.Take("release");
    instruction.scope = modifiers.TakeScope();
    return instruction.acquires != instruction.releases ? FenceTensorMap : nullptr;
  }
  if (!modifiers.Take("async"))
    return nullptr;  // also .async::generic.acquire.sync_restrict, which is not in the model
  switch (modifiers.TakeSpace()) {
    case Space::kGeneric: instruction.flags = kGlobalSpace | kSharedSpace; break;
    case Space::kGlobal: instruction.flags = kGlobalSpace; break;
    case Space::kShared: instruction.flags = kSharedSpace; break;
    default: return nullptr;
  }
  return FenceAsync;
}

Execute DecodeFence(Instruction& instruction, Modifiers& modifiers) {
  if (modifiers.Take("proxy")) return DecodeProxyFence(instruction, modifiers);
  if (modifiers.Take("mbarrier_init")) {
    return modifiers.Take("release") && modifiers.Take("cluster") ? FenceInits : nullptr;
  }
  const int order = modifiers.TakeOneOf({"acq_rel", "sc", "acquire", "release"});
  if (order < 0) return nullptr;
  instruction.acquires = order != 3;
  instruction.releases = order != 2;
  instruction.scope = modifiers.TakeScope();
  return instruction.scope == Scope::kNone ? nullptr : Fence;
}

Execute DecodeMembar(Instruction& instruction, Modifiers& modifiers) {
  const int level = modifiers.TakeOneOf({"cta", "gl", "sys"});
  if (level < 0) return nullptr;
  instruction.scope = level == 0 ? Scope::kCta : level == 1 ? Scope::kGpu : Scope::kSystem;
  instruction.acquires = instruction.releases = true;
  return Fence;
}

}  // namespace

void PassCtaBarriers(Cta& cta) {
  for (NamedBarrier& barrier : cta.barriers) {
    const uint32_t expected = barrier.expected ? barrier.expected : cta.live_warps * 32;
    if (barrier.threads == 0 || barrier.threads < expected) continue;
    barrier.threads = 0;
    barrier.expected = 0;
    barrier.passed[barrier.phase % 2] = barrier.arriving;
    ++barrier.phase;
    ++cta.grid->world->events;
  }
}

void PassClusterBarrier(Cluster& cluster) {
  bool arrived = false;
  for (const auto& cta : cluster.ctas) {
    for (const Warp& warp : cta->warps) {
      if (warp.cluster_phases > cluster.phase)
        arrived = true;
      else if (!warp.done)
        return;
    }
  }
  if (!arrived) return;
  ++cluster.phase;
  cluster.passed = cluster.arriving;
  ++cluster.ctas.front()->grid->world->events;
}

const DecoderTable& BarrierDecoders() {
  static const auto& table = *new DecoderTable{
      {"bar", DecodeBarrier},
      {"barrier", DecodeBarrier},
      {"fence", DecodeFence},
      {"membar", DecodeMembar},
  };
  return table;
}

}  // namespace ptx
