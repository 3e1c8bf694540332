#include "tests/model/ptx/state/state.h"

namespace ptx {

void HostMemory::Add(const void* begin, uint64_t bytes, int gpu) {
  buffers_[reinterpret_cast<uint64_t>(begin)] = {bytes, gpu};
}

void HostMemory::AddMulticast(uint64_t address, uint64_t bytes, std::vector<uint64_t> targets) {
  teams_[address] = {bytes, std::move(targets)};
}

std::byte* HostMemory::Find(uint64_t address, uint64_t bytes, int /*gpu*/) {
  auto buffer = buffers_.upper_bound(address);
  if (buffer == buffers_.begin()) return nullptr;
  --buffer;
  if (address + bytes > buffer->first + buffer->second.bytes) return nullptr;
  return reinterpret_cast<std::byte*>(address);
}

std::vector<uint64_t> HostMemory::Multicast(uint64_t address, uint64_t bytes) {
  auto team = teams_.upper_bound(address);
  if (team == teams_.begin()) return {};
  --team;
  if (address + bytes > team->first + team->second.bytes) return {};
  std::vector<uint64_t> targets;
  for (const uint64_t target : team->second.targets)
    targets.push_back(target + address - team->first);
  return targets;
}

}  // namespace ptx
