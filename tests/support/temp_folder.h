// A temporary folder that this object's destructor deletes, even if the test fails.
#pragma once

#include <stdlib.h>

#include <filesystem>
#include <string>
#include <system_error>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace agmm {

class TempFolder {
 public:
  explicit TempFolder(const std::string& name)
      : path_(absl::StrCat(::testing::TempDir(), "agmm-", name, "-XXXXXX")) {
    EXPECT_NE(mkdtemp(path_.data()), nullptr) << path_;
  }
  ~TempFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempFolder(const TempFolder&) = delete;

  const std::string& path() const { return path_; }
  // "FOLDER/name".
  std::string operator/(const std::string& name) const { return absl::StrCat(path_, "/", name); }

 private:
  std::string path_;
};

}  // namespace agmm
