// Flags that have no effect beside another one. They are refused, because a user who gives one
// expects an effect.
#pragma once

#include <CLI/App.hpp>
#include <CLI/Config.hpp>
#include <CLI/Formatter.hpp>
#include <utility>
#include <vector>

#include "absl/status/status.h"

namespace agmm {

class FlagConflicts {
 public:
  // Beside `mode`, none of `flags` has an effect.
  void Add(const CLI::Option* mode, const std::vector<const CLI::Option*>& flags);
  // Beside `mode`, no other flag or argument that `verb` has now has an effect, except `kept`.
  void AddAllBut(const std::vector<const CLI::Option*>& kept, const CLI::Option* mode,
                 const CLI::App* verb);

  // Called after parsing. Errors: INVALID_ARGUMENT if both flags of a pair are given.
  absl::Status Check() const;

 private:
  std::vector<std::pair<const CLI::Option*, const CLI::Option*>> pairs_;  // mode, flag
};

}  // namespace agmm
