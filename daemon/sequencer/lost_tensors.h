// The tensors that were lost with a node, so that an error about one of them gives the reason.
#pragma once

#include <spdlog/spdlog.h>

#include <algorithm>
#include <deque>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "agmm/v1/tensor.pb.h"

namespace agmm {

// 'tensor 7 "W"'.
inline std::string Describe(const v1::Tensor& tensor) {
  return absl::StrFormat("tensor %d%s", tensor.tensor_id(),
                         tensor.name().empty() ? "" : absl::StrFormat(" \"%s\"", tensor.name()));
}

// 'W', or 'tensor 7' without a name.
inline std::string DisplayName(const v1::Tensor& tensor) {
  return tensor.name().empty() ? absl::StrCat("tensor ", tensor.tensor_id())
                               : absl::Utf8SafeCEscape(tensor.name());
}

// Touched on the loop only.
class LostTensors {
 public:
  // Logs `tensors` in one line, and remembers the last kRemembered lost tensors. `why` has no final
  // period.
  void Add(const std::vector<v1::Tensor>& tensors, absl::string_view why) {
    constexpr size_t kNamed = 8;
    if (tensors.empty()) return;
    std::vector<std::string> names;
    for (size_t i = 0; i < std::min(kNamed, tensors.size()); ++i)
      names.push_back(DisplayName(tensors[i]));
    spdlog::warn(
        "{} tensor{} lost: {}{}; {}", tensors.size(), tensors.size() == 1 ? " is" : "s are",
        absl::StrJoin(names, ", "),
        tensors.size() > kNamed ? absl::StrFormat(", and %d more", tensors.size() - kNamed) : "",
        std::string(why));
    for (const v1::Tensor& tensor : tensors) {
      lost_.push_front({.why = std::string(why)});
      lost_.front().tensor.set_tensor_id(tensor.tensor_id());
      lost_.front().tensor.set_name(tensor.name());
    }
    lost_.resize(std::min(lost_.size(), kRemembered));
  }
  // Called when a new tensor has this name, which then no longer means a lost one.
  void Forget(const std::string& name) {
    for (Lost& lost : lost_)
      if (lost.tensor.name() == name) lost.tensor.clear_name();
  }
  // Returns NOT_FOUND for a tensor that does not exist, with the reason if it was lost.
  absl::Status NotFound(const v1::TensorRef& ref) const {
    v1::Tensor tensor;
    tensor.set_tensor_id(ref.tensor_id());
    const std::string what =
        ref.has_tensor_id() ? Describe(tensor) : absl::StrFormat("tensor \"%s\"", ref.name());
    const auto found = std::find_if(lost_.begin(), lost_.end(), [&](const Lost& lost) {
      return ref.has_tensor_id() ? lost.tensor.tensor_id() == ref.tensor_id()
                                 : lost.tensor.name() == ref.name();
    });
    if (found != lost_.end()) {
      return absl::NotFoundError(absl::StrCat(
          what, " is lost: ", found->why, "; write it, or run the job that computes it, again"));
    }
    return absl::NotFoundError(absl::StrCat(what, " does not exist; list the existing tensors"));
  }

 private:
  static constexpr size_t kRemembered = 1000;
  struct Lost {
    v1::Tensor tensor;
    std::string why;
  };
  std::deque<Lost> lost_;
};

}  // namespace agmm
