// A client that maps a tensor and writes to it without pause, for tests that stop and kill it.
//
//   mapping_client ENDPOINT TENSOR [fork]
//
// Prints "mapped" once it writes. With "fork" a forked child lives on, which prints "forked" where
// it does not have the memory.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>
#include <string>

#include "client/agmm.h"

namespace {

void Say(const char* what) {
  std::printf("%s\n", what);
  std::fflush(stdout);
}

// Writes even while the library replaces the memory, which the tests are about; the thread
// sanitizer must ignore this race.
__attribute__((no_sanitize("thread"))) void Write(std::byte* data, size_t bytes) {
  for (volatile std::byte* at = data; at != data + bytes; ++at) *at = std::byte{0x5a};
}

int Run(const std::string& endpoint, const std::string& name, bool forks) {
  const auto client = agmm::Client::Connect({.endpoint = endpoint, .session = true});
  if (!client.ok()) agmm::FailWith(client.status());
  const auto mapping = (*client)->Map(name, /*writable=*/true);
  if (!mapping.ok()) agmm::FailWith(mapping.status());
  const agmm::Mapping::Shard& shard = mapping->shards()[0];
  const size_t bytes = (shard.row_end - shard.row_begin) * shard.pitch_bytes;
  if (forks && fork() == 0) {
    alarm(60);  // when the test has long ended
    // A forked child does not have this memory: it must not be locked or touched.
    Say(madvise(shard.data, bytes, MADV_NORMAL) != 0 && errno == ENOMEM ? "forked"
                                                                        : "forked with the memory");
    while (true) pause();
  }
  for (bool told = false;; told = true) {
    Write(shard.data, bytes);
    if (!told) Say("mapped");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return Run(argv[1], argv[2], argc > 3 && std::string(argv[3]) == "fork");
}
