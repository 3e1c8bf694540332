// The generation the messages belong to, and the admission of headers to it.
#pragma once

#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <utility>

#include "daemon/transport/stats.h"
#include "daemon/transport/wire.h"

namespace agmm::transport {

struct World {
  uint64_t generation = 0;
  int self_node = -1;
  std::unique_ptr<wire::HeaderKey> key;  // used on the progress thread only
};

// Any thread.
class CurrentWorld {
 public:
  void Set(std::shared_ptr<const World> world) {
    std::lock_guard lock(mutex_);
    world_ = std::move(world);
  }
  // Null before the first Set.
  std::shared_ptr<const World> Get() const {
    std::lock_guard lock(mutex_);
    return world_;
  }
  uint64_t generation() const {
    std::lock_guard lock(mutex_);
    return world_ == nullptr ? 0 : world_->generation;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const World> world_;
};

// Copies the `length` bytes of a header to `header`. False, and counted, unless it is a sound
// header of this kind from another node of the current world.
template <typename Header>
bool Admit(const CurrentWorld& worlds, wire::Kind kind, const void* bytes, size_t length,
           Header* header, Stats* stats) {
  if (bytes == nullptr || length != sizeof(Header)) {
    stats->malformed.Add();
    return false;
  }
  std::memcpy(header, bytes, sizeof(Header));
  const std::shared_ptr<const World> world = worlds.Get();
  if (header->envelope.version != wire::kVersion || header->envelope.kind != kind) {
    stats->malformed.Add();
    return false;
  }
  if (world == nullptr || header->envelope.generation != world->generation) {
    stats->stale_generation.Add();
    return false;
  }
  if (!world->key->Holds(*header)) {
    stats->bad_check.Add();
    return false;
  }
  if (header->envelope.source_node < 0 || header->envelope.source_node == world->self_node ||
      header->bytes < 0) {
    stats->malformed.Add();
    return false;
  }
  return true;
}

}  // namespace agmm::transport
