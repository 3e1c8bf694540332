#include "tests/schedule/interleave.h"

#include <cstdint>

#include "kernels/schedule/index.h"
#include "tests/schedule/execution.h"

namespace agmm::test {
namespace {

uint64_t Mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

bool Matches(const Strategy::Rule& rule, const TaskId& id) {
  return rule.id.rank == id.rank && (rule.any_kind || rule.id.kind == id.kind) &&
         (rule.any_step || (rule.id.step == id.step && rule.id.part == id.part)) &&
         (rule.any_epoch || rule.id.epoch == id.epoch);
}

std::vector<float> SumOf(const std::vector<std::vector<float>>& parts) {
  std::vector<float> sum(parts.front().size(), 0);
  for (const std::vector<float>& part : parts)
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += part[i];
  return sum;
}

}  // namespace

int64_t Priority(const Strategy& strategy, const TaskId& id) {
  for (const Strategy::Rule& rule : strategy.rules) {
    if (Matches(rule, id)) return rule.starve ? -1 : INT64_MAX;
  }
  uint64_t x = Mix(strategy.seed + 1);
  for (int part : {static_cast<int>(id.kind), id.rank, id.step, id.part}) {
    x = Mix(x * 31 + part + 7);
  }
  return static_cast<int64_t>(x >> 2);
}

Interleaver::Interleaver(const Problem& problem, const Schedule& schedule, int epochs)
    : problem_(problem), schedule_(schedule), epochs_(epochs) {
  std::mt19937_64 random(1);
  const int64_t m = ShapeOf(problem).m, n = ShapeOf(problem).n, k = ShapeOf(problem).k;
  // One more than runs, because the environment also writes after the last epoch.
  for (int epoch = 0; epoch <= epochs; ++epoch) {
    Values& values = values_.emplace_back();
    for (const Operand input : problem.Inputs()) {
      const Tensor& tensor = problem.tensors[input];
      values.inputs[input].resize(OpenParts(problem.mesh, tensor));
      for (Matrix& part : values.inputs[input]) {
        part.resize(tensor.rows * tensor.cols);
        for (float& value : part) value = static_cast<float>(1 + random() % 400);
      }
    }
    if (!HasProduct(problem)) {
      values.result = SumOf(values.inputs.at(TheCollective(problem).from));
      continue;
    }
    values.result.resize(m * n, 0);
    const Matrix a = SumOf(values.inputs.at(kA)), b = SumOf(values.inputs.at(kB));
    for (int64_t i = 0; i < m; ++i) {
      for (int64_t j = 0; j < n; ++j) {
        for (int64_t l = 0; l < k; ++l) values.result[i * n + j] += a[i * k + l] * b[l * n + j];
      }
    }
  }
}

Outcome Interleaver::Run(const Strategy& strategy) const {
  return Execution(*this, strategy).Run();
}

std::vector<Strategy> Interleaver::Strategies(int seeds) const {
  std::vector<Strategy> all;
  for (int seed = 0; seed < seeds; ++seed) {
    all.push_back({static_cast<uint64_t>(seed), true, {}});
    all.push_back({static_cast<uint64_t>(seed), false, {}});
  }
  std::vector<Strategy::Rule> targets;
  for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
    targets.push_back({.any_kind = true, .any_step = true, .id = {.rank = rank}});
    targets.push_back({.id = {TaskKind::kEnvironment, rank, -1, 0}});
    for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
      const Step& step = schedule_.ranks[rank][s];
      targets.push_back({.id = {TaskKind::kStep, rank, s, 0}});
      if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
        for (int i = 0; i < static_cast<int>(transfer->to.size()); ++i) {
          targets.push_back({.id = {TaskKind::kRead, rank, s, i}});
          targets.push_back({.id = {TaskKind::kWrite, rank, s, i}});
        }
      }
      for (int i = 0; i < static_cast<int>(step.signals.size()); ++i) {
        targets.push_back({.id = {TaskKind::kSignal, rank, s, i}});
      }
    }
  }
  for (Strategy::Rule rule : targets) {
    for (bool starve : {true, false}) {
      rule.starve = starve;
      rule.any_epoch = true;
      all.push_back({1, false, {rule}});
      rule.any_epoch = false;
      for (rule.id.epoch = 1; rule.id.epoch <= 2; ++rule.id.epoch) {
        all.push_back({2, false, {rule}});
      }
    }
  }
  return all;
}

Outcome Interleaver::Explore(int seeds) const {
  for (const Strategy& strategy : Strategies(seeds)) {
    const Outcome outcome = Run(strategy);
    if (outcome != Outcome::kExact) return outcome;
  }
  return Outcome::kExact;
}

}  // namespace agmm::test
