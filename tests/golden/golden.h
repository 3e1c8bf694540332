// Compares text with a file under tests/golden. AGMM_UPDATE_GOLDEN=1 rewrites the file instead, for
// an intended change; the diff then shows the effect.
#pragma once

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "gtest/gtest.h"

namespace agmm {

inline std::string GoldenPath(const std::string& name) {
  return std::string(AGMM_GOLDEN_DIR) + "/" + name;
}

// Returns the file's text; empty if it does not exist.
inline std::string ReadGolden(const std::string& name) {
  std::ifstream file(GoldenPath(name), std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline void ExpectGolden(const std::string& name, const std::string& text) {
  const char* update = std::getenv("AGMM_UPDATE_GOLDEN");
  if (update != nullptr && std::string(update) == "1") {
    std::ofstream file(GoldenPath(name), std::ios::binary);
    file << text;
    ASSERT_TRUE(file.flush()) << "cannot write " << GoldenPath(name);
    return;
  }
  EXPECT_EQ(text, ReadGolden(name))
      << name << " differs; if that is meant, run again with AGMM_UPDATE_GOLDEN=1";
}

}  // namespace agmm
