// Shared by the fuzz targets.
#pragma once

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/string_view.h"

// A property that holds for every input.
#define FUZZ_CHECK(condition, what)                                           \
  do {                                                                        \
    if (!(condition)) {                                                       \
      std::fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__, #condition, \
                   std::string(what).c_str());                                \
      std::abort();                                                           \
    }                                                                         \
  } while (false)

namespace agmm::fuzz {

// Checks the properties for these bytes; aborts if one does not hold.
using Target = std::function<void(absl::string_view bytes)>;

// Returns all targets of this program. Each name is a folder of tests/fuzz/corpus.
inline std::map<std::string, Target>& Targets() {
  static std::map<std::string, Target> targets;
  return targets;
}

// Adds a target before main begins: const bool kAdded = AddTarget("npy", Check);
inline bool AddTarget(const std::string& name, Target target) {
  return Targets().emplace(name, std::move(target)).second;
}

// Cuts the next line off `text`.
inline absl::string_view Line(absl::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  const absl::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

}  // namespace agmm::fuzz
