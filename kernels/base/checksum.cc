#include "kernels/base/checksum.h"

#include <xxhash.h>

#include <new>

namespace agmm {

Checksum::Checksum() : state_(XXH3_createState()) {
  if (state_ == nullptr) throw std::bad_alloc();
  XXH3_64bits_reset(state_.get());
}

void Checksum::Add(absl::string_view bytes) {
  XXH3_64bits_update(state_.get(), bytes.data(), bytes.size());
}

uint64_t Checksum::value() const { return XXH3_64bits_digest(state_.get()); }

void Checksum::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

}  // namespace agmm
