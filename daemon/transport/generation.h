// The generation of the world that messages belong to, and the check of headers against it.
#pragma once

#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "daemon/transport/types.h"
#include "daemon/transport/wire.h"

namespace agmm::transport {

struct Generation {
  uint64_t number = 0;
  int self_node = -1;
  std::unique_ptr<wire::HeaderKey> key;  // used on the progress thread only
};

// The messages to and from a node, or all nodes, of `generation` and older ones.
inline constexpr int kAllNodes = -1;
struct Scope {
  int node = kAllNodes;
  uint64_t generation = UINT64_MAX;
  bool Contains(int other_node, uint64_t other_generation) const {
    return (node == kAllNodes || node == other_node) && other_generation <= generation;
  }
};

// Thread-safe.
class CurrentGeneration {
 public:
  void Set(std::shared_ptr<const Generation> generation) {
    std::lock_guard lock(mutex_);
    generation_ = std::move(generation);
  }
  // Null before the first Set.
  std::shared_ptr<const Generation> Get() const {
    std::lock_guard lock(mutex_);
    return generation_;
  }
  // 0 before the first Set.
  uint64_t number() const {
    std::lock_guard lock(mutex_);
    return generation_ == nullptr ? 0 : generation_->number;
  }

 private:
  mutable std::mutex mutex_;
  std::shared_ptr<const Generation> generation_;
};

class UcxWorker;

// State that the parts of a transport share; outlives them.
struct Shared {
  UcxWorker* const worker;
  const std::function<std::string(int node)> describe;
  CurrentGeneration current;
  TransportCounters counters;
};

// Copies the `length` bytes of a header to `header`. Returns false and counts the reason unless it
// is a valid header of this kind from another node in the current generation.
template <typename Header>
bool Admit(const CurrentGeneration& current, wire::Kind kind, const void* bytes, size_t length,
           Header* header, TransportCounters* counters) {
  const auto refuse = [](TransportCount& reason) {
    reason.Add();
    return false;
  };
  if (bytes == nullptr || length != sizeof(Header)) return refuse(counters->malformed);
  std::memcpy(header, bytes, sizeof(Header));
  const std::shared_ptr<const Generation> generation = current.Get();
  if (header->envelope.version != wire::kVersion || header->envelope.kind != kind)
    return refuse(counters->malformed);
  if (generation == nullptr || header->envelope.generation != generation->number)
    return refuse(counters->stale_generation);
  if (!generation->key->Holds(*header)) return refuse(counters->bad_check);
  if (header->envelope.source_node < 0 || header->envelope.source_node == generation->self_node ||
      header->bytes < 0)
    return refuse(counters->malformed);
  return true;
}

}  // namespace agmm::transport
