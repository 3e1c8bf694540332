// Rates of CUDA devices, without daemons: copies into and out of a heap, one product, products that
// are gathered, and the host's time for an epoch. Prints a JSON object for tests/gpu/bench.py.
//
//   gpu_bench [--dry-run]     --dry-run: tiny sizes, also on a model of the driver
//
// Uses uniform values in bf16 and several sets of operands in turn, so that caches do not hold the
// next set, and reports medians. Times are the device's own timestamps, from the first rank's begin
// to the last one's end.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/clock.h"
#include "kernels/schedule/spec.h"
#include "tests/conformance/harness.h"

namespace agmm::test {
namespace {

struct Sizes {
  int64_t copy_bytes = int64_t{1} << 30;
  int64_t rows = 1024;            // of A, on each rank
  int64_t cols = 4096, k = 4096;  // of B, on each rank
  int sets = 3, rounds = 21, epochs = 200;
};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

const DeviceKind* CudaKind() {
  for (const DeviceKind& kind : DeviceKinds())
    if (absl::StartsWith(kind.name, "cuda")) return &kind;
  return nullptr;
}

class Bench {
 public:
  Bench(const DeviceKind& kind, const Sizes& sizes) : kind_(kind), sizes_(sizes) {}

  // Measures GB/s between host memory and a heap.
  void Copies() {
    Cluster cluster(kind_, MakeTopology(1), {.heap_bytes = sizes_.copy_bytes});
    std::vector<std::byte> host(sizes_.copy_bytes, std::byte{1});
    const HeapRows there = {0, 1, sizes_.copy_bytes, sizes_.copy_bytes};
    const Rows here = {host.data(), 1, sizes_.copy_bytes, sizes_.copy_bytes};
    std::vector<double> in, out;
    for (int i = 0; i < 5; ++i) {
      in.push_back(Seconds([&] { return cluster.heap(0)->Write(there, here); }));
      out.push_back(Seconds([&] { return cluster.heap(0)->Read(there, here); }));
    }
    const auto rate = [&](const std::vector<double>& seconds) {
      return sizes_.copy_bytes / Median(seconds) * 1e-9;
    };
    Row({{"what", Quoted("copies")},
         {"bytes", absl::StrCat(sizes_.copy_bytes)},
         {"write_gb_s", absl::StrFormat("%.2f", rate(in))},
         {"read_gb_s", absl::StrFormat("%.2f", rate(out))}});
  }

  void Product(int64_t m, int64_t n, int64_t k) {
    const double us = Time(1, {m, n, k}, {"serial", 1, 1}, "A[M, K] * B[K, N] -> C[M, N]");
    Row({{"what", Quoted("product")},
         {"m", absl::StrCat(m)},
         {"n", absl::StrCat(n)},
         {"k", absl::StrCat(k)},
         {"us", absl::StrFormat("%.1f", us)},
         {"tflop_s", absl::StrFormat("%.1f", 2e-6 * m * n * k / us)}});
  }

  // Each rank multiplies all of A by its columns of B, on all GPUs in turn.
  void Gathered(int ranks) {
    const Shape shape = {sizes_.rows * ranks, sizes_.cols * ranks, sizes_.k};
    for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
      for (int chunks : {1, 4}) {
        if (chunks > 1 && std::strcmp(algorithm, "serial") == 0) continue;
        const double us = Time(ranks, shape, {algorithm, chunks, 1}, kDefaultSpec);
        Row({{"what", Quoted("gathered")},
             {"ranks", absl::StrCat(ranks)},
             {"m", absl::StrCat(shape.m)},
             {"n", absl::StrCat(shape.n)},
             {"k", absl::StrCat(shape.k)},
             {"algorithm", Quoted(algorithm)},
             {"chunks", absl::StrCat(chunks)},
             {"us", absl::StrFormat("%.1f", us)}});
      }
    }
  }

  // Epochs of a tiny product one after the other: their time is the host's work.
  void Epochs(int ranks, int chunks) {
    Cluster cluster(kind_, MakeTopology(ranks), {.heap_bytes = 64 << 20});
    const Problem problem = ProblemOf(ranks, {64 * ranks, 64 * ranks, 64}, kDefaultSpec);
    PreparedPlan plan(cluster, problem, PlanOf(problem, ranks, {"ring", chunks, 1}));
    plan.FillInputs(1);
    uint64_t epoch = 0;
    const auto run = [&](int count) {
      Reports reports(count * ranks);
      for (int i = 0; i < count; ++i) {
        ++epoch;
        for (Rank rank = 0; rank < ranks; ++rank) {
          plan.Run(rank, epoch, 1, Deadline::After(absl::Minutes(2)), reports.At(i * ranks + rank));
        }
      }
      reports.Wait();
    };
    run(sizes_.epochs);
    const int64_t begin_ns = MonotonicNanos();
    run(sizes_.epochs);
    const double us = (MonotonicNanos() - begin_ns) * 1e-3 / sizes_.epochs;
    Row({{"what", Quoted("epochs")},
         {"ranks", absl::StrCat(ranks)},
         {"chunks", absl::StrCat(chunks)},
         {"us_an_epoch", absl::StrFormat("%.1f", us)}});
  }

