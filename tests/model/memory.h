// Addresses, physical memory, access rights and pinned memory. Not thread-safe: used under the
// model's lock.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/model/races.h"

namespace model {

constexpr int64_t kGranularity = 2 << 20;

// A GPU's memory is one file, in which each allocation has its own part forever. Device addresses
// are a range that the process cannot touch; memory mapped there is also mapped at the same offset
// of a second range, for the engine.
class Memory {
 public:
  Memory();

  // cuMemCreate and cuMemRelease. OUT_OF_MEMORY has no effect.
  CUresult Create(int gpu, int64_t bytes, CUmemGenericAllocationHandle* handle);
  CUresult Release(CUmemGenericAllocationHandle handle);
  CUresult Reserve(int64_t bytes, int64_t alignment, CUdeviceptr* address);
  CUresult Free(CUdeviceptr address, int64_t bytes);
  CUresult Map(CUdeviceptr address, int64_t bytes, int64_t offset,
               CUmemGenericAllocationHandle handle);
  CUresult Unmap(CUdeviceptr address, int64_t bytes);
  // Grants `gpu` the right to read and write the mappings in the range, or revokes it.
  CUresult SetAccess(CUdeviceptr address, int64_t bytes, int gpu, bool allowed);

  // cuMemAlloc and cuMemFree: the same in one call, for the GPU alone.
  CUresult Allocate(int gpu, int64_t bytes, CUdeviceptr* address);
  CUresult FreeAllocation(CUdeviceptr address);

  CUresult AllocateHost(int gpu, int64_t bytes, void** address);
  CUresult FreeHost(void* address);
  // Frees the pinned memory of a context; returns the number of its pieces.
  size_t FreeHostOf(int gpu);

  bool IsDevice(uint64_t address) const { return address - base_ < kAddresses; }
  bool IsPinned(uint64_t address, int64_t bytes) const;
  // Returns the GPU whose memory is mapped at `address`, or -1.
  int Owner(CUdeviceptr address) const;
  // Returns the bytes of the mapping or pinned memory that begins at `address`, or 0.
  int64_t AllocationBytes(CUdeviceptr address) const;
  // Returns true if every byte of the range is mapped and, if a GPU is given, may be used by it.
  bool IsMapped(CUdeviceptr address, int64_t bytes, int gpu = -1) const;
  // Returns the engine's address for a device or pinned address.
  char* Engine(uint64_t address) const;
  // Returns the same bytes by physical address, for the race check; the range must be mapped or
  // pinned.
  std::vector<Access> Physical(const Access& access) const;

  int64_t used_bytes(int gpu) const { return used_[gpu]; }
  // Returns a line for each resource that is still held.
  std::vector<std::string> Held() const;

 private:
  static constexpr uint64_t kAddresses = 1ULL << 38;  // TSan has no room for more
  struct Block {                                      // of physical memory
    int gpu = 0;
    int64_t offset = 0, bytes = 0;
    bool held = true;
    int mappings = 0;
  };
  struct Mapping {
    int64_t bytes = 0, offset = 0;  // the offset within the GPU's file
    CUmemGenericAllocationHandle handle = 0;
    int gpu = 0;
    uint32_t rights = 0;
    bool allocation = false;  // by cuMemAlloc
  };
  struct Pinned {
    int64_t bytes = 0;
    int gpu = 0;
  };

  // Returns the mappings in the range if they cover all of it, else none.
  std::vector<std::map<uint64_t, Mapping>::iterator> Covering(CUdeviceptr address, int64_t bytes);
  void Drop(CUmemGenericAllocationHandle handle);

  uint64_t base_ = 0, engine_ = 0;  // the two ranges
  uint64_t next_ = 0;               // where the search for free addresses begins, from base_
  std::vector<int> files_;
  std::vector<int64_t> used_, ends_;
  CUmemGenericAllocationHandle last_handle_ = 0;
  std::map<CUmemGenericAllocationHandle, Block> blocks_;
  std::map<uint64_t, int64_t> reserved_;
  std::map<uint64_t, Mapping> mappings_;
  std::map<uint64_t, Pinned> pinned_;
};

}  // namespace model
