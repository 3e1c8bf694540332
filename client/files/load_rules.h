// Rules that choose the tensors of a file to load, and the form that each takes. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "client/files/tensor_file.h"

namespace agmm {

// For the tensors whose names match `pattern`, unless an earlier rule matches them.
struct FileRule {
  // A glob, as fnmatch(3) reads it: "*" also matches dots and slashes.
  std::string pattern;
  bool skip = false;  // they are not loaded
  // The matrix is transposed while it is read.
  bool transpose = false;
  // The new name; "*" stands for the name in the file. Empty: the name in the file.
  std::string name = {};
  std::optional<DType> dtype = std::nullopt;  // absent: that of the file
};

// A tensor of the file and its part in a load.
struct PlannedTensor {
  const FileTensor* stored = nullptr;
  int rule = -1;       // the rule that matches; -1: none
  bool taken = false;  // it is loaded, unless `problem` is an error
  std::string name;    // on the devices
  MatrixLayout layout;
  DType dtype = DType::kF32;  // on the devices
  absl::Status problem;       // why it cannot be loaded, without its name

  // On the devices.
  int64_t bytes() const { return layout.rows * layout.cols * SizeOf(dtype); }
};

struct LoadPlan {
  std::vector<PlannedTensor> tensors;  // all, in the order of the file
  std::vector<int> unused_rules;       // which match no name in the file

  int64_t bytes() const;  // of the tensors that are taken
};

// Returns true if the glob `pattern` matches `name`.
bool MatchesGlob(const std::string& pattern, const std::string& name);

// Tensors whose names match one of `transposed` are transposed too, whatever their rule says.
// `file` outlives the plan.
LoadPlan PlanLoad(const TensorFile& file, const std::vector<FileRule>& rules,
                  const std::vector<std::string>& transposed = {});

// Checks that the plan can be carried out. A `strict` one takes or skips every tensor by a rule,
// and uses every rule. Errors: INVALID_ARGUMENT with the file and the first tensor or rule in
// question: it cannot be loaded, a tensor cannot have its name, two would have the same one, no
// tensor is taken.
absl::Status CheckPlan(const TensorFile& file, const std::vector<FileRule>& rules,
                       const LoadPlan& plan, bool strict);

// "\"a\", \"b\" and 5 more": names in an error, at most `most` of them.
std::string NamesText(const std::vector<std::string>& names, size_t most = 8);

}  // namespace agmm
