// Machines and platforms of tests, built by hand.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "kernels/predict/platform.h"
#include "kernels/schedule/problem.h"

namespace agmm::test {

// A device whose work takes no time: what remains is the time of the links.
inline DeviceRates FreeDevice() {
  constexpr double kFree = 1e9;
  DeviceRates device;
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    device.gemm.push_back({dtype, 1, kFree});
  device.memory = kFree;
  return device;
}

// Both directions at once, each at the full rate.
inline LinkRates Duplex(double bytes_per_ns, double latency_ns) {
  return {bytes_per_ns, 2 * bytes_per_ns, latency_ns};
}

// Devices on one node each, or `ranks_per_node` on each, in order.
inline Platform PlatformOf(int ranks, Wiring wiring, const LinkRates& between,
                           int ranks_per_node = 1, const LinkRates& within = Duplex(1e9, 0)) {
  Platform platform;
  platform.machine.name = "test";
  platform.machine.devices_per_node = ranks_per_node;
  platform.machine.within = platform.machine.staged = {wiring, within};
  platform.machine.between = {wiring, between};
  platform.machine.device = FreeDevice();
  platform.topology = UniformTopology(ranks, ranks / ranks_per_node, ranks_per_node).value();
  return platform;
}

// A torus whose axes are those of the mesh, one device a node.
inline Platform TorusOf(const Mesh& mesh, const LinkRates& links, bool wraps) {
  Platform platform = PlatformOf(mesh.size(), Wiring::kTorus, links, 1, links);
  for (const Axis& axis : mesh.axes) platform.torus.axes.push_back({axis.name, axis.size, wraps});
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    std::vector<int>& place = platform.torus.coordinates.emplace_back();
    for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis)
      place.push_back(mesh.Coordinate(rank, axis));
  }
  return platform;
}

}  // namespace agmm::test
