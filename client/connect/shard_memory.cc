#include "client/connect/shard_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <string>
#include <utility>

#include "kernels/base/large_pages.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr int64_t kPageBytes = 4096;
constexpr int64_t kMaxPieces = 512;  // of a shard, because Linux limits the mappings of a process

// A file of ones: read as an element of any type, they are NaN.
class Ones {
 public:
  static Ones& Get() {
    static Ones* const ones = new Ones;
    return *ones;
  }
  // Returns the file with at least `bytes`, or -1.
  int File(int64_t bytes) {
    std::lock_guard lock(mutex_);
    if (file_ < 0) file_ = memfd_create("agmm-detached", MFD_CLOEXEC);
    static constexpr int64_t kWriteBytes = 64 << 10;
    static const std::string* const ones = new std::string(kWriteBytes, '\xff');
    while (file_ >= 0 && bytes_ < bytes) {
      const ssize_t written = pwrite(file_, ones->data(), kWriteBytes, bytes_);
      if (written <= 0) return -1;
      bytes_ += written;
    }
    return file_;
  }

 private:
  std::mutex mutex_;
  int file_ = -1;      // with mutex_
  int64_t bytes_ = 0;  // with mutex_
};

// Replaces what is mapped by private NaNs, whose pages take memory only once they are written; or,
// without memory for them, by pages without access. Returns false if the old mapping is still
// there.
bool ReplaceByNan(std::byte* data, int64_t bytes) {
  const int64_t piece =
      RoundUp(std::max(std::min(bytes, kLargePageBytes), bytes / kMaxPieces), kPageBytes);
  const int ones = Ones::Get().File(piece);
  constexpr int kFlags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE;
  bool replaced = ones >= 0;
  for (int64_t at = 0; at < bytes && replaced; at += piece) {
    replaced = mmap(data + at, std::min(piece, bytes - at), PROT_READ | PROT_WRITE, kFlags, ones,
                    0) != MAP_FAILED;
  }
  return replaced || mmap(data, bytes, PROT_NONE, kFlags | MAP_ANONYMOUS, -1, 0) != MAP_FAILED ||
         munmap(data, bytes) == 0;
}

}  // namespace

absl::StatusOr<ShardMemory> ShardMemory::Map(int file, int64_t offset_bytes, int64_t bytes,
                                             bool writable) {
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  // A child forked between the two calls inherits no access.
  void* const data = MapShared(bytes, PROT_NONE, file, offset_bytes);
  if (data == MAP_FAILED) return absl::ErrnoToStatus(errno, "mmap");
  ShardMemory memory(data, bytes);
  if (madvise(data, bytes, MADV_DONTFORK) != 0) return absl::ErrnoToStatus(errno, "madvise");
  if (mprotect(data, bytes, access) != 0) return absl::ErrnoToStatus(errno, "mprotect");
  return memory;
}

ShardMemory::ShardMemory(ShardMemory&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      bytes_(other.bytes_),
      aside_(std::exchange(other.aside_, nullptr)) {}

ShardMemory::~ShardMemory() {
  if (aside_ != nullptr) munmap(aside_, bytes_);
  if (data_ != nullptr) munmap(data_, bytes_);
}

bool ShardMemory::Hide() {
  void* const aside = ReserveLike(data_, bytes_);
  if (aside == MAP_FAILED) return false;
  // Without MREMAP_DONTUNMAP, another thread's mmap could take the address before the NaNs do.
  constexpr int kFlags = MREMAP_MAYMOVE | MREMAP_FIXED | MREMAP_DONTUNMAP;
  if (mremap(data_, bytes_, bytes_, kFlags, aside) == MAP_FAILED) {
    munmap(aside, bytes_);
    return false;
  }
  aside_ = aside;
  return ReplaceByNan(data_, bytes_);
}

bool ShardMemory::Show() {
  if (mremap(aside_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED)
    return false;
  aside_ = nullptr;
  return true;
}

bool ShardMemory::Drop() {
  if (aside_ != nullptr && munmap(std::exchange(aside_, nullptr), bytes_) != 0) return false;
  return ReplaceByNan(data_, bytes_);
}

}  // namespace agmm
