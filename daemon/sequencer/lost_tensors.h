// The tensors that were lost with a node. A call that asks for one learns what became of it.
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
  // Logs `tensors` in one line, and remembers the last thousand of all. `why`: without a period.
  void Add(const std::vector<v1::Tensor>& tensors, absl::string_view why);
  // A new tensor has this name, which means no lost one any more.
  void Forget(const std::string& name);
  // NOT_FOUND for a tensor that does not exist. Says why it was lost if it was.
  absl::Status NotFound(const v1::TensorRef& ref) const;

 private:
  struct Lost {
    v1::Tensor tensor;
    std::string why;
  };
  std::deque<Lost> lost_;
};

}  // namespace agmm
