// The world's machine as text. Pure.
#pragma once

#include <string>

#include "absl/time/time.h"
#include "agmm/v1/machine.pb.h"

namespace agmm {

// Tables of the paths between nodes and within them, and of the devices' rates. `now` is the time
// from which the age of the measurement counts.
std::string TopoText(const v1::MachineStatus& status, absl::Time now);

// The line of a measurement that is due: "measuring: 3 of 14 figures", or what it waits for.
// `incomplete`: the reason why the world is not complete, which then takes the place of that.
std::string MeasuringText(const v1::MachineStatus& status, const std::string& incomplete = "");

}  // namespace agmm
