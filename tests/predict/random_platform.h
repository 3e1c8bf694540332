// Random problems, plans and machines for the tests of predictions.
#pragma once

#include <cmath>
#include <optional>
#include <random>

#include "tests/predict/platforms.h"
#include "tests/schedule/shardings.h"

namespace agmm::test {

class RandomCases {
 public:
  explicit RandomCases(uint64_t seed) : random_(seed) {}

  // A plan of any sharding.
  ShardedPlan DrawPlanOfAny() {
    while (true) {
      const std::vector<ShardedCase>& cases = ShardedCases();
      Draw draw;
      draw.sharded = cases[Below(static_cast<int>(cases.size()))];
      draw.shape = {Between(1, 96), Between(1, 96), Between(1, 96)};
      draw.dtype = Below(2) == 0 ? DType::kF32 : DType::kBF16;
      draw.nodes = Between(1, 4);
      if (draw.sharded.spec.find('*') == std::string::npos) draw.shape.k = 0;
      std::optional<ShardedPlan> plan = DrawPlan(draw, random_);
      if (plan) return *std::move(plan);
    }
  }

  // A machine for the ranks of a plan: every wiring, with rates and costs that make a plan take
  // many nanoseconds.
  Platform DrawPlatform(const ShardedPlan& plan) {
    const Mesh& mesh = plan.problem.mesh;
    Platform platform;
    if (Below(4) == 0) {
      platform = TorusOf(mesh, DrawRates(), Below(2) == 0);
    } else {
      platform.machine.within = DrawLinks();
      platform.machine.staged = DrawLinks();
      platform.machine.between = DrawLinks();
    }
    platform.topology = plan.topology;
    platform.machine.device = DrawDevice();
    return platform;
  }

  // From `least` to `most`, with equal probability for each factor.
  double Scale(double least, double most) {
    return least * std::pow(most / least, std::uniform_real_distribution<double>(0, 1)(random_));
  }
  int Below(int count) { return std::uniform_int_distribution<int>(0, count - 1)(random_); }
  int Between(int least, int most) { return least + Below(most - least + 1); }
  double Cost(double least, double most) { return Below(2) == 0 ? 0 : Scale(least, most); }

 private:
  LinkRates DrawRates() {
    const double one_way = Scale(1e-2, 1);
    const double both = Below(2) == 0 ? 2 : Scale(1, 2);
    return {one_way, both * one_way, Cost(10, 1e5), Cost(10, 1e5)};
  }
  Links DrawLinks() {
    return {Below(2) == 0 ? Wiring::kSwitch : Wiring::kPairwise, DrawRates(), {}};
  }
  DeviceRates DrawDevice() {
    DeviceRates device;
    const double flops = Scale(0.1, 1000);
    for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
      device.gemm.push_back({dtype, 1e6, flops});
    device.memory = Scale(0.1, 1e3);
    device.multiply_ns = Cost(10, 1e4);
    device.step_ns = Cost(10, 1e4);
    device.signal_ns = Cost(10, 1e4);
    device.message_ns = Cost(10, 1e4);
    device.send_ns_per_byte = Cost(1e-2, 10);
    device.receive_ns_per_byte = Cost(1e-2, 10);
    device.copy_ns_per_byte = Cost(1e-2, 10);
    device.pack_ns_per_byte = Cost(1e-2, 10);
    return device;
  }

  std::mt19937_64 random_;
};

}  // namespace agmm::test
