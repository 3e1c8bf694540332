// Measurements of the world that a command asks for.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/machine.pb.h"
#include "client/connect/connection.h"

namespace agmm {

// The time for which commands wait for a measurement by default.
inline constexpr absl::Duration kMeasureTimeout = absl::Minutes(10);

// Makes a measurement of the world due and returns the machine once the measurement is over. A
// terminal shows its progress. Errors: DEADLINE_EXCEEDED if it takes longer than `timeout`.
absl::StatusOr<v1::MachineStatus> AwaitMeasurement(Connection* connection, absl::Duration timeout);

}  // namespace agmm
