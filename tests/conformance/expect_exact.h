// Runs a plan on small whole numbers and compares every bit of the result.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "kernels/schedule/index.h"
#include "tests/conformance/harness.h"

namespace agmm::test {

// Checks the sum of the parts that ranks hold of the result. Each part was rounded to its dtype.
inline void ExpectSum(PreparedPlan& plan, const TestMatrix& expected) {
  const Problem& problem = plan.problem();
  const Operand result = ResultOf(problem);
  const Tensor& tensor = problem.tensors[result];
  std::vector<int> others;
  for (int axis = 0; axis < static_cast<int>(problem.mesh.axes.size()); ++axis) {
    const std::vector<int>& open = tensor.sharding.open;
    if (std::find(open.begin(), open.end(), axis) == open.end()) others.push_back(axis);
  }
  const double rounding = tensor.dtype == DType::kF32 ? 0 : std::exp2(-8);
  for (int group = 0; group < PartsAlong(problem.mesh, others); ++group) {
    TestMatrix sum{expected.rows, expected.cols, std::vector<float>(expected.values.size(), 0)};
    std::vector<double> size(expected.values.size(), 0);
    Block shard;
    for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
      if (PositionAlong(problem.mesh, others, rank).part != group) continue;
      shard = ShardBlock(problem, result, rank);
      TestMatrix part{expected.rows, expected.cols, std::vector<float>(expected.values.size(), 0)};
      plan.ReadResult(rank, &part);
      for (size_t i = 0; i < part.values.size(); ++i) {
        sum.values[i] += part.values[i];
        size[i] += std::abs(part.values[i]);
      }
    }
    for (int64_t row = shard.rows.begin; row < shard.rows.end; ++row) {
      for (int64_t col = shard.cols.begin; col < shard.cols.end; ++col) {
        const size_t i = row * expected.cols + col;
        ASSERT_LE(std::abs(sum.values[i] - expected.values[i]), rounding * size[i])
            << "row " << row << " column " << col << " of group " << group;
      }
    }
  }
}

// Runs epochs 1 to `epochs`, each with its own inputs and a poisoned result.
inline void ExpectExact(PreparedPlan& plan, Cluster& cluster, uint64_t epochs) {
  const Problem& problem = plan.problem();
  const Operand result = ResultOf(problem);
  for (uint64_t epoch = 1; epoch <= epochs; ++epoch) {
    SCOPED_TRACE(testing::Message() << "epoch " << epoch);
    uint64_t seed = TestSeed() + 16 * epoch;
    std::vector<TestMatrix> inputs;  // the sums of their parts
    for (const Operand input : problem.Inputs()) {
      const Tensor& tensor = problem.tensors[input];
      std::vector<TestMatrix> parts;
      for (int part = 0; part < OpenParts(problem.mesh, tensor); ++part)
        parts.push_back(SmallIntegers(tensor.rows, tensor.cols, ++seed));
      for (Rank rank = 0; rank < plan.rank_count(); ++rank) {
        const Position at = PositionAlong(problem.mesh, tensor.sharding.open, rank);
        plan.Write(rank, input, parts[at.part]);
      }
      inputs.push_back(parts[0]);
      for (size_t part = 1; part < parts.size(); ++part) {
        for (size_t i = 0; i < parts[part].values.size(); ++i)
          inputs.back().values[i] += parts[part].values[i];
      }
    }
    for (Rank rank = 0; rank < plan.rank_count(); ++rank) plan.Poison(rank, result);
    const std::vector<EpochReport> reports = plan.RunAll(epoch, epoch, absl::Minutes(2));
    ASSERT_EQ(cluster.network().first_misfit(), absl::OkStatus());
    for (const EpochReport& report : reports) ASSERT_TRUE(report.status.ok()) << report.status;
    const TestMatrix expected =
        HasProduct(problem) ? MatrixProduct(inputs[0], inputs[1]) : inputs[0];
    if (OpenParts(problem.mesh, problem.tensors[result]) > 1) {
      ExpectSum(plan, expected);
      continue;
    }
    for (Rank rank = 0; rank < plan.rank_count(); ++rank)
      EXPECT_EQ(plan.CountWrong(rank, expected, result), 0) << "rank " << rank;
  }
  EXPECT_TRUE(cluster.GuardsAreWhole());
}

}  // namespace agmm::test
