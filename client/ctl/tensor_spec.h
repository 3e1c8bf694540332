// What tensor put and fill have in common: what a new tensor is to be, and what they print.
#pragma once

#include <CLI/App.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "client/connection.h"
#include "client/ctl/arguments.h"
#include "client/ctl/verbs.h"

namespace agmm {

struct SpecFlags {
  std::string shape, dtype, sharding, mesh, ranks;
};

// --sharding, --mesh and --ranks.
void AddSpecFlags(CLI::App* verb, SpecFlags* flags);

// The spec of `shape` and `dtype`, spread as the flags say; whole on every rank of the world where
// they say nothing, which asks the world how many that are.
absl::StatusOr<v1::TensorSpec> MakeSpec(Connection* connection, const SpecFlags& flags,
                                        Dimensions shape, DType dtype);

// A tensor that is named by its id is what it is. Errors: INVALID_ARGUMENT where flags spread it.
absl::Status RefuseSpread(const SpecFlags& flags, const std::string& name);

void PrintTensor(const v1::Tensor& tensor, const Options& options);

}  // namespace agmm
