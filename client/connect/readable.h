// Refuses requests whose texts are not UTF-8, because a daemon cannot parse them and its error
// would not say why. Errors: INVALID_ARGUMENT, which names the field and the byte.
#pragma once

#include "absl/status/status.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

absl::Status CheckReadable(const v1::TensorRef& tensor);
absl::Status CheckReadable(const v1::CreateTensorRequest& request);
// Also checks the size, because a larger request would end the stream that it shares with others.
absl::Status CheckReadable(const v1::SubmitJobRequest& request);

}  // namespace agmm
