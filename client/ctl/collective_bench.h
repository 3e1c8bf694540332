// The part of agmmctl bench that times collectives alone: a row for each of them, size and
// algorithm.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/problem.h"

namespace agmm {

// A collective over one axis x.
struct CollectiveForm {
  const char* name;  // "all_gather"
  const char* spec;
  // The bus bandwidth is the rate of `size` bytes times this, for P ranks: as nccl-tests defines
  // both. `size` is the larger of the buffers that a rank has before and after.
  double (*bus_factor)(int ranks);
  bool size_of_shard = false;  // `size` is that of a shard, not of the whole matrix
};
const std::vector<CollectiveForm>& CollectiveForms();

struct CollectiveSizes {
  std::vector<const CollectiveForm*> forms;
  std::vector<int64_t> sizes;  // in bytes, ascending
};
// Parses "all_gather,all_reduce" or "all", and "64KiB" or "1KiB:256MiB", each size four times the
// one before. Errors: INVALID_ARGUMENT, one line.
absl::StatusOr<CollectiveSizes> ParseCollectives(const std::vector<std::string>& names,
                                                 const std::string& bytes);

// Returns the problem of `form` on `mesh` whose size is `size` or slightly more. Errors:
// INVALID_ARGUMENT for a matrix that is too large.
absl::StatusOr<Problem> CollectiveOf(const CollectiveForm& form, const Mesh& mesh, int64_t size,
                                     DType dtype);

struct CollectiveBench {
  CollectiveSizes asked;
  std::string mesh;  // of one axis; empty: x over all ranks
  DType dtype = DType::kF32;
  std::vector<std::string> algorithms;  // auto is one of them by default
  int epochs = 1;                       // timed, at least
  absl::Duration timeout;
  bool ignore_tuning = false;  // as in SubmitJobRequest
  bool json = false;
};
// Prints the rows, as text or as JSON, and the ones that cannot run. The matrices are in a session
// that ends with the call. Errors: INTERNAL if a result is wrong.
absl::Status RunCollectives(Connection* connection, const CollectiveBench& bench);

}  // namespace agmm
