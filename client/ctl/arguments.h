// The arguments of agmmctl as values. Errors are INVALID_ARGUMENT, in one line that quotes the
// argument. Pure.
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
#include "client/connect/tensor_handle.h"
#include "kernels/schedule/plan.h"
#include "proto/limits.h"

namespace agmm {

// Parses "W", a tensor's name, "#12", its id, or its handle (client/connect/tensor_handle.h).
absl::StatusOr<NamedTensor> ParseTensorRef(absl::string_view text);

// Parses "0-3", "0,2,4" or "0-1,6": world ranks in the order of a mesh, each once.
absl::StatusOr<std::vector<int>> ParseRanks(absl::string_view text);

struct Dimensions {
  int64_t rows = 0, cols = 0;
};
// Parses "4096x512".
absl::StatusOr<Dimensions> ParseDimensions(absl::string_view text);

// Parses the flags --mesh and --ranks. Without --mesh, the mesh is one axis x over all ranks.
// Without --ranks, its ranks are the first ones of `others`, or of the world if `others` is empty.
absl::StatusOr<Mesh> MeshOfFlags(const std::string& mesh, const std::string& ranks,
                                 const std::vector<int>& others);

// Parses "A=X,B=W,C=Y", in any order. Returns a tensor for each operand, in the order of `spec`.
absl::StatusOr<std::vector<NamedTensor>> ParseBindings(absl::string_view spec,
                                                       absl::string_view bindings);

// Parses "30s", "5m" or "1h30m": more than 0, at most 24h. Errors name the flag.
absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text,
                                            absl::string_view flag = "--timeout");

// The help of --spec.
inline constexpr char kSpecHelp[] =
    "The product, its shardings and, after a colon, the dtype of an operand: C[M, N_x]:f32";
// The help of --spec of verbs that also take collectives.
inline constexpr char kAnySpecHelp[] =
    "The product, its shardings and, after a colon, the dtype of an operand: C[M, N_x]:f32. "
    "Without a product, a collective: A[M_x, K] -> B[M, K]";

// The help of other flags of several verbs.
inline constexpr char kMeshHelp[] =
    "Axes and their sizes, such as x=4 (default: x=<ranks of the world>)";
inline constexpr char kDTypeHelp[] =
    "Type of the operands to which the spec gives none: f32, bf16 or f16";
inline constexpr char kJobTimeoutHelp[] =
    "Time for each job, from its admission to its end, such as 60s or 5m";

// Adds --algorithm, --chunks, --k-chunks, --split, --workspace-shards, --partials and --send.
void AddPlanOptions(CLI::App* verb, PlanOptions* options);

// Adds --no-tuning, for verbs that submit jobs.
void AddNoTuning(CLI::App* verb, bool* no_tuning);
// Adds --scale, the divisor of the suite of bench_shapes.h.
void AddScale(CLI::App* verb, int* scale);

// Returns one line that explains why a parse of `app` failed with `error`: an unknown command, with
// similar ones; a missing command; or `error` itself.
std::string MistakeOf(const CLI::App& app, const std::string& error);

// Returns the number of letters to insert, remove or replace to turn `a` into `b`.
int EditDistance(const std::string& a, const std::string& b);

}  // namespace agmm
