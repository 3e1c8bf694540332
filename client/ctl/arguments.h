// What people write for agmmctl, as values. Pure, but for the flags they are added to. Errors are
// INVALID_ARGUMENT, one line that names what was written.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/tensor.pb.h"
#include "kernels/schedule/plan.h"

namespace agmm {

inline constexpr int kMaxRepeat = 1'000'000;

// "W" is the tensor of that name, "#12" the tensor with that id.
absl::StatusOr<v1::TensorRef> ParseTensorRef(absl::string_view text);
// As it is written: "W" or "#12".
std::string ToString(const v1::TensorRef& ref);

// "0-3", "0,2,4", "0-1,6": world ranks in the order of a mesh, each once.
absl::StatusOr<std::vector<int>> ParseRanks(absl::string_view text);
// The reverse: "0-3", "0,2,4-6".
std::string FormatRanks(const std::vector<int>& ranks);

// "4096x512": rows and columns.
struct Dimensions {
  int64_t rows = 0, cols = 0;
};
absl::StatusOr<Dimensions> ParseDimensions(absl::string_view text);

// `mesh` over `ranks`, as given by flags; empty: one axis x over them, or over all `world_ranks`.
absl::StatusOr<Mesh> MeshOfFlags(const std::string& mesh, const std::string& ranks,
                                 int world_ranks);

// "A=X,B=W,C=Y" for the operands of `spec`, in the spec's order, whatever the order of the
// bindings.
absl::StatusOr<std::vector<v1::TensorRef>> ParseBindings(absl::string_view spec,
                                                         absl::string_view bindings);

// "30s", "5m", "1h30m": above 0, at most 24h. Errors name the flag --timeout.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text);

// --algorithm and --chunks.
void AddPlanOptions(CLI::App* verb, PlanOptions* options);

}  // namespace agmm
