// The world as text for people, at most 100 columns. Pure.
#pragma once

#include <string>

#include "agmm/v1/cluster.pb.h"

namespace agmm {

// Its nodes, its devices, and what their memory holds.
std::string StatusText(const v1::GetStatusResponse& status);

}  // namespace agmm
