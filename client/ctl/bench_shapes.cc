#include "client/ctl/bench_shapes.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr int kCpuScale = 8;

constexpr Shape kSumShapes[] = {
#include "client/ctl/sum_shapes.inc"
};
struct SumForm {
  const char *name, *spec;
};
constexpr SumForm kSumForms[] = {{"reduce-scatter", "A[M, K_x] * B[K_x, N] -> C[M_x, N]"},
                                 {"all-reduce", "A[M, K_x] * B[K_x, N] -> C[M, N]"}};

}  // namespace

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

std::vector<BenchShape> SumSuite(int scale) {
  std::vector<BenchShape> suite;
  for (const auto& [name, spec] : kSumForms) {
    for (const Shape& on_cpus : kSumShapes) {
      Shape shape = on_cpus;
      for (int64_t* size : {&shape.m, &shape.n, &shape.k})
        *size = CeilDiv(*size * kCpuScale, int64_t{scale});
      suite.push_back(
          {absl::StrFormat("%s %dx%dx%d", name, shape.m, shape.n, shape.k), shape, spec});
    }
  }
  return suite;
}

std::vector<BenchShape> SuiteOf(const v1::GetStatusResponse& status, int ranks, int scale, bool all,
                                bool sums) {
  bool cpu = false;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) cpu |= device.kind() == "cpu";
  }
  const int divisor = scale > 0 ? scale : cpu ? kCpuScale : 1;
  std::vector<BenchShape> suite = Suite(ranks, divisor, all);
  for (BenchShape& shape : suite)
    if (divisor > 1) absl::StrAppend(&shape.name, " / ", divisor);
  if (!sums) return suite;
  for (BenchShape& shape : SumSuite(divisor)) suite.push_back(std::move(shape));
  return suite;
}

absl::StatusOr<std::vector<BenchShape>> ParseShapes(const std::vector<std::string>& texts,
                                                    const std::string& spec) {
  std::vector<BenchShape> shapes;
  for (const std::string& text : texts) {
    AGMM_ASSIGN_OR_RETURN(const Shape shape, ParseShape(text, spec));
    std::string name = absl::StrFormat("%dx%d", shape.m, shape.n);
    if (shape.k > 0) absl::StrAppend(&name, "x", shape.k);
    shapes.push_back({std::move(name), shape});
  }
  return shapes;
}

}  // namespace agmm
