// The flags of `agmmctl advise` as a request. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "kernels/predict/advise.h"

namespace agmm {

struct AdviceTexts {
  // Products, also several in a text, with a semicolon between them. A later one may name the
  // result of the one before without its dimensions: "x[B, D] * V[D, F] -> H[B, F]; H * W[F, D] ->
  // Y[B, D]". An operand with a subscript keeps its sharding.
  std::vector<std::string> specs;
  std::string shape;   // sizes of the dimensions of all products
  std::string output;  // the last result with the sharding that it keeps; empty: it is chosen
  std::string memory;  // "300MB"; empty: no limit
};

// Errors: INVALID_ARGUMENT.
absl::StatusOr<AdviceRequest> ParseAdviceRequest(const AdviceTexts& texts, const Mesh& mesh,
                                                 DType dtype);

// Parses a size above 0 with its unit: B, a binary unit as ParseBytes takes, or a decimal one: kB,
// MB, GB, TB.
absl::StatusOr<int64_t> ParseMemory(absl::string_view text);

}  // namespace agmm
