// The machine that stands for a world before it is measured.
#pragma once

#include <string>

#include "agmm/v1/machine.pb.h"

namespace agmm::measure {

// `kind` is that of the world's devices: "cpu" or "cuda".
v1::Machine PresetFor(const std::string& kind);

}  // namespace agmm::measure
