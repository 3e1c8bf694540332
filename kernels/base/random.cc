#include "kernels/base/random.h"

#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "absl/strings/escaping.h"

namespace agmm {

std::string RandomBytes(int count) {
  std::string bytes(count, '\0');
  // Gives at most 256 bytes; callers want up to 32. Without random names a stale message could be
  // mistaken for a new one.
  if (getentropy(bytes.data(), bytes.size()) != 0) std::abort();
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
