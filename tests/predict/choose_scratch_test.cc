#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>

#include "kernels/predict/choose.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm::test {
namespace {

Machine Hosts() {
  Machine m;
  m.name = "hosts";
  m.within = {Wiring::kSwitch, {8, 16, 2000}};
  m.staged = m.within;
  m.between = {Wiring::kSwitch, {0.5, 1, 50000}};
  m.device.gemm = {{DType::kF32, 1e6, 50},   {DType::kF32, 1e9, 130}, {DType::kBF16, 1e6, 100},
                   {DType::kBF16, 1e9, 800}, {DType::kF16, 1e6, 100}, {DType::kF16, 1e9, 800}};
  m.device.memory = 10;
  m.device.multiply_ns = 5000;
  m.device.step_ns = 1000;
  m.device.signal_ns = 3000;
  m.device.message_ns = 5000;
  m.device.send_ns_per_byte = 0.4;
  m.device.receive_ns_per_byte = 0.4;
  m.device.copy_ns_per_byte = 0.1;
  return m;
}
Machine Gpus() {
  Machine m;
  m.name = "gpus";
  m.within = {Wiring::kSwitch, {450, 900, 2000}};
  m.staged = {Wiring::kSwitch, {25, 50, 10000}};
  m.between = {Wiring::kSwitch, {400, 800, 5000}};
  for (DType d : {DType::kF32, DType::kBF16, DType::kF16}) {
    m.device.gemm.push_back({d, 1e8, 1e5});
    m.device.gemm.push_back({d, 34e9, 8e5});
  }
  m.device.memory = 3350;
  m.device.multiply_ns = 3000;
  m.device.step_ns = 500;
  m.device.signal_ns = 2000;
  return m;
}

void Try(const char* label, const std::string& spec, const std::string& mesh, ::agmm::Shape shape,
         int nodes, const PlanOptions& asked = {}, bool gpus = false) {
  const Problem problem = ParseProblem(spec, ParseMesh(mesh).value(), shape, DType::kBF16).value();
  Platform platform = {gpus ? Gpus() : Hosts(),
                       UniformTopology(problem.mesh.size(), nodes).value()};
  const auto begin = std::chrono::steady_clock::now();
  const double limit = problem.mesh.size() <= 8 ? 0.05 : 1;
  ChooseLimits limits;
  limits.out_of_time = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() > limit;
  };
  const auto choice = Choose(problem, platform, asked, limits);
  const double ms =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() * 1e3;
  printf("%s %s [%.1f ms]\n", label, ToString(problem).c_str(), ms);
  if (!choice.ok()) {
    printf("    %s\n", choice.status().ToString().c_str());
    return;
  }
  printf("    %s\n", choice->why.c_str());
  for (const Candidate& c : choice->candidates)
    printf("      %-20s c%d k%d %s est %.0f us  sim %.0f us %s\n", c.recipe.algorithm->name.c_str(),
           c.recipe.chunks, c.recipe.k_chunks, SplitText(problem, c.recipe.split).c_str(),
           c.estimate_ns * 1e-3, c.time_ns * 1e-3, c.refused.c_str());
}

TEST(Choose, Scratch) {
  for (bool gpus : {false, true}) {
    Try("(1)", "A[M_x, K] * B[K, N_y] -> C[M, N_yx]", "x=2,y=8", {8192, 8192, 4096}, 2, {}, gpus);
    Try("(2)", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=16", {8192, 8192, 4096}, 2, {}, gpus);
    Try("(4)", "A[M_x, K] * B[K_x, N] -> C[M, N_x]", "x=8", {8192, 8192, 8192}, 2, {}, gpus);
    Try("(5)", "A[M_x, K_y] * B[K_y, N_x] -> C[M_x, N_y]", "x=16,y=16", {65536, 65536, 65536}, 32,
        {.chunks = 8}, gpus);
    Try("(6)", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=64", {262144, 8192, 8192}, 8, {.chunks = 8},
        gpus);
    Try("(7)", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=64", {8, 28672, 8192}, 8, {}, gpus);
    Try("(8)", "A[M_x, K] * B[K, N_x] -> C[M, N]", "x=2", {4096, 2048, 4096}, 2, {}, gpus);
    Try("(9)", "A[M_x, K] * B[K, N_x] -> C[M, N]", "x=4", {4096, 4096, 4096}, 2,
        {.workspace_shards = 2}, gpus);
    Try("(10)", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=360", {65536, 28672, 8192}, 45, {}, gpus);
    Try("(10)", "A[M_x, K] * B[K, N] -> C[M, N]", "x=512", {65536, 28672, 8192}, 64, {}, gpus);
    Try("(11)", "A[M_abcd, K] * B[K, N_efgh] -> C[M_efgh, N_abcd]",
        "a=2,b=2,c=2,d=2,e=2,f=2,g=2,h=2", {65536, 28672, 8192}, 32, {}, gpus);
    Try("(12)", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=1024", {131072, 28672, 8192}, 128, {},
        gpus);
    Try("8", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=8", {8192, 28672, 8192}, 1, {}, gpus);
    Try("2", "A[M_x, K] * B[K, N_x] -> C[M, N_x]", "x=2", {1024, 3584, 1024}, 2, {}, gpus);
    Try("kg", "A[M, K_x] * B[K, N_x] -> C[M, N_x]", "x=4", {1024, 3584, 4096}, 2, {}, gpus);
    Try("ar", "A[M, K]{U_x} -> B[M, K]", "x=4", {1024, 3584, 0}, 2, {}, gpus);
    Try("ag", "A[M_x, K] -> B[M, K]", "x=64", {65536, 3584, 0}, 8, {}, gpus);
  }
}

}  // namespace
}  // namespace agmm::test
