// XXH3 with 64 bits of bytes that arrive in pieces: detects contents that changed on the way.
// Guards against accidents, not against attackers.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/strings/string_view.h"

struct XXH3_state_s;

namespace agmm {

// Thread-compatible.
class Checksum {
 public:
  Checksum();
  void Add(absl::string_view bytes);
  // The checksum of all bytes so far.
  uint64_t value() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace agmm
