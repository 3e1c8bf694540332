// C[1024, 1024] = A[1024, 4096] * B[4096, 1024] on one CPU device of W workers, against one plain oneDNN
// call with W OpenMP threads. Items are floating point operations; the CPU column is what all threads spent,
// and holds on a machine that others use too.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/time/clock.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "oneapi/dnnl/dnnl.hpp"

namespace agmm {
namespace {

constexpr int64_t kM = 1024, kN = 1024, kK = 4096;

void SetRate(benchmark::State& state) {
  state.SetItemsProcessed(state.iterations() * 2 * kM * kN * kK);
}

// Never 0 everywhere, never denormal.
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

void BM_Device(benchmark::State& state, DType dtype) {
  const Problem problem = ParseProblem("A[M_x, K] * B[K, N] -> C[M_x, N]", ParseMesh("x=1").value(),
                                       {kM, kN, kK}, dtype).value();
  const Schedule schedule = Plan(problem, UniformTopology(1, 1).value(), {}).value();
  const auto device = CreateCpuDevice(static_cast<int>(state.range(0)));
  const auto heap = device->CreateHeap(64 << 20).value();
  const Operands operands{{0, 16 << 20, 32 << 20}, {1, 1, 1}, 48 << 20};
  Fill(heap->host().data() + operands.offsets[kA], kM * kK, dtype);
  Fill(heap->host().data() + operands.offsets[kB], kK * kN, dtype);
  const auto executor = device->CreateExecutor();
  Peers peers;
  peers.executors = {executor.get()};
  peers.heaps = {heap.get()};
  peers.nodes = {0};
  Check(executor->Prepare(problem, schedule, peers));
  std::mutex mutex;
  std::condition_variable changed;
  uint64_t done = 0, epoch = 0;
  const auto run = [&] {
    executor->Run(++epoch, operands, absl::InfiniteFuture(), [&](const EpochReport& report) {
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
  SetRate(state);
}

void BM_Plain(benchmark::State& state, DType dtype) {
  using dnnl::memory;
  omp_set_num_threads(static_cast<int>(state.range(0)));
  // An engine beside the device's: run plain and device benchmarks in processes of their own.
  static const auto* const engine = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  dnnl::stream stream(*engine);
  const auto type = dtype == DType::kBF16 ? memory::data_type::bf16 : memory::data_type::f32;
  const memory::desc a({kM, kK}, type, memory::format_tag::ab), b({kK, kN}, type, memory::format_tag::ab),
      c({kM, kN}, type, memory::format_tag::ab);
  memory a_memory(a, *engine), b_memory(b, *engine), c_memory(c, *engine);
  Fill(static_cast<std::byte*>(a_memory.get_data_handle()), kM * kK, dtype);
  Fill(static_cast<std::byte*>(b_memory.get_data_handle()), kK * kN, dtype);
  dnnl::matmul matmul({dnnl::matmul::desc(a, b, c), *engine});
  const std::unordered_map<int, memory> arguments{
      {DNNL_ARG_SRC, a_memory}, {DNNL_ARG_WEIGHTS, b_memory}, {DNNL_ARG_DST, c_memory}};
  matmul.execute(stream, arguments);
  for (auto _ : state) {
    matmul.execute(stream, arguments);
    stream.wait();
  }
  SetRate(state);
}

void Register() {
  for (DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::string name(Name(dtype));
    benchmark::RegisterBenchmark(("device/" + name).c_str(), BM_Device, dtype)
        ->Arg(1)->Arg(2)->UseRealTime()->MeasureProcessCPUTime();
    if (dtype == DType::kF16) continue;  // oneDNN has none
    benchmark::RegisterBenchmark(("plain/" + name).c_str(), BM_Plain, dtype)
        ->Arg(1)->Arg(2)->UseRealTime()->MeasureProcessCPUTime();
  }
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  agmm::Register();
  benchmark::RunSpecifiedBenchmarks();
}
