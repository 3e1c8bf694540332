#include "kernels/cpu/pack_cache.h"

#include <iterator>
#include <utility>

namespace agmm {
namespace {

const std::byte* End(const PackCache::Key& key) {
  return key.address + (key.k - 1) * key.pitch_bytes + key.n * SizeOf(key.dtype);
}

}  // namespace

PackCache::Lookup PackCache::Find(const Key& key, uint64_t version) const {
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.version != version) return {};
  return {it->second.packed, it->second.packed == nullptr};
}

void PackCache::Claim(const Key& key, uint64_t version) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto current = it++;
    const bool overlaps = current->first.address < End(key) && key.address < End(current->first);
    if (overlaps && current->second.version != version) Erase(current);
  }
  entries_[key] = {version, nullptr};
}

void PackCache::Fill(const Key& key, uint64_t version, std::shared_ptr<const PackedB> packed) {
  // A newer version may have claimed the entry in the meantime.
  const auto it = entries_.find(key);
  if (it == entries_.end() || it->second.version != version || it->second.packed != nullptr) return;
  bytes_ += packed->bytes;
  it->second.packed = std::move(packed);
}

void PackCache::Abandon(const Key& key, uint64_t version) {
  const auto it = entries_.find(key);
  if (it != entries_.end() && it->second.version == version && it->second.packed == nullptr)
    entries_.erase(it);
}

void PackCache::Forget(const std::byte* begin, const std::byte* end) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto current = it++;
    if (current->first.address < end && begin < End(current->first)) Erase(current);
  }
}

void PackCache::Erase(std::map<Key, Entry>::iterator it) {
  if (it->second.packed != nullptr) bytes_ -= it->second.packed->bytes;
  entries_.erase(it);
}

}  // namespace agmm
