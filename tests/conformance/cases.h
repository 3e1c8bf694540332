// The products that every kind of device must compute exactly. One list for all devices.
#pragma once

#include <ostream>
#include <string>
#include <vector>

#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/conformance/harness.h"

namespace agmm::test {

struct Case {
  std::string algorithm;
  DType dtype = DType::kF32;
  int ranks = 1;
  int nodes = 1;  // the ranks are spread over them as evenly as possible
  int chunks = 1;
  int64_t m = 0, n = 0, k = 0;
  int threads = 1;
  std::string spec = kDefaultSpec;
  std::string mesh;   // empty: x=ranks
  std::string split;  // empty: for the default spec the split that gathers A, else chosen
  int workspace_shards = 0;
  DType partials = DType::kF32;
  int k_chunks = 0;  // 0: chosen
  bool carried = false;

  Problem problem() const;
  Topology topology() const;
  // Returns a verified schedule. `topology` is that of the ranks' devices, with their islands.
  Schedule schedule() const { return schedule(topology()); }
  Schedule schedule(const Topology& topology) const;
  // "ring_bf16_r4_n2_c3_97x61x333".
  std::string name() const;
};
std::ostream& operator<<(std::ostream& out, const Case& c);

const std::vector<Case>& Cases();

}  // namespace agmm::test
