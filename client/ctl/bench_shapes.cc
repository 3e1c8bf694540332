#include "client/ctl/bench_shapes.h"

#include <algorithm>
#include <set>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

BenchShape Scaled(const BenchShape& full, int scale) {
  const auto part = [&](int64_t size) { return CeilDiv(size, int64_t{scale}); };
  return {full.name, {part(full.shape.m), part(full.shape.n), part(full.shape.k)}};
}

}  // namespace

// tests/bench/shapes.py has the same ones.
std::vector<BenchShape> Suite(int ranks, int scale) {
  std::vector<BenchShape> full = {{"LLaMA-7B", {8192, 11008, 4096}},
                                  {"LLaMA-3-8B", {8192, 14336, 4096}}};
  for (int64_t m = 64; m <= 32768; m *= 2)
    full.push_back({absl::StrCat("LLaMA-3-70B M=", m), {m, 28672, 8192}});
  full.push_back({"Qwen2-72B", {8192, 29568, 8192}});
  full.push_back({"LLaMA-3-405B", {16384, 53248, 16384}});
  full.push_back({"GPT-3", {8192, 49152, 12288}});
  for (int64_t m : {1, 16, 32, 128, 1000, 4097})
    full.push_back({absl::StrCat("decode M=", m), {m, 28672, 8192}});
  std::vector<BenchShape> suite;
  for (const BenchShape& shape : full) suite.push_back(Scaled(shape, scale));
  BenchShape unit = Scaled({"Pallas unit", {1024, 4096, 4096}}, scale);
  unit.shape.m *= ranks;
  unit.shape.n *= ranks;
  suite.push_back(unit);
  return suite;
}

std::vector<BenchShape> SmallSuite(int ranks, int scale) {
  static const auto* const names =
      new std::set<std::string>{"LLaMA-7B", "GPT-3", "decode M=32", "decode M=4097"};
  std::vector<BenchShape> suite = Suite(ranks, scale);
  std::erase_if(suite, [](const BenchShape& shape) { return names->count(shape.name) == 0; });
  return suite;
}

absl::StatusOr<BenchShape> ParseBenchShape(const std::string& text) {
  AGMM_ASSIGN_OR_RETURN(const Shape shape, ParseShape(text));
  return BenchShape{absl::StrFormat("%dx%dx%d", shape.m, shape.n, shape.k), shape};
}

}  // namespace agmm
