// The tensors that were lost with a node, so that an error about one of them gives the reason.
#pragma once

#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

// 'tensor 7 "W"'.
std::string Describe(const v1::Tensor& tensor);
// 'W', or 'tensor 7' without a name.
std::string DisplayName(const v1::Tensor& tensor);

// Touched on the loop only.
class LostTensors {
 public:
  // Logs `tensors` in one line, and remembers the last thousand tensors. `why` has no final period.
  void Add(const std::vector<v1::Tensor>& tensors, absl::string_view why);
  // Called when a new tensor has this name, which then no longer means a lost one.
  void Forget(const std::string& name);
  // Returns NOT_FOUND for a tensor that does not exist, with the reason if it was lost.
  absl::Status NotFound(const v1::TensorRef& ref) const;

 private:
  struct Lost {
    v1::Tensor tensor;
    std::string why;
  };
  std::deque<Lost> lost_;
};

}  // namespace agmm
