// What is said to a client whose ids a sequencer gave that is gone.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_format.h"
#include "agmm/v1/tensor.pb.h"
#include "proto/convert/status.h"

namespace agmm {

// ABORTED and PEER_LOST, naming what `request` asks for.
template <typename Request>
absl::Status OfAnEarlierSequencer(const Request& request) {
  std::string lost;
  const auto tensor = [](uint64_t id) {
    return absl::StrFormat(
        "tensor %d belonged to the sequencer of before its restart; it is gone: put it again", id);
  };
  if constexpr (requires { request.job_id(); }) {
    lost = absl::StrFormat(
        "job %d belonged to the sequencer of before its restart; it is gone: submit it again",
        request.job_id());
  } else if constexpr (requires { request.tensor_id(); }) {
    if (request.tensor_id() != 0) lost = tensor(request.tensor_id());
  } else if constexpr (requires { request.tensor().tensor_id(); }) {
    if (request.tensor().tensor_id() != 0) lost = tensor(request.tensor().tensor_id());
  } else if constexpr (requires { request.repeat_count(); }) {
    lost =
        "the submit began before the sequencer's restart, with which all jobs and tensors have "
        "gone: put the "
        "tensors and submit again";
  }
  if (lost.empty())
    lost = "what the call is about went with the sequencer, which was restarted: begin again";
  return WithReason(absl::AbortedError(lost), kReasonPeerLost);
}

}  // namespace agmm
