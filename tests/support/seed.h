// The seed of the tests' random choices.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>

namespace agmm {

// Returns $AGMM_SEED or a constant, because a failure must be reproducible, and prints it.
inline uint64_t TestSeed() {
  static const uint64_t seed = [] {
    const char* given = std::getenv("AGMM_SEED");
    const uint64_t chosen = given != nullptr ? std::strtoull(given, nullptr, 10) : 1;
    std::fprintf(stderr, "AGMM_SEED=%llu\n", static_cast<unsigned long long>(chosen));
    return chosen;
  }();
  return seed;
}

}  // namespace agmm
