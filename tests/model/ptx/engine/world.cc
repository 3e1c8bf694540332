// The engine: which warp or asynchronous operation goes on, by the seed.
#include <algorithm>
#include <map>
#include <tuple>

#include "tests/model/ptx/instructions/barrier.h"
#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

// Rounds in which all polling warps try again without any event, before the world counts as stuck.
// A poll that fails twice is not yet a wait: the program may go on without success.
constexpr int kIdleRounds = 64;

std::string NameOf(const Warp& warp) {
  const Cta& cta = *warp.cta;
  return "GPU " + std::to_string(cta.grid->launch.gpu) + " CTA " + std::to_string(cta.id[0]) + "," +
         std::to_string(cta.id[1]) + "," + std::to_string(cta.id[2]) + " warp " +
         std::to_string(warp.index);
}

}  // namespace

std::vector<std::byte> PackParameters(const Kernel& kernel, const void* const* arguments) {
  std::vector<std::byte> bytes(kernel.parameter_bytes);
  for (size_t i = 0; i < kernel.parameters.size(); ++i) {
    std::memcpy(bytes.data() + kernel.parameters[i].address, arguments[i],
                kernel.parameters[i].bytes);
  }
  return bytes;
}

World::World(GlobalMemory& memory, RunOptions options)
    : memory(memory), options(options), random_(options.seed * 0x9e3779b97f4a7c15 + 1) {}

uint32_t World::Random(uint32_t n) {
  random_ ^= random_ << 13;
  random_ ^= random_ >> 7;
  random_ ^= random_ << 17;
  return static_cast<uint32_t>((random_ >> 20) % n);
}

Grid& World::Start(Launch launch) {
  const Kernel& kernel = *launch.kernel;
  const auto refuse = [&](const std::string& why) {
    throw Stop("launch of " + kernel.name + ": " + why);
  };
  const uint32_t threads = launch.block[0] * launch.block[1] * launch.block[2];
  if (threads == 0 || threads > 1024)
    refuse("a CTA of " + std::to_string(threads) + " threads; 1 to 1024 are possible");
  if (kernel.max_threads && threads > kernel.max_threads) {
    refuse("a CTA of " + std::to_string(threads) + " threads; .maxntid allows " +
           std::to_string(kernel.max_threads));
  }
  if (kernel.required_threads && threads != kernel.required_threads) {
    refuse("a CTA of " + std::to_string(threads) + " threads; .reqntid is " +
           std::to_string(kernel.required_threads));
  }
  for (int i = 0; i < 3; ++i) {
    if (kernel.cluster[i] && kernel.cluster[i] != launch.cluster[i])
      refuse("the cluster differs from .reqnctapercluster");
    if (launch.grid[i] == 0 || launch.grid[i] % launch.cluster[i])
      refuse("the grid is not a multiple of the cluster");
  }
  const uint32_t ctas = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  if (ctas > 16) refuse("a cluster of " + std::to_string(ctas) + " CTAs; 16 are possible");
  if (static_cast<int>(ctas) > options.resident_ctas)
    refuse("a cluster is larger than what is resident");
  const uint64_t shared = uint64_t{launch.dynamic_shared_bytes} + kernel.static_shared_bytes;
  if (shared > 227 * 1024)
    refuse(std::to_string(shared) + " bytes of shared memory; a CTA has 232448");
  if (launch.parameters.size() != kernel.parameter_bytes) {
    refuse(std::to_string(launch.parameters.size()) + " bytes of parameters; it has " +
           std::to_string(kernel.parameter_bytes));
  }
  auto grid = std::make_unique<Grid>();
  grid->world = this;
  grid->parameters = launch.parameters;
  grid->launch = std::move(launch);
  if (grid->launch.module) races.files = &grid->launch.module->files;
  grids_.push_back(std::move(grid));
  refill_ = true;
  return *grids_.back();
}

