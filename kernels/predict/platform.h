// The place where a schedule runs: a machine, and where its ranks are.
#pragma once

#include "kernels/predict/machine.h"
#include "kernels/predict/torus.h"
#include "kernels/schedule/topology.h"

namespace agmm {

struct Platform {
  Machine machine;
  Topology topology;
  Torus torus;  // only if the machine is one
};

}  // namespace agmm
