// Registers, operands and addresses, and the steps of the race check that all instructions share.
#include <cstdio>

#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

std::string Hex(uint64_t value) {
  char text[24];
  std::snprintf(text, sizeof text, "0x%llx", static_cast<unsigned long long>(value));
  return text;
}

uint32_t Part(uint32_t linear, const uint32_t* size, int dimension) {
  switch (dimension) {
    case 0: return linear % size[0];
    case 1: return linear / size[0] % size[1];
    default: return linear / size[0] / size[1];
  }
}

// The offset of the dynamic part of shared memory.
uint32_t DynamicBase(const Kernel& kernel) {
  return (kSharedBase + kernel.static_shared_bytes + 1023) / 1024 * 1024;
}

}  // namespace

const Kernel& KernelOf(const Warp& warp) { return *warp.cta->grid->launch.kernel; }

uint32_t PredicateOf(const Warp& warp, const Operand& operand) {
  const uint32_t value = operand.kind == Operand::kConstant ? (operand.bits ? kAllLanes : 0)
                                                            : warp.predicates[operand.index];
  return operand.negated ? ~value : value;
}

uint64_t SymbolAddress(const Warp& warp, const Operand& symbol) {
  const Symbol& named = KernelOf(warp).symbols[symbol.index];
  if (named.space != Space::kShared) return named.address + symbol.bits;
  const uint32_t base = named.dynamic ? DynamicBase(KernelOf(warp))
                                      : kSharedBase + static_cast<uint32_t>(named.address);
  return SharedAddress(warp.cta->rank, base + static_cast<uint32_t>(symbol.bits));
}

uint64_t AddressOf(const Warp& warp, const Operand& address, int lane) {
  const Operand& base = address.parts[0];
  switch (base.kind) {
    case Operand::kSymbol: return SymbolAddress(warp, base) + address.bits;
    case Operand::kConstant: return base.bits + address.bits;
    default: {
      const uint64_t value = warp.registers[base.index][lane] + address.bits;
      return Bytes(base.type) == 8 ? value : static_cast<uint32_t>(value);
    }
  }
}

uint64_t SpecialValue(const Warp& warp, Special special, int lane) {
  const Cta& cta = *warp.cta;
  const Launch& launch = cta.grid->launch;
  const int at = static_cast<int>(special);
  const auto in = [&](Special first) { return at - static_cast<int>(first); };
  const auto within = [&](Special first) { return in(first) >= 0 && in(first) < 3; };
  if (within(Special::kTidX)) return Part(warp.index * 32 + lane, launch.block, in(Special::kTidX));
  if (within(Special::kNtidX)) return launch.block[in(Special::kNtidX)];
  if (within(Special::kCtaidX)) return cta.id[in(Special::kCtaidX)];
  if (within(Special::kNctaidX)) return launch.grid[in(Special::kNctaidX)];
  if (within(Special::kClusterCtaidX))
    return Part(cta.rank, launch.cluster, in(Special::kClusterCtaidX));
  if (within(Special::kClusterNctaidX)) return launch.cluster[in(Special::kClusterNctaidX)];
  if (within(Special::kClusteridX)) {
    return cta.id[in(Special::kClusteridX)] / launch.cluster[in(Special::kClusteridX)];
  }
  if (within(Special::kNclusteridX)) {
    return launch.grid[in(Special::kNclusteridX)] / launch.cluster[in(Special::kNclusteridX)];
  }
  switch (special) {
    case Special::kLaneid: return lane;
    case Special::kWarpid: return warp.index;
    case Special::kNwarpid: return cta.warps.size();
    case Special::kClusterCtarank: return cta.rank;
    case Special::kClusterNctarank: return cta.grid->cluster_ctas();
    case Special::kIsExplicitCluster: return cta.grid->cluster_ctas() > 1;
    case Special::kSmid: return cta.id[0];
    case Special::kNsmid: return cta.grid->world->options.resident_ctas;
    // Time is the number of instructions so far.
    case Special::kGlobaltimer:
    case Special::kClock:
    case Special::kClock64: return cta.grid->world->counts.instructions;
    case Special::kDynamicSmemSize: return launch.dynamic_shared_bytes;
    case Special::kTotalSmemSize:
      return launch.dynamic_shared_bytes + launch.kernel->static_shared_bytes;
    case Special::kLanemaskEq: return 1u << lane;
    case Special::kLanemaskLt: return (1u << lane) - 1;
    case Special::kLanemaskLe: return ((1u << lane) - 1) | 1u << lane;
    case Special::kLanemaskGt: return ~(((1u << lane) - 1) | 1u << lane);
    case Special::kLanemaskGe: return ~((1u << lane) - 1);
    default: throw Stop("special register " + std::to_string(at) + " has no value in the model");
  }
}