void World::StartCluster(Grid& grid) {
  const Launch& launch = grid.launch;
  const Kernel& kernel = *launch.kernel;
  auto cluster = std::make_unique<Cluster>();
  cluster->number = ++last_number_;
  cluster->live = grid.cluster_ctas();
  uint32_t clusters[3], at[3];
  for (int i = 0; i < 3; ++i) clusters[i] = launch.grid[i] / launch.cluster[i];
  at[0] = grid.next_cluster % clusters[0];
  at[1] = grid.next_cluster / clusters[0] % clusters[1];
  at[2] = grid.next_cluster / clusters[0] / clusters[1];
  ++grid.next_cluster;
  const uint32_t warps = (grid.threads() + 31) / 32;
  for (uint32_t rank = 0; rank < grid.cluster_ctas(); ++rank) {
    auto cta = std::make_unique<Cta>();
    cta->number = ++last_number_;
    cta->cluster = cluster.get();
    cta->grid = &grid;
    cta->rank = rank;
    const uint32_t in[3] = {rank % launch.cluster[0], rank / launch.cluster[0] % launch.cluster[1],
                            rank / launch.cluster[0] / launch.cluster[1]};
    for (int i = 0; i < 3; ++i) cta->id[i] = at[i] * launch.cluster[i] + in[i];
    const uint32_t dynamic = (kSharedBase + kernel.static_shared_bytes + 1023) / 1024 * 1024;
    cta->shared.assign(dynamic + launch.dynamic_shared_bytes, std::byte{0xcd});
    cta->cells.resize(cta->shared.size() / 16 + 1);
    if (kernel.local_bytes)
      cta->local.assign(warps * 32, std::vector<std::byte>(kernel.local_bytes, std::byte{0xcd}));
    cta->live_warps = warps;
    cta->warps = std::vector<Warp>(warps);
    for (uint32_t index = 0; index < warps; ++index) StartWarp(*cta, index);
    // The warps of a warpgroup count their wgmma alike.
    for (uint32_t index = 0; index < warps; ++index) {
      Warp& first = cta->warps[index / 4 * 4];
      first.wgmma_clock = std::max(first.wgmma_clock, cta->warps[index].wgmma_clock);
    }
    for (uint32_t index = 0; index < warps; ++index) {
      cta->warps[index].wgmma_clock = cta->warps[index / 4 * 4].wgmma_clock;
    }
    cluster->ctas.push_back(std::move(cta));
  }
  grid.clusters.push_back(std::move(cluster));
}

void World::StartWarp(Cta& cta, uint32_t index) {
  const Launch& launch = cta.grid->launch;
  const Kernel& kernel = *launch.kernel;
  const uint32_t threads = cta.grid->threads(), rest = threads - index * 32;
  Warp& warp = cta.warps[index];
  warp.cta = &cta;
  warp.index = index;
  Lanes garbage;
  garbage.fill(0xeeeeeeee);
  warp.registers.assign(kernel.register_count, garbage);
  warp.predicates.assign(kernel.predicate_count, 0);
  warp.launched = warp.live = rest >= 32 ? kAllLanes : (1u << rest) - 1;
  warp.fragments = {{0, warp.live}};
  std::tie(warp.agent, warp.clock) = races.TakeAgent(launch.known, launch.gpu);
  std::tie(warp.wgmma_agent, warp.wgmma_clock) = races.TakeAgent(launch.known, launch.gpu);
  warp.knowing = {{warp.launched, launch.known}};
  // As ptxas does without a limit: the register file of an SM shared out, at most 255 each.
  const uint32_t share = std::min<uint32_t>(65536 / ((threads + 127) / 128 * 128) / 8 * 8, 255);
  warp.registers_limit = static_cast<int>(kernel.max_registers ? kernel.max_registers : share);
}

void World::Refill() {
  for (const auto& grid : grids_) {
    if (grid->done) continue;
    std::erase_if(grid->clusters, [&](const auto& cluster) {
      const bool ended =
          cluster->live == 0 &&
          std::none_of(grid->pending.begin(), grid->pending.end(), [&](const auto& operation) {
            return operation->cta->cluster == cluster.get();
          });
      if (ended) Retire(*cluster);
      return ended;
    });
  }
  std::map<int, int> resident;  // CTAs by GPU
  for (const auto& grid : grids_) {
    for (const auto& cluster : grid->clusters)
      resident[grid->launch.gpu] += static_cast<int>(cluster->ctas.size());
  }
  for (const auto& grid : grids_) {
    const Launch& launch = grid->launch;
    const uint32_t total = launch.grid[0] * launch.grid[1] * launch.grid[2] / grid->cluster_ctas();
    int& ctas = resident[launch.gpu];
    while (grid->next_cluster < total &&
           ctas + static_cast<int>(grid->cluster_ctas()) <= options.resident_ctas) {
      StartCluster(*grid);
      ctas += static_cast<int>(grid->cluster_ctas());
      ++events;
    }
    grid->done = grid->next_cluster == total && grid->clusters.empty() && grid->pending.empty();
  }
  warps_.clear();
  for (const auto& grid : grids_) {
    for (const auto& cluster : grid->clusters) {
      for (const auto& cta : cluster->ctas) {
        for (Warp& warp : cta->warps) {
          if (!warp.done) warps_.push_back(&warp);
        }
      }
    }
  }
  refill_ = false;
}

