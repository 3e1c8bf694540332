// Kernels that tests write as text.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/model/ptx/state/state.h"

namespace ptx {

struct TestRun {
  std::vector<uint32_t> out;
  std::map<std::string, int64_t> findings;
  std::string stop;  // the text of Stop, or empty
  Counts counts;
  std::map<std::string, RunCounts> opcodes;
};

struct TestLaunch {
  std::vector<uint32_t> in;  // the words at %in
  size_t out_words = 32;     // at %out; 0xdddddddd before the run
  uint32_t threads = 32;     // of a CTA
  uint32_t ctas = 1, cluster = 1;
  uint32_t dynamic_shared_bytes = 0;
  RunOptions options;
  Policy policy;
};

// The module of a kernel with this body: %out and %in hold the addresses of the words (.b64), %tid
// is %tid.x and %cta is %ctaid.x (.b32); registers %r<64>, %rd<64> (.b64), %h<16> (.b16), %f<64>
// (.f32), %d<16> (.f64), %p<16> are declared.
std::string TestModule(const std::string& body);
// Runs it on one GPU.
TestRun RunBody(const std::string& body, const TestLaunch& launch = {});

}  // namespace ptx
