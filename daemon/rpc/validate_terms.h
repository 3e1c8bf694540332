// Checks of fields that several requests share, and their bounds. `field` is the path of the field
// in errors. Errors are those of validate.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

inline constexpr size_t kMaxIdBytes = 256;
inline constexpr size_t kMaxNameBytes = 256;
inline constexpr size_t kMaxNotationBytes = 1024;
inline constexpr int kMaxMeshAxes = 32;
inline constexpr size_t kMaxAxisNameBytes = 32;
// More than any world holds, and small enough that sums of a thousand sizes do not overflow.
inline constexpr int64_t kMaxTensorBytes = int64_t{1} << 50;
inline constexpr int64_t kMaxTimeoutSeconds = 24 * 60 * 60;

// Checks an id made by a client: printable ASCII, so that logs and headers can show it.
absl::Status CheckId(absl::string_view field, absl::string_view id);
absl::Status CheckIdGiven(absl::string_view field, absl::string_view id);
// Checks an id made by a daemon: not 0.
absl::Status CheckIdGiven(absl::string_view field, uint64_t id);

// Checks a name: not empty, UTF-8 without control characters, without a space at either end,
// without a leading '#' (which marks an id on command lines) and without ',' (which separates names
// there).
absl::Status CheckName(absl::string_view field, absl::string_view name);

// Checks that `value` is in [min, max].
absl::Status CheckBetween(absl::string_view field, int64_t value, int64_t min, int64_t max,
                          absl::string_view next);

absl::Status CheckRef(absl::string_view field, const v1::TensorRef& ref);
absl::Status CheckMesh(absl::string_view field, const v1::Mesh& mesh);
absl::Status CheckSpec(absl::string_view field, const v1::TensorSpec& spec);
absl::Status CheckOptions(absl::string_view field, const v1::PlanOptions& options);
// Checks that a timeout is from 0 (the default) to 24 hours.
absl::Status CheckTimeout(absl::string_view field, const google::protobuf::Duration& timeout);

}  // namespace agmm
