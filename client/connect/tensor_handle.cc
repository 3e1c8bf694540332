#include "client/connect/tensor_handle.h"

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace agmm {

absl::StatusOr<NamedTensor> ParseTensor(const std::string& text) {
  NamedTensor named;
  if (text.empty() || text[0] != '#') {
    named.ref.set_name(text);
    return named;
  }
  const std::vector<absl::string_view> parts =
      absl::StrSplit(absl::string_view(text).substr(1), absl::MaxSplits('@', 1));
  uint64_t id = 0;
  // The sequencer becomes metadata of a call, where gRPC aborts on other characters.
  if (parts.size() != 2 || parts[1].empty() || !absl::c_all_of(parts[1], absl::ascii_isalnum) ||
      !absl::SimpleAtoi(parts[0], &id) || id == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is not the handle of a tensor; take TensorInfo::handle, or give a "
                        "name, which does not begin with '#'",
                        absl::CHexEscape(text)));
  }
  named.ref.set_tensor_id(id);
  named.sequencer = std::string(parts[1]);
  return named;
}

std::string HandleOf(const v1::Tensor& tensor) {
  return absl::StrFormat("#%d@%s", tensor.tensor_id(), tensor.sequencer());
}

}  // namespace agmm
