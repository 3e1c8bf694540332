// Tensors as callers of the library name them: by a name, or by a handle. A handle is a text,
// "#12@<sequencer>", and stands for one tensor of one sequencer. Names do not begin with '#'.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

struct NamedTensor {
  v1::TensorRef ref;
  std::string sequencer;  // that assigned the id; empty for a name
};

// Errors: INVALID_ARGUMENT for a text that begins with '#' and is not a handle.
absl::StatusOr<NamedTensor> ParseTensor(const std::string& text);

std::string HandleOf(const v1::Tensor& tensor);

}  // namespace agmm
