// The place where a schedule runs: a machine, and where its ranks are.
#pragma once

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "kernels/predict/machine.h"
#include "kernels/predict/torus.h"
#include "kernels/schedule/topology.h"

namespace agmm {

struct Platform {
  Machine machine;
  Topology topology;
  Torus torus;  // only if the machine is one
};

// Errors: INVALID_ARGUMENT for a torus on which the ranks have no places.
inline absl::Status CheckPlaces(const Platform& platform) {
  if (platform.machine.within.wiring != Wiring::kTorus ||
      (static_cast<int>(platform.torus.coordinates.size()) == platform.topology.rank_count() &&
       !platform.torus.axes.empty()))
    return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrFormat(
      "machine %s is a torus, and %d of %d ranks have a place on it; place them with MakeTorus",
      platform.machine.name, platform.torus.coordinates.size(), platform.topology.rank_count()));
}

}  // namespace agmm
