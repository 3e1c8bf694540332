// Releases and acquires at addresses, with their scopes.
#include <algorithm>

#include "tests/model/ptx/instructions/barrier.h"

namespace ptx {
namespace {

void Put(Warp& warp, uint64_t address, Scope scope, const Knowledge& known) {
  const Cta& cta = *warp.cta;
  auto& releases = cta.grid->world->released[address];
  ++cta.grid->world->releases;
  for (World::Release& release : releases) {
    if (release.agent == warp.agent && release.scope == scope) {
      release.known.Join(known);
      return;
    }
  }
  releases.push_back(
      {scope, cta.grid->launch.gpu, cta.cluster->number, cta.number, warp.agent, known});
}

// A release reaches an acquire if the scope of each includes the thread of the other.
bool Reaches(const World::Release& release, const Cta& cta, Scope scope) {
  switch (std::min(release.scope, scope)) {
    case Scope::kSystem: return true;
    case Scope::kGpu: return release.gpu == cta.grid->launch.gpu;
    case Scope::kCluster: return release.cluster == cta.cluster->number;
    case Scope::kCta: return release.cta == cta.number;
    case Scope::kNone: return false;
  }
  return false;
}

void Get(Warp& warp, uint64_t address, Scope scope, Knowledge& known) {
  const auto& released = warp.cta->grid->world->released;
  const auto releases = released.find(address);
  if (releases == released.end()) return;
  for (const World::Release& release : releases->second) {
    if (Reaches(release, *warp.cta, scope)) known.Join(release.known);
  }
}

}  // namespace

void ReleaseAt(Warp& warp, int lane, uint64_t address, Scope scope) {
  Put(warp, address, scope, Publish(warp, 1u << lane));
}

void AcquireAt(Warp& warp, int lane, uint64_t address, Scope scope) {
  Knowledge known;
  Get(warp, address, scope, known);
  Acquire(warp, 1u << lane, known);
}

void RelaxedWriteAt(Warp& warp, int lane, uint64_t address, Scope scope) {
  const auto fences = warp.fences.find(lane);
  if (fences == warp.fences.end()) return;
  for (int narrower = 1; narrower <= static_cast<int>(scope); ++narrower) {
    if (fences->second.has_fenced[narrower]) {
      Put(warp, address, static_cast<Scope>(narrower), fences->second.fenced[narrower]);
    }
  }
}

void RelaxedReadAt(Warp& warp, int lane, uint64_t address, Scope scope) {
  const auto& released = warp.cta->grid->world->released;
  if (!released.contains(address)) return;
  Warp::Fences& fences = warp.fences[lane];
  for (int narrower = 1; narrower <= static_cast<int>(scope); ++narrower) {
    Get(warp, address, static_cast<Scope>(narrower), fences.seen[narrower]);
  }
}

void OverwriteAt(Warp& warp, uint64_t address) {
  auto& released = warp.cta->grid->world->released;
  const auto releases = released.find(address);
  if (releases == released.end()) return;
  std::erase_if(releases->second,
                [&](const World::Release& release) { return release.agent != warp.agent; });
}

}  // namespace ptx
