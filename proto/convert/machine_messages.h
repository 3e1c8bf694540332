// Messages <-> machines.
#pragma once

#include "absl/status/statusor.h"
#include "agmm/v1/machine.pb.h"
#include "kernels/predict/machine.h"

namespace agmm {

// Fills in what a message may leave out: a `two_way_gb_per_s` of twice one way, one device per
// node, `staged` like `within`, and `between`, too, if `within` is a torus. Errors:
// INVALID_ARGUMENT, those of Validate and for an unknown wiring or dtype; each begins with the path
// of the field, such as "device.gemm[2].gflop".
absl::StatusOr<Machine> FromProto(const v1::Machine& proto);
// The reverse. FromProto returns an equal machine if times are multiples of 1e-6 ns up to 1 s, and
// numbers of operations whole ones up to 1e15. A machine that comes from FromProto is one of these.
v1::Machine ToProto(const Machine& machine);

}  // namespace agmm
