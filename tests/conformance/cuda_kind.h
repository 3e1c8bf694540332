// CUDA devices in the list of kinds: on a model of the driver, or on GPUs.
#pragma once

#include <vector>

#include "tests/conformance/harness.h"

namespace agmm::test {

// Returns "cuda_model" or "cuda", depending on the driver that the loader finds. Returns nothing
// and prints the reason if it finds no driver, or a model although AGMM_TEST_GPU is set. Ranks take
// GPUs in turn. Without AGMM_MODEL, a model has a GPU for each of 8 ranks.
std::vector<DeviceKind> CudaKinds();

}  // namespace agmm::test
