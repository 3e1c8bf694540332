// Problems and topologies of the schedule tests.
#pragma once

#include <cstdint>
#include <string>

#include "kernels/schedule/problem.h"
#include "kernels/schedule/spec.h"
#include "tests/support/seed.h"

namespace agmm::test {

// Returns `spec` over a mesh of `ranks` along x. Dies if the spec is invalid.
inline Problem MakeProblem(int ranks, Shape shape, DType dtype = DType::kF32,
                           const std::string& spec = kDefaultSpec) {
  const Mesh mesh = ParseMesh("x=" + std::to_string(ranks)).value();
  return ParseProblem(spec, mesh, shape, dtype).value();
}

inline Topology MakeTopology(int ranks, int nodes) { return UniformTopology(ranks, nodes).value(); }

}  // namespace agmm::test