bool World::IsStarved(const Cta& cta) const {
  return cta.grid->launch.gpu == options.starved_gpu &&
         static_cast<int>(cta.id[0]) == options.starved_cta;
}

bool World::Ready(Warp& warp) {
  if (!warp.wait.active()) return true;
  if (!warp.wait.over()) return false;
  warp.wait = {};
  return true;
}

bool World::StepWarp(bool starved) {
  if (warps_.empty()) return false;
  const bool any_starves = options.starved_gpu >= 0;
  const size_t count = warps_.size(), first = Random(static_cast<uint32_t>(count));
  for (size_t i = 0; i < count; ++i) {
    Warp& warp = *warps_[(first + i) % count];
    if (warp.done || warp.stalled >= events || (any_starves && IsStarved(*warp.cta) != starved) ||
        !Ready(warp))
      continue;
    RunWarp(warp, 1 + static_cast<int>(Random(options.quantum)));
    return true;
  }
  return false;
}

bool World::StepAsync(bool starved) {
  std::vector<std::pair<Grid*, size_t>> found;
  const bool any_starves = options.starved_gpu >= 0;
  for (const auto& grid : grids_) {
    for (size_t i = 0; i < grid->pending.size(); ++i) {
      if (any_starves && IsStarved(*grid->pending[i]->cta) != starved) continue;
      found.emplace_back(grid.get(), i);
    }
  }
  if (found.empty()) return false;
  const auto [grid, index] = found[Random(static_cast<uint32_t>(found.size()))];
  for (uint32_t pieces = 1 + Random(32); pieces > 0; --pieces) {
    ++counts.async_pieces;
    if (!grid->pending[index]->Step(*this)) continue;
    if (grid->pending[index]->cta->done) refill_ = true;
    grid->pending[index] = std::move(grid->pending.back());
    grid->pending.pop_back();
    if (grid->pending.empty()) refill_ = true;
    break;
  }
  return true;
}

void World::Add(std::unique_ptr<AsyncOperation> operation) {
  if (options.mode == Mode::kEager) {
    while (!operation->Step(*this)) ++counts.async_pieces;
    return;
  }
  operation->cta->grid->pending.push_back(std::move(operation));
}

bool World::Step() {
  if (refill_) Refill();
  if (options.instruction_limit > 0 && counts.instructions > options.instruction_limit) {
    throw Stop("more than " + std::to_string(options.instruction_limit) + " instructions:\n" +
               Waiters());
  }
  const bool async_first = options.mode == Mode::kRandom && Random(4) == 0;
  if (async_first && StepAsync(false)) return true;
  if (StepWarp(false) || StepAsync(false)) return true;
  if (options.starved_gpu >= 0 && (StepWarp(true) || StepAsync(true))) return true;
  if (idle_events_ != events) {
    idle_ = 0;
    idle_events_ = events;
  }
  if (++idle_ > kIdleRounds) return false;
  bool any = false;
  for (Warp* const warp : warps_) {
    if (warp->done || warp->wait.active()) continue;
    warp->stalled = 0;
    for (Fragment& fragment : warp->fragments) fragment.stalled = 0;
    any = true;
  }
  return any;
}

bool World::done() const {
  return std::all_of(grids_.begin(), grids_.end(), [](const auto& grid) { return grid->done; });
}

void World::Run() {
  Refill();
  while (!done()) {
    if (Step() || refill_ || done()) continue;
    throw Stop("deadlock: nothing can go on, and these wait:\n" + Waiters());
  }
}

