#include "kernels/base/random.h"

#include <sys/random.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"

namespace agmm {

std::string RandomBytes(int count) {
  std::string bytes(count, '\0');
  size_t filled = 0;
  while (filled < bytes.size()) {
    const ssize_t got = getrandom(bytes.data() + filled, bytes.size() - filled, 0);
    // Without random names a stale message could be mistaken for a new one.
    if (got < 0 && errno != EINTR) std::abort();
    if (got > 0) filled += static_cast<size_t>(got);
  }
  return bytes;
}

std::string RandomHex(int count) { return ToHex(RandomBytes(count)); }

uint64_t RandomId() {
  uint64_t id = 0;
  while (id == 0) std::memcpy(&id, RandomBytes(sizeof(id)).data(), sizeof(id));
  return id;
}

std::string ToHex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

}  // namespace agmm
