#include "daemon/sequencer/lost_tensors.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

constexpr size_t kRemembered = 1000;

bool Is(const v1::Tensor& tensor, const v1::TensorRef& ref) {
  return ref.has_tensor_id() ? tensor.tensor_id() == ref.tensor_id() : tensor.name() == ref.name();
}

}  // namespace

std::string Describe(const v1::Tensor& tensor) {
  return absl::StrFormat("tensor %d%s", tensor.tensor_id(),
                         tensor.name().empty() ? "" : absl::StrFormat(" \"%s\"", tensor.name()));
}

std::string DisplayName(const v1::Tensor& tensor) {
  return tensor.name().empty() ? absl::StrCat("tensor ", tensor.tensor_id())
                               : absl::Utf8SafeCEscape(tensor.name());
}

void LostTensors::Add(const std::vector<v1::Tensor>& tensors, absl::string_view why) {
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

void LostTensors::Forget(const std::string& name) {
  for (Lost& lost : lost_)
    if (lost.tensor.name() == name) lost.tensor.clear_name();
}

absl::Status LostTensors::NotFound(const v1::TensorRef& ref) const {
  v1::Tensor tensor;
  tensor.set_tensor_id(ref.tensor_id());
  const std::string what =
      ref.has_tensor_id() ? Describe(tensor) : absl::StrFormat("tensor \"%s\"", ref.name());
  for (const Lost& lost : lost_)
    if (Is(lost.tensor, ref))
      return absl::NotFoundError(absl::StrCat(
          what, " is lost: ", lost.why, "; write it, or run the job that computes it, again"));
  return absl::NotFoundError(absl::StrCat(what, " does not exist; list the existing tensors"));
}

}  // namespace agmm
