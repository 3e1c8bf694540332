// What holds for every request that can be parsed, and for every one that passes Validate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"

namespace agmm::fuzz {

// `data` is a serialised `message`, "SubmitJobRequest", or garbage.
void CheckRequest(absl::string_view message, const uint8_t* data, size_t size);

}  // namespace agmm::fuzz
