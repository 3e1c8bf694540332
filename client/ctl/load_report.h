// The tensors of a file, before and after a load, for people and machines. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "agmm/v1/tensor.pb.h"
#include "client/ctl/json.h"
#include "client/files/load_rules.h"

namespace agmm {

// The rules of a command line.
struct RuleFlags {
  std::vector<FileRule> rules;
  std::vector<std::string> shardings;   // by rule; empty if it skips
  std::vector<std::string> transposed;  // patterns
};

// Parses the values of --rule, PATTERN=SHARDING, and of --skip, whose patterns come first. Errors:
// INVALID_ARGUMENT, one line that quotes the rule.
absl::StatusOr<RuleFlags> ParseRules(const std::vector<std::string>& rules,
                                     const std::vector<std::string>& skipped,
                                     const std::vector<std::string>& transposed,
                                     const std::string& prefix, const std::string& dtype);

struct LoadReport {
  struct Loaded {
    std::string name_in_file;
    v1::Tensor tensor;
    int64_t bytes = 0;   // on the devices, counted once for all copies
    double seconds = 0;  // of its upload
  };
  std::string file;
  std::vector<Loaded> loaded;
  std::vector<std::string> skipped;          // names in the file
  std::vector<std::string> unused_patterns;  // that match no name in the file
};

// "agmm.load.v1".
Json ToJson(const LoadReport& report);
// A row for each tensor, and a line about all.
std::string LoadText(const LoadReport& report);

// "agmm.tensor_file.v1": the tensors of a file, and the rule that takes each.
Json PlanJson(const TensorFile& file, const RuleFlags& flags, const LoadPlan& plan);
// A row for each tensor, with the reason below it if it cannot be loaded.
std::string PlanTable(const TensorFile& file, const RuleFlags& flags, const LoadPlan& plan);

}  // namespace agmm