  void Print(const std::string& device) const {
    std::printf("{\"schema\": \"agmm.gpu_bench.v1\", \"device\": \"%s\", \"rows\": [\n",
                device.c_str());
    for (size_t i = 0; i < rows_.size(); ++i)
      std::printf("  %s%s\n", rows_[i].c_str(), i + 1 < rows_.size() ? "," : "");
    std::printf("]}\n");
  }

 private:
  static Topology MakeTopology(int ranks) { return UniformTopology(ranks, 1).value(); }
  static std::string Quoted(const char* text) { return absl::StrCat("\"", text, "\""); }
  static Problem ProblemOf(int ranks, const Shape& shape, const char* spec) {
    return ParseProblem(spec, ParseMesh(absl::StrCat("x=", ranks)).value(), shape, DType::kBF16)
        .value();
  }
  static Schedule PlanOf(const Problem& problem, int ranks, PlanOptions options) {
    if (ranks > 1) options.split = "N=x";
    return Plan(problem, MakeTopology(ranks), options).value();
  }
  template <typename Work>
  static double Seconds(Work work) {
    const int64_t begin_ns = MonotonicNanos();
    if (const absl::Status status = work(); !status.ok()) Die(status);
    return (MonotonicNanos() - begin_ns) * 1e-9;
  }
  [[noreturn]] static void Die(const absl::Status& status) {
    std::fprintf(stderr, "gpu_bench: %s\n", status.ToString().c_str());
    std::exit(1);
  }

  // Microseconds of an epoch.
  double Time(int ranks, const Shape& shape, const PlanOptions& options, const char* spec) {
    const Problem problem = ProblemOf(ranks, shape, spec);
    const Schedule schedule = PlanOf(problem, ranks, options);
    int64_t set_bytes = schedule.workspace_bytes + (1 << 16);
    for (const Tensor& tensor : problem.tensors)
      set_bytes += ShardBytes(problem.mesh, tensor) + (1 << 16);
    Cluster cluster(kind_, MakeTopology(ranks), {.heap_bytes = sizes_.sets * set_bytes});
    std::vector<std::unique_ptr<PreparedPlan>> sets;
    for (int set = 0; set < sizes_.sets; ++set) {
      sets.push_back(std::make_unique<PreparedPlan>(cluster, problem, schedule));
      sets.back()->FillInputs(2 * set);
    }
    std::vector<double> us;
    for (int round = 0; round < sizes_.sets + sizes_.rounds; ++round) {
      const auto reports = sets[round % sizes_.sets]->RunAll(round / sizes_.sets + 1);
      int64_t begin_ns = INT64_MAX, end_ns = 0;
      for (const EpochReport& report : reports) {
        if (!report.status.ok()) Die(report.status);
        for (const StepTime& step : report.steps) {
          begin_ns = std::min(begin_ns, step.start_ns);
          end_ns = std::max(end_ns, step.end_ns);
        }
      }
      // The first epoch of each set warms up.
      if (round >= sizes_.sets) us.push_back((end_ns - begin_ns) * 1e-3);
    }
    return Median(us);
  }

  void Row(const std::vector<std::pair<const char*, std::string>>& fields) {
    std::string row;
    for (const auto& [name, value] : fields)
      absl::StrAppend(&row, row.empty() ? "{" : ", ", "\"", name, "\": ", value);
    rows_.push_back(row + "}");
    std::fprintf(stderr, "%s\n", rows_.back().c_str());
  }

  const DeviceKind& kind_;
  const Sizes sizes_;
  std::vector<std::string> rows_;
};

int Main(bool dry_run) {
  const DeviceKind* const kind = CudaKind();
  if (kind == nullptr) {
    std::fprintf(
        stderr,
        "gpu_bench: no CUDA device was found; agmmd says why if its configuration has one\n");
    return 1;
  }
  const std::string device = kind->create(0, 1)->info().description;
  if (kind->name != "cuda" && !dry_run) {
    std::fprintf(stderr, "gpu_bench: %s is a model, whose times mean nothing; use --dry-run\n",
                 device.c_str());
    return 1;
  }
  Sizes sizes;
  if (dry_run) sizes = {1 << 20, 64, 64, 64, 2, 3, 3};
  Bench bench(*kind, sizes);
  bench.Copies();
  bench.Product(4 * sizes.rows, sizes.cols, sizes.k);
  bench.Product(8 * sizes.rows, sizes.cols, sizes.k);
  for (int ranks : {2, 4, 8}) {
    // The same shape as a single product, without a gather.
    bench.Product(sizes.rows * ranks, sizes.cols * ranks, sizes.k);
    bench.Gathered(ranks);
  }
  bench.Epochs(8, 1);
  bench.Epochs(8, 4);
  bench.Print(device);
  return 0;
}

}  // namespace
}  // namespace agmm::test

int main(int argc, char** argv) {
  const bool dry_run = argc == 2 && std::strcmp(argv[1], "--dry-run") == 0;
  if (argc > 1 && !dry_run) {
    std::fprintf(stderr, "usage: gpu_bench [--dry-run]\n");
    return 2;
  }
  return agmm::test::Main(dry_run);
}
