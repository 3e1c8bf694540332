// The values of a fill. Element (row, col) of a tensor with `cols` columns is a function of the
// seed and of index = row * cols + col alone, so it is the same on every mesh, sharding and
// machine:
//
//   bits      = mix(seed + (index + 1) * 0x9e3779b97f4a7c15): splitmix64, its (index + 1)-th
//   mix(z)    : z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9; z = (z ^ z >> 27) * 0x94d049bb133111eb;
//               z ^ z >> 31
//   UNIFORM   : (bits >> 40) * 2^-23 - 1, rounded to the dtype, at most its largest value below 1
//   INTEGERS  : ((bits >> 32) * 9 >> 32) - 4
//   CONSTANT  : value, rounded to f32 and then to the dtype
// all of it modulo 2^64.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/base/dtype.h"

namespace agmm {

// Errors: INVALID_ARGUMENT for an unknown kind, or a finite value that is too large for `dtype`.
absl::Status CheckFill(const v1::Fill& fill, DType dtype);

// Writes elements index, index + 1, ..., index + count - 1, dense, to `to`. `fill` has been
// checked.
void FillValues(const v1::Fill& fill, DType dtype, int64_t index, int64_t count, void* to);

}  // namespace agmm
