// CUDA devices in the list of kinds: on a model of the driver, or on GPUs.
#pragma once

#include <vector>

#include "tests/conformance/harness.h"

namespace agmm::test {

// "cuda_model" or "cuda", whichever the driver is that the loader finds. None, and a line that says
// why, where it finds none; so with AGMM_TEST_GPU in the environment, where it finds a model. Ranks
// take GPUs in turn. Without AGMM_MODEL, a model has a GPU for each of 8 ranks.
std::vector<DeviceKind> CudaKinds();

}  // namespace agmm::test
