// C[M, N] = A[M, K] * B[K, N] on one CPU device of W workers, against one plain oneDNN call with W
// OpenMP threads. Items are floating point operations. The CPU column is the time of all threads,
// which is meaningful even on a busy machine.
//   gemm_bench [--shape=MxNxK]... [flags of Google Benchmark]      without a shape 1024x1024x4096
#include <benchmark/benchmark.h>
#include <omp.h>

#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/strings/str_format.h"
#include "kernels/base/deadline.h"
#include "kernels/base/units.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_gemm.h"
#include "kernels/cpu/onednn.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

void SetRate(benchmark::State& state, const Shape& shape) {
  state.SetItemsProcessed(state.iterations() * 2 * shape.m * shape.n * shape.k);
}

// The values are never all 0 and never denormal.
void Fill(std::byte* data, int64_t count, DType dtype) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) values[i] = static_cast<float>(i % 13) - 6;
  ConvertFromF32(dtype, values.data(), data, count);
}

void Check(const absl::Status& status) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  std::abort();
}

void BM_Device(benchmark::State& state, DType dtype, Shape shape) {
  const Problem problem =
      ParseProblem("A[M_x, K] * B[K, N] -> C[M_x, N]", ParseMesh("x=1").value(), shape, dtype)
          .value();
  const Schedule schedule = Plan(problem, UniformTopology(1, 1).value(), {}).value();
  const auto device = *CreateCpuDevice(static_cast<int>(state.range(0)));
  Operands operands{{0, 0, 0}, {1, 1, 1}, 0};
  int64_t end = 0;
  for (Operand operand : {kA, kB, kC}) {
    operands.offsets[operand] = end;
    end += RoundUp(ShardBytes(problem.mesh, problem.tensors[operand]), 4096);
  }
  operands.workspace_offset = end;
  const auto heap = device->CreateHeap(end + 4096).value();
  for (Operand operand : {kA, kB})  // with the padding between the rows
    Fill(heap->host().data() + operands.offsets[operand],
         ShardBytes(problem.mesh, problem.tensors[operand]) / SizeOf(dtype), dtype);
  const auto executor = device->CreateExecutor();
  Peers peers;
  peers.executors = {executor.get()};
  peers.heaps = {heap.get()};
  peers.nodes = {0};
  Check(executor->Prepare(problem, std::make_shared<const Schedule>(schedule), peers));
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t done = 0, epoch = 0;
  const auto run = [&] {
    executor->Run(++epoch, operands, Deadline::Infinite(), [&](const EpochReport& report) {
      Check(report.status);
      std::lock_guard lock(mutex);
      ++done;
      changed.notify_one();
    });
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return done == epoch; });
  };
  run();
  for (auto _ : state) run();
  SetRate(state, shape);
}

void BM_Plain(benchmark::State& state, DType dtype, Shape shape) {
  const auto [m, n, k] = shape;
  using dnnl::memory;
  omp_set_num_threads(static_cast<int>(state.range(0)));
  // A second engine besides the device's, so run plain and device benchmarks in separate processes.
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(*engine);
  const auto type = dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a({m, k}, type, memory::format_tag::ab),
      b({k, n}, type, memory::format_tag::ab), c({m, n}, type, memory::format_tag::ab);
  memory a_memory(a, *engine), b_memory(b, *engine), c_memory(c, *engine);
  Fill(static_cast<std::byte*>(a_memory.get_data_handle()), m * k, dtype);
  Fill(static_cast<std::byte*>(b_memory.get_data_handle()), k * n, dtype);
  dnnl::matmul matmul(DescribeMatmul(*engine, a, b, c));
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}};
  matmul.execute(stream, arguments);
  for (auto _ : state) {
    matmul.execute(stream, arguments);
    stream.wait();
  }
  SetRate(state, shape);
}

void Register(const Shape& shape) {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string name = absl::StrFormat("%s/%dx%dx%d", Name(dtype), shape.m, shape.n, shape.k);
    benchmark::RegisterBenchmark(("device/" + name).c_str(), BM_Device, dtype, shape)
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->MeasureProcessCPUTime();
    if (dtype == DType::kF16) continue;  // oneDNN has none
    benchmark::RegisterBenchmark(("plain/" + name).c_str(), BM_Plain, dtype, shape)
        ->Arg(1)
        ->Arg(2)
        ->UseRealTime()
        ->MeasureProcessCPUTime();
  }
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  std::vector<agmm::Shape> shapes;
  for (int i = 1; i < argc; ++i) {
    long long m = 0, n = 0, k = 0;
    if (std::sscanf(argv[i], "--shape=%lldx%lldx%lld", &m, &n, &k) != 3 ||
        std::min({m, n, k}) < 1) {
      std::fprintf(stderr, "%s is not --shape=MxNxK\n", argv[i]);
      return 2;
    }
    shapes.push_back({m, n, k});
  }
  if (shapes.empty()) shapes.push_back({1024, 1024, 4096});
  for (const agmm::Shape& shape : shapes) agmm::Register(shape);
  benchmark::AddCustomContext("kernels", agmm::GemmDescription());
  benchmark::RunSpecifiedBenchmarks();
}
