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
// Linux limits the mappings of a process, to 65,530 by default, so that a shard has few pieces of
// NaNs. They cover 512 MiB of it.
constexpr int64_t kMaxPieces = 16;
constexpr int64_t kMaxPieceBytes = int64_t{32} << 20;

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

bool MapOver(std::byte* data, int64_t bytes, int file) {
  const int flags = MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE | (file < 0 ? MAP_ANONYMOUS : 0);
  return mmap(data, bytes, PROT_READ | PROT_WRITE, flags, file, 0) != MAP_FAILED;
}

// Replaces the mapping by private NaNs, and zeros behind them in a very large one. Their pages take
// memory once they are written. Returns false on failure; a part may be replaced then.
bool ReplaceByNan(std::byte* data, int64_t bytes) {
  const int64_t piece =
      std::clamp(RoundUp(bytes / kMaxPieces, kPageBytes),
                 std::min(RoundUp(bytes, kPageBytes), kLargePageBytes), kMaxPieceBytes);
  const int ones = Ones::Get().File(piece);
  if (ones < 0) return false;
  int64_t at = 0;
  for (int i = 0; i < kMaxPieces && at < bytes; ++i, at += piece)
    if (!MapOver(data + at, std::min(piece, bytes - at), ones)) return false;
  return at >= bytes || MapOver(data + at, bytes - at, -1);
}

// As ReplaceByNan or, if Linux refuses that, without access. The addresses stay reserved. Returns
// false if a part of the old mapping can still be accessed.
bool Retire(std::byte* data, int64_t bytes) {
  return ReplaceByNan(data, bytes) || mprotect(data, bytes, PROT_NONE) == 0;
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
  return Retire(data_, bytes_);
}

bool ShardMemory::Show() {
  if (mremap(aside_, bytes_, bytes_, MREMAP_MAYMOVE | MREMAP_FIXED, data_) == MAP_FAILED)
    return false;
  aside_ = nullptr;
  return true;
}

bool ShardMemory::Drop() {
  if (aside_ != nullptr) return munmap(std::exchange(aside_, nullptr), bytes_) == 0;
  if (ReplaceByNan(data_, bytes_)) return true;
  // The shard stays mapped, so that the daemon keeps its memory.
  mprotect(data_, bytes_, PROT_NONE);
  return false;
}

}  // namespace agmm