std::string World::Waiters() const {
  std::string text;
  for (const Warp* const warp : warps_) {
    if (warp->done) continue;
    const Launch& launch = warp->cta->grid->launch;
    for (const Fragment& fragment : warp->fragments) {
      // A blocked warp stands behind the instruction that blocks it.
      const size_t at = fragment.at > 0 && warp->wait.active() ? fragment.at - 1 : fragment.at;
      const Instruction& instruction = launch.kernel->instructions[at];
      text += "  " + NameOf(*warp) + ": " +
              PlaceOf(instruction, launch.module ? &launch.module->files : nullptr) + " `" +
              instruction.text.substr(0, 90) + "`";
      if (warp->wait.active()) text += ", waits for " + warp->wait.text;
      if (fragment.waiting) text += ", for its other lanes";
      text += "\n";
    }
  }
  for (const auto& grid : grids_) {
    const Launch& launch = grid->launch;
    const uint32_t total = launch.grid[0] * launch.grid[1] * launch.grid[2] / grid->cluster_ctas();
    if (grid->next_cluster < total) {
      text += "  GPU " + std::to_string(launch.gpu) + ": " +
              std::to_string(total - grid->next_cluster) + " clusters of " + launch.kernel->name +
              " have no room (" + std::to_string(options.resident_ctas) + " CTAs are resident)\n";
    }
  }
  return text;
}

std::pair<Agent, Clock> World::AgentFor(Warp& warp, const Knowledge& known) {
  auto& agents = agents_[&warp];
  for (auto& [agent, clock] : agents) {
    if (known.order.Knows(agent, clock)) return {agent, ++clock};
  }
  agents.push_back(races.TakeAgent(known, warp.cta->grid->launch.gpu));
  return agents.back();
}

void World::CheckEnd(const HostMemory& memory_of_gpus) {
  std::map<int, Knowledge> at_end;
  for (const auto& grid : grids_) at_end[grid->launch.gpu].Join(grid->at_end);
  for (const auto& [page, cells] : races.global_) {
    for (uint64_t i = 0; i < cells->size(); ++i) {
      const uint64_t address = (page * cells->size() + i) * 16;
      auto buffer = memory_of_gpus.buffers().upper_bound(address + 15);
      if (buffer == memory_of_gpus.buffers().begin()) continue;
      --buffer;
      if (address >= buffer->first + buffer->second.bytes) continue;
      for (const Cell::Past& past : (*cells)[i].past) {
        const Access& access = past.access;
        if (access.where == nullptr || access.gpu == buffer->second.gpu ||
            !at_end.contains(buffer->second.gpu) ||
            at_end[buffer->second.gpu].order.Knows(access.agent, access.clock, access.lanes)) {
          continue;
        }
        races.Add(std::string("the kernel of a GPU ends, and does not know that a ") +
                      (access.write ? "write" : "read") + " by another GPU has happened",
                  access, nullptr, "");
      }
    }
  }
}

void World::Retire(Cluster& cluster) {
  for (const auto& cta : cluster.ctas) {
    const int gpu = cta->grid->launch.gpu;
    for (const Warp& warp : cta->warps) {
      races.ReturnAgent(warp.agent, warp.clock, gpu);
      races.ReturnAgent(warp.wgmma_agent, warp.wgmma_clock, gpu);
      const auto agents = agents_.find(&warp);
      if (agents == agents_.end()) continue;
      for (const auto& [agent, clock] : agents->second) races.ReturnAgent(agent, clock, gpu);
      agents_.erase(agents);
    }
    // Releases at addresses in its shared memory: the next CTA may have the same ones.
    const auto begin = reinterpret_cast<uint64_t>(cta->shared.data());
    std::erase_if(released,
                  [&](const auto& entry) { return entry.first - begin < cta->shared.size(); });
  }
}

void World::RemoveEnded(const Grid* only) {
  std::erase_if(grids_, [&](const auto& grid) {
    return grid->done && (only == nullptr || grid.get() == only);
  });
  refill_ = true;
}

void World::Lose(int gpu) {
  for (const auto& grid : grids_) {
    if (grid->launch.gpu != gpu) continue;
    grid->pending.clear();
    for (const auto& cluster : grid->clusters) Retire(*cluster);
    grid->clusters.clear();
    const Launch& launch = grid->launch;
    grid->next_cluster = launch.grid[0] * launch.grid[1] * launch.grid[2] / grid->cluster_ctas();
    grid->done = true;
  }
  races.ForgetGpu(gpu);
  refill_ = true;
  ++events;
}

}  // namespace ptx
