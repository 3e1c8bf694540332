#include "tests/model/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

#include "tests/model/options.h"

namespace model {
namespace {

int64_t RoundUp(int64_t bytes) { return (bytes + kGranularity - 1) / kGranularity * kGranularity; }

void* Reservation(uint64_t bytes) {
  void* range = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (range == MAP_FAILED) Fail("no range of addresses; raise ulimit -v");
  return range;
}

}  // namespace

Memory::Memory() {
  base_ = reinterpret_cast<uint64_t>(Reservation(kAddresses + kGranularity));
  base_ = RoundUp(base_);
  engine_ = reinterpret_cast<uint64_t>(Reservation(kAddresses));
  const int gpus = TheOptions().gpus;
  used_.resize(gpus);
  ends_.resize(gpus);
  for (int gpu = 0; gpu < gpus; ++gpu) {
    files_.push_back(memfd_create("model GPU", MFD_CLOEXEC));
    if (files_.back() < 0) Fail("no file for a GPU's memory; raise ulimit -n");
  }
}

CUresult Memory::Create(int gpu, int64_t bytes, CUmemGenericAllocationHandle* handle) {
  if (bytes <= 0 || bytes % kGranularity) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > TheOptions().memory - used_[gpu]) return CUDA_ERROR_OUT_OF_MEMORY;
  const int64_t offset = ends_[gpu];
  if (ftruncate(files_[gpu], offset + bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  ends_[gpu] += bytes;
  used_[gpu] += bytes;
  *handle = ++last_handle_;
  blocks_[*handle] = {.gpu = gpu, .offset = offset, .bytes = bytes};
  return CUDA_SUCCESS;
}

CUresult Memory::Release(CUmemGenericAllocationHandle handle) {
  const auto found = blocks_.find(handle);
  if (found == blocks_.end() || !found->second.held) return CUDA_ERROR_INVALID_VALUE;
  found->second.held = false;
  Drop(handle);
  return CUDA_SUCCESS;
}

void Memory::Drop(CUmemGenericAllocationHandle handle) {
  const Block& physical = blocks_.at(handle);
  if (physical.held || physical.mappings) return;
  used_[physical.gpu] -= physical.bytes;
  fallocate(files_[physical.gpu], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, physical.offset,
            physical.bytes);
  blocks_.erase(handle);
}

CUresult Memory::Reserve(int64_t bytes, int64_t alignment, CUdeviceptr* address) {
  if (bytes <= 0 || bytes % kGranularity || (alignment & (alignment - 1))) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const auto step = static_cast<uint64_t>(std::max(alignment, kGranularity));
  // One granule stays free after each range, so that accesses past its end are detected. Freed
  // addresses are reused last, so that their use is detected, too.
  const uint64_t length = bytes + kGranularity;
  for (int round = 0; round < 2; ++round, next_ = 0) {
    for (uint64_t begin = base_ + next_;;) {
      begin = (begin + step - 1) / step * step;
      if (begin + length > base_ + kAddresses) break;
      const auto after = reserved_.lower_bound(begin + length);
      const auto before = after == reserved_.begin() ? after : std::prev(after);
      const uint64_t taken =
          after == reserved_.begin() ? 0 : before->first + before->second + kGranularity;
      if (taken <= begin) {
        reserved_[begin] = bytes;
        next_ = begin + length - base_;
        *address = begin;
        return CUDA_SUCCESS;
      }
      begin = taken;
    }
  }
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult Memory::Free(CUdeviceptr address, int64_t bytes) {
  const auto found = reserved_.find(address);
  if (found == reserved_.end() || found->second != bytes) return CUDA_ERROR_INVALID_VALUE;
  const auto mapping = mappings_.lower_bound(address);
  if (mapping != mappings_.end() && mapping->first < address + bytes) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  reserved_.erase(found);
  return CUDA_SUCCESS;
}

CUresult Memory::Map(CUdeviceptr address, int64_t bytes, int64_t offset,
                     CUmemGenericAllocationHandle handle) {
  const auto physical = blocks_.find(handle);
  auto range = reserved_.upper_bound(address);
  if (physical == blocks_.end() || !physical->second.held || range == reserved_.begin()) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  --range;
  const auto next = mappings_.lower_bound(address);
  const bool taken =
      (next != mappings_.end() && next->first < address + bytes) || Owner(address) >= 0;
  if (bytes <= 0 || bytes % kGranularity || address % kGranularity || offset % kGranularity ||
      address + bytes > range->first + range->second || offset + bytes > physical->second.bytes ||
      taken) {
    return CUDA_ERROR_INVALID_VALUE;
  }
  const int gpu = physical->second.gpu;
  const int64_t place = physical->second.offset + offset;
  if (mmap(Engine(address), bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, files_[gpu],
           place) == MAP_FAILED) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  mappings_[address] = {.bytes = bytes, .offset = place, .handle = handle, .gpu = gpu};
  ++physical->second.mappings;
  return CUDA_SUCCESS;
}

std::vector<std::map<uint64_t, Memory::Mapping>::iterator> Memory::Covering(CUdeviceptr address,
                                                                            int64_t bytes) {
  std::vector<std::map<uint64_t, Mapping>::iterator> covering;
  for (uint64_t at = address; at < address + bytes;) {
    const auto mapping = mappings_.find(at);
    if (mapping == mappings_.end()) return {};
    covering.push_back(mapping);
    at += mapping->second.bytes;
    if (at > address + bytes) return {};
  }
  return covering;
}

CUresult Memory::Unmap(CUdeviceptr address, int64_t bytes) {
  const auto covering = Covering(address, bytes);
  if (covering.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& mapping : covering) {
    mmap(Engine(mapping->first), mapping->second.bytes, PROT_NONE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    --blocks_.at(mapping->second.handle).mappings;
    Drop(mapping->second.handle);
    mappings_.erase(mapping);
  }
  return CUDA_SUCCESS;
}

CUresult Memory::SetAccess(CUdeviceptr address, int64_t bytes, int gpu, bool allowed) {
  const auto covering = Covering(address, bytes);
  if (covering.empty()) return CUDA_ERROR_INVALID_VALUE;
  for (const auto& mapping : covering) {
    const uint32_t bit = 1u << gpu;
    mapping->second.rights = allowed ? mapping->second.rights | bit : mapping->second.rights & ~bit;
  }
  return CUDA_SUCCESS;
}

CUresult Memory::Allocate(int gpu, int64_t bytes, CUdeviceptr* address) {
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  CUmemGenericAllocationHandle handle = 0;
  const CUresult created = Create(gpu, RoundUp(bytes), &handle);
  if (created != CUDA_SUCCESS) return created;
  CUresult result = Reserve(RoundUp(bytes), 0, address);
  if (result == CUDA_SUCCESS) result = Map(*address, RoundUp(bytes), 0, handle);
  Release(handle);
  if (result != CUDA_SUCCESS) return result;
  mappings_.at(*address).allocation = true;
  return SetAccess(*address, RoundUp(bytes), gpu, true);
}

CUresult Memory::FreeAllocation(CUdeviceptr address) {
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || !found->second.allocation) return CUDA_ERROR_INVALID_VALUE;
  const int64_t bytes = found->second.bytes;
  Unmap(address, bytes);
  return Free(address, bytes);
}

CUresult Memory::AllocateHost(int gpu, int64_t bytes, void** address) {
  if (bytes <= 0) return CUDA_ERROR_INVALID_VALUE;
  // Allocates whole pages, like the driver.
  const int64_t page = sysconf(_SC_PAGESIZE);
  void* memory = mmap(nullptr, (bytes + page - 1) / page * page, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return CUDA_ERROR_OUT_OF_MEMORY;
  pinned_[reinterpret_cast<uint64_t>(memory)] = {bytes, gpu};
  *address = memory;
  return CUDA_SUCCESS;
}

CUresult Memory::FreeHost(void* address) {
  const auto found = pinned_.find(reinterpret_cast<uint64_t>(address));
  if (found == pinned_.end()) return CUDA_ERROR_INVALID_VALUE;
  munmap(address, found->second.bytes);
  pinned_.erase(found);
  return CUDA_SUCCESS;
}

size_t Memory::FreeHostOf(int gpu) {
  return std::erase_if(pinned_, [&](const auto& pinned) {
    if (pinned.second.gpu != gpu) return false;
    munmap(reinterpret_cast<void*>(pinned.first), pinned.second.bytes);
    return true;
  });
}

bool Memory::IsPinned(uint64_t address, int64_t bytes) const {
  auto found = pinned_.upper_bound(address);
  if (found == pinned_.begin()) return false;
  --found;
  return address + bytes <= found->first + found->second.bytes;
}

int Memory::Owner(CUdeviceptr address) const {
  auto found = mappings_.upper_bound(address);
  if (found == mappings_.begin()) return -1;
  --found;
  return address < found->first + found->second.bytes ? found->second.gpu : -1;
}

int64_t Memory::AllocationBytes(CUdeviceptr address) const {
  const auto found = mappings_.find(address);
  if (found != mappings_.end()) return found->second.bytes;
  const auto pinned = pinned_.find(address);
  return pinned != pinned_.end() ? pinned->second.bytes : 0;
}

bool Memory::IsMapped(CUdeviceptr address, int64_t bytes, int gpu) const {
  for (uint64_t at = address; at < address + bytes;) {
    auto found = mappings_.upper_bound(at);
    if (found == mappings_.begin()) return false;
    --found;
    if (at >= found->first + found->second.bytes) return false;
    if (gpu >= 0 && !(found->second.rights >> gpu & 1)) return false;
    at = found->first + found->second.bytes;
  }
  return true;
}

char* Memory::Engine(uint64_t address) const {
  return reinterpret_cast<char*>(IsDevice(address) ? address - base_ + engine_ : address);
}

std::vector<Access> Memory::Physical(const Access& access) const {
  if (!IsDevice(access.bytes.address)) return {access};
  const Rectangle& bytes = access.bytes;
  auto mapping = std::prev(mappings_.upper_bound(bytes.address));
  const auto place = [&](uint64_t address) {
    return (uint64_t(mapping->second.gpu + 1) << 48) + mapping->second.offset +
           (address - mapping->first);
  };
  if (bytes.end() <= mapping->first + mapping->second.bytes) {
    Access whole = access;
    whole.bytes.address = place(bytes.address);
    return {whole};
  }
  // Across several mappings: piece by piece.
  std::vector<Access> pieces;
  for (int64_t row = 0; row < bytes.rows; ++row) {
    const uint64_t begin = bytes.address + row * bytes.pitch_bytes, end = begin + bytes.row_bytes;
    for (uint64_t at = begin; at < end;) {
      mapping = std::prev(mappings_.upper_bound(at));
      const uint64_t to = std::min<uint64_t>(end, mapping->first + mapping->second.bytes);
      const int64_t length = to - at;
      pieces.push_back({{place(at), 1, length, length}, access.writes});
      at = to;
    }
  }
  return pieces;
}

std::vector<std::string> Memory::Held() const {
  std::vector<std::string> held;
  for (const auto& [handle, physical] : blocks_) {
    if (!physical.held) continue;
    held.push_back(
        Format("%lld bytes of GPU %d by cuMemCreate", (long long)physical.bytes, physical.gpu));
  }
  for (const auto& [address, mapping] : mappings_) {
    held.push_back(Format("%lld bytes of GPU %d %s at %#llx", (long long)mapping.bytes, mapping.gpu,
                          mapping.allocation ? "by cuMemAlloc" : "mapped",
                          (unsigned long long)address));
  }
  for (const auto& [address, bytes] : reserved_) {
    const auto mapping = mappings_.find(address);
    if (mapping != mappings_.end() && mapping->second.allocation) continue;
    held.push_back(
        Format("%lld bytes of addresses at %#llx", (long long)bytes, (unsigned long long)address));
  }
  for (const auto& [address, pinned] : pinned_) {
    held.push_back(
        Format("%lld pinned bytes of GPU %d's context", (long long)pinned.bytes, pinned.gpu));
  }
  return held;
}

}  // namespace model