void Fail(const Warp& warp, const Instruction& instruction, const std::string& text) {
  const Cta& cta = *warp.cta;
  const Module* const module = cta.grid->launch.module;
  throw Stop(KernelOf(warp).name + ", " + PlaceOf(instruction, module ? &module->files : nullptr) +
             " `" + instruction.text.substr(0, 120) + "`: GPU " +
             std::to_string(cta.grid->launch.gpu) + ", CTA " + std::to_string(cta.id[0]) + "," +
             std::to_string(cta.id[1]) + "," + std::to_string(cta.id[2]) + ", warp " +
             std::to_string(warp.index) + ": " + text);
}

SharedPlace FindShared(const Warp& warp, uint64_t address, uint64_t bytes,
                       const Instruction& instruction) {
  const uint32_t low = static_cast<uint32_t>(address), rank = low >> 24, offset = low & 0xffffff;
  Cluster& cluster = *warp.cta->cluster;
  if (address >> 32 && address >> 56 != kSharedWindow >> 56) {
    Fail(warp, instruction, Hex(address) + " is not an address of shared memory");
  }
  if (rank >= cluster.ctas.size() || offset < kSharedBase ||
      offset + bytes > cluster.ctas[rank]->shared.size()) {
    Fail(warp, instruction,
         "shared address " + Hex(low) + " with " + std::to_string(bytes) +
             " bytes lies outside of " +
             (rank >= cluster.ctas.size()
                  ? "the cluster of " + std::to_string(cluster.ctas.size()) + " CTAs"
                  : Hex(SharedAddress(rank, kSharedBase)) + " to " +
                        Hex(SharedAddress(
                            rank, static_cast<uint32_t>(cluster.ctas[rank]->shared.size())))));
  }
  Cta& cta = *cluster.ctas[rank];
  if (cta.done)
    Fail(warp, instruction,
         "uses shared memory of CTA " + std::to_string(rank) + " of the cluster, which has ended");
  return {&cta, offset};
}

std::byte* FindGlobal(const Warp& warp, uint64_t address, uint64_t bytes,
                      const Instruction& instruction) {
  const Launch& launch = warp.cta->grid->launch;
  std::byte* const found = warp.cta->grid->world->memory.Find(address, bytes, launch.gpu);
  if (found != nullptr) return found;
  for (const Module::Variable& variable : launch.module->variables) {
    const uint64_t begin = reinterpret_cast<uint64_t>(variable.data);
    if (address >= begin && address + bytes <= begin + variable.bytes)
      return reinterpret_cast<std::byte*>(address);
  }
  Fail(warp, instruction,
       "global address " + Hex(address) + " with " + std::to_string(bytes) +
           " bytes lies outside of the memory that this GPU may use");
}

Access AccessOf(const Warp& warp, const Instruction& instruction, uint32_t lanes, bool write) {
  return {.agent = warp.agent,
          .clock = warp.clock,
          .lanes = lanes,
          .write = write,
          .proxy = Proxy::kGeneric,
          .scope = Scope::kNone,
          .gpu = warp.cta->grid->launch.gpu,
          .cta = warp.cta->number,
          .cluster = warp.cta->cluster->number,
          .kernel = &KernelOf(warp),
          .where = &instruction};
}

Knowledge& KnownBy(Warp& warp, int lane) {
  for (Warp::Knowing& group : warp.knowing) {
    if (group.lanes >> lane & 1) return group.known;
  }
  throw Stop("a lane that does not exist knows nothing");
}

Knowledge KnownByAny(const Warp& warp, uint32_t lanes) {
  Knowledge known;
  for (const Warp::Knowing& group : warp.knowing) {
    if (group.lanes & lanes) known.Join(group.known);
  }
  return known;
}

void Acquire(Warp& warp, uint32_t lanes, const Knowledge& known) {
  lanes &= warp.launched;
  const size_t groups = warp.knowing.size();
  for (size_t i = 0; i < groups; ++i) {
    const uint32_t both = warp.knowing[i].lanes & lanes;
    if (both == 0) continue;
    if (both == warp.knowing[i].lanes) {
      warp.knowing[i].known.Join(known);
      continue;
    }
    warp.knowing[i].lanes &= ~both;
    warp.knowing.push_back({both, warp.knowing[i].known});
    warp.knowing.back().known.Join(known);
  }
}

Knowledge Publish(Warp& warp, uint32_t lanes) {
  Knowledge known = KnownByAny(warp, lanes);
  known.order.Learn(warp.agent, warp.clock,
                    (lanes & warp.launched) == warp.launched ? kAllLanes : lanes);
  return known;
}

void Meet(Warp& warp, uint32_t lanes) {
  lanes &= warp.launched;
  Knowledge known = Publish(warp, lanes);
  for (Warp::Knowing& group : warp.knowing) group.lanes &= ~lanes;
  std::erase_if(warp.knowing, [](const Warp::Knowing& group) { return group.lanes == 0; });
  warp.knowing.push_back({lanes, std::move(known)});
}

}  // namespace ptx
