// What the fuzzers share.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/strings/string_view.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

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

inline absl::string_view Text(const uint8_t* data, size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

// Cuts the next line off `text`.
inline absl::string_view Line(absl::string_view* text) {
  const size_t end = std::min(text->find('\n'), text->size());
  const absl::string_view line = text->substr(0, end);
  text->remove_prefix(std::min(end + 1, text->size()));
  return line;
}

}  // namespace agmm::fuzz
