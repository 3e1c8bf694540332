// Named places where a test can make code fail, wait or take another path.
// Built only with -DAGMM_FAILPOINTS=ON; otherwise every use is the constant `false` or nothing. The
// name is an expression that is evaluated only while some name is armed.
//
//   if (AGMM_FAILPOINT("executor.drop_credit")) return;     // true while armed
//
// Arm from code with failpoint::Arm(name, count), or from the environment of a daemon:
//   AGMM_FAILPOINTS="executor.slow_step=*,transport.drop=3"
#pragma once

#include <cstdint>

#include "absl/strings/string_view.h"

#ifdef AGMM_FAILPOINTS
#define AGMM_FAILPOINT(name) (::agmm::failpoint::AnyIsArmed() && ::agmm::failpoint::Hit(name))
#else
#define AGMM_FAILPOINT(name) false
#endif

namespace agmm::failpoint {

// The next `count` hits of `name` return true; -1 means every hit.
void Arm(absl::string_view name, int64_t count = -1);
void Disarm(absl::string_view name);
// Returns true while some name is armed. Cheap: one relaxed load.
bool AnyIsArmed();
// Returns true if `name` is armed; uses up one count.
bool Hit(absl::string_view name);
// The number of true results of Hit since `name` was armed; 0 when it is not armed.
int64_t Hits(absl::string_view name);

}  // namespace agmm::failpoint
