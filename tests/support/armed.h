// A failpoint that a test arms.
#pragma once

#include <string>
#include <utility>

#include "kernels/base/failpoint.h"

namespace agmm {

// The failpoint is armed during its lifetime.
class Armed {
 public:
  explicit Armed(std::string name) : name_(std::move(name)) { failpoint::Arm(name_); }
  ~Armed() { failpoint::Disarm(name_); }
  Armed(const Armed&) = delete;
  Armed& operator=(const Armed&) = delete;

 private:
  const std::string name_;
};

}  // namespace agmm
