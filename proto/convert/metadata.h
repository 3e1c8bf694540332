// Keys of gRPC metadata that both sides know.
#pragma once

namespace agmm {

// With a request: which sequencer gave the ids in it, as Job and Tensor say. Another one refuses
// the request.
inline constexpr char kSequencerKey[] = "x-agmm-sequencer";

}  // namespace agmm
