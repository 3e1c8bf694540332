#include "client/ctl/bench_shapes.h"

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "kernels/base/units.h"

namespace agmm {

// Keep equal to tests/bench/shapes.py.
std::vector<BenchShape> Suite(int ranks, int scale, bool all) {
  std::vector<BenchShape> suite = {{"LLaMA-7B", {8192, 11008, 4096}},
                                   {"LLaMA-3-8B", {8192, 14336, 4096}}};
  for (int64_t m = 64; m <= 32768; m *= 2)
    suite.push_back({absl::StrCat("LLaMA-3-70B M=", m), {m, 28672, 8192}});
  suite.push_back({"Qwen2-72B", {8192, 29568, 8192}});
  suite.push_back({"LLaMA-3-405B", {16384, 53248, 16384}});
  suite.push_back({"GPT-3", {8192, 49152, 12288}});
  for (int64_t m : {1, 16, 32, 128, 1000, 4097})
    suite.push_back({absl::StrCat("decode M=", m), {m, 28672, 8192}});
  suite.push_back({"Pallas unit", {1024, 4096, 4096}});
  for (BenchShape& one : suite) {
    for (int64_t* size : {&one.shape.m, &one.shape.n, &one.shape.k})
      *size = CeilDiv(*size, int64_t{scale});
  }
  suite.back().shape.m *= ranks;
  suite.back().shape.n *= ranks;
  static constexpr absl::string_view kFew[] = {"LLaMA-7B", "GPT-3", "decode M=32", "decode M=4097"};
  if (!all)
    std::erase_if(suite, [](const auto& one) { return !absl::c_linear_search(kFew, one.name); });
  return suite;
}

}  // namespace agmm
