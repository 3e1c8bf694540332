// Every sharding through one to four daemons, exact to the bit, with random delays at steps and
// messages. For each sharding, a seed draws some of its possible plans.
#include <algorithm>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/agmm.h"
#include "gtest/gtest.h"
#include "kernels/schedule/index.h"
#include "tests/e2e/world.h"
#include "tests/schedule/shardings.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

class Shardings : public ::testing::TestWithParam<int> {
 protected:
  static constexpr int kRanks = 8, kPlans = 2;

  Shardings()
      : world_({.nodes = GetParam(),
                .devices = (kRanks + GetParam() - 1) / GetParam(),
                .failpoints = "executor.delay=*,transport.delay=*"}) {}

  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    Result<std::unique_ptr<Client>> client =
        Client::Connect({.endpoint = world_.endpoint(GetParam() - 1)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
  }

  // "[M_x, K]".
  static std::string ShardingOf(const Problem& problem, Operand operand) {
    Tensor unnamed = problem.tensors[operand];
    unnamed.name.clear();
    return ToString(problem.mesh, unnamed);
  }

  void Put(const std::string& name, const Problem& problem, Operand operand,
           const TestMatrix& values) {
    const Result<TensorInfo> put =
        client_->Put(name,
                     {.rows = values.rows,
                      .cols = values.cols,
                      .sharding = ShardingOf(problem, operand),
                      .mesh = problem.mesh.ToString()},
                     values.values.data(), values.values.size() * sizeof(float));
    ASSERT_TRUE(put.ok()) << put.status().ToString();
  }

  // Makes a tensor for an input. A job writes one whose sum is open. `whole`: its values.
  void Make(const std::string& name, const Problem& problem, Operand input, uint64_t seed,
            TestMatrix* whole) {
    const Tensor& tensor = problem.tensors[input];
    if (OpenParts(problem.mesh, tensor) == 1) {
      *whole = SmallIntegers(tensor.rows, tensor.cols, seed);
      return Put(name, problem, input, *whole);
    }
    const std::string spec = absl::StrFormat("P[%s, J] * Q[J, %s] -> R%s", tensor.row_dim,
                                             tensor.col_dim, ShardingOf(problem, input));
    const TestMatrix p = SmallIntegers(tensor.rows, 17, seed),
                     q = SmallIntegers(17, tensor.cols, seed + 1);
    const Problem product =
        ParseProblem(spec, problem.mesh, {p.rows, q.cols, p.cols}, DType::kF32).value();
    ASSERT_NO_FATAL_FAILURE(Put("P", product, kA, p));
    ASSERT_NO_FATAL_FAILURE(Put("Q", product, kB, q));
    const Result<JobInfo> job = client_->Run({.spec = spec,
                                              .tensors = {{"P", "P"}, {"Q", "Q"}, {"R", name}},
                                              .mesh = problem.mesh.ToString()});
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    for (const char* one : {"P", "Q"}) EXPECT_TRUE(client_->Delete(one).ok());
    *whole = MatrixProduct(p, q);
  }

  static bool HasOpenInput(const Problem& problem) {
    const std::vector<Operand> inputs = problem.Inputs();
    return std::any_of(inputs.begin(), inputs.end(), [&](Operand input) {
      return OpenParts(problem.mesh, problem.tensors[input]) > 1;
    });
  }

  // Reads the result of a job. If its sum is open, another job closes it.
  void Get(std::string name, const Problem& problem, TestMatrix* whole) {
    const Tensor& tensor = problem.tensors[ResultOf(problem)];
    const bool open = OpenParts(problem.mesh, tensor) > 1;
    *whole = {tensor.rows, tensor.cols, std::vector<float>(tensor.rows * tensor.cols, -1)};
    if (open) {
      const Result<TensorInfo> refused =
          client_->Get(name, whole->values.data(), whole->values.size() * sizeof(float));
      EXPECT_EQ(refused.status().code(), StatusCode::kFailedPrecondition)
          << refused.status().ToString();
      Tensor closed = tensor;
      closed.name = "closed";
      closed.sharding = {};
      const Result<JobInfo> job =
          client_->Run({.spec = absl::StrCat(ToString(problem.mesh, tensor), " -> ",
                                             ToString(problem.mesh, closed)),
                        .tensors = {{tensor.name, name}, {"closed", "closed"}},
                        .mesh = problem.mesh.ToString()});
      ASSERT_TRUE(job.ok()) << job.status().ToString();
      name = "closed";
    }
    const Result<TensorInfo> read =
        client_->Get(name, whole->values.data(), whole->values.size() * sizeof(float));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    if (open) EXPECT_TRUE(client_->Delete(name).ok());
  }

  World world_;
  std::unique_ptr<Client> client_;
  int number_ = 0;  // of the job
};

TEST_P(Shardings, AreExact) {
  std::mt19937_64 random(TestSeed() + GetParam());
  const auto below = [&](int bound) { return static_cast<int64_t>(random() % bound); };
  for (const test::ShardedCase& sharded : test::ShardedCases()) {
    if (kSanitized && below(4) != 0) continue;
    if (absl::StrContains(sharded.spec, ':')) continue;  // all tensors here are f32
    const Shape shape = {1 + below(60), 1 + below(40), 1 + below(70)};
    // The daemon decides if it can run an option, because its nodes have other ranks.
    // To list all combinations of options takes a sanitized program longer than to run the jobs.
    std::vector<test::ShardedPlan> plans = test::PlansOf({sharded, shape}, !kSanitized);
    std::shuffle(plans.begin(), plans.end(), random);
    plans.resize(std::min<size_t>(plans.size(), kPlans));
    for (const test::ShardedPlan& plan : plans) {
      SCOPED_TRACE(plan.name);
      const Problem& problem = plan.problem;
      const Operand result = ResultOf(problem);
      // Sums of open inputs, which are products themselves, are too large to be exact in f16.
      if (plan.options.partials == DType::kF16 && HasProduct(problem) && HasOpenInput(problem))
        continue;
      const std::string id = absl::StrCat(number_++);
      std::map<std::string, std::string> tensors;
      for (const Tensor& tensor : problem.tensors) tensors[tensor.name] = tensor.name + id;
      std::vector<TestMatrix> inputs;
      for (const Operand input : problem.Inputs())
        ASSERT_NO_FATAL_FAILURE(Make(tensors[problem.tensors[input].name], problem, input, random(),
                                     &inputs.emplace_back()));
      const PlanOptions& options = plan.options;
      const Result<JobInfo> job = client_->Run(
          {.spec = sharded.spec,
           .tensors = tensors,
           .mesh = sharded.mesh,
           .algorithm = options.algorithm,
           .split = options.split,
           .chunk_count = options.chunks,
           .k_chunk_count = options.k_chunks,
           .workspace_shard_count = options.workspace_shards,
           .carried = options.carried,
           .partials = options.partials == DType::kF16 ? ElementType::kF16 : ElementType::kF32,
           .repeat_count = number_ % 2 == 0 ? 5 : 1});
      if (!job.ok() && options.algorithm == "peer" && GetParam() > 1) {
        EXPECT_EQ(job.status().code(), StatusCode::kInvalidArgument) << job.status().ToString();
        continue;
      }
      ASSERT_TRUE(job.ok()) << job.status().ToString();
      EXPECT_EQ(job->carried, options.carried);
      EXPECT_EQ(job->split, options.split);
      TestMatrix got;
      ASSERT_NO_FATAL_FAILURE(Get(tensors[problem.tensors[result].name], problem, &got));
      ASSERT_TRUE(
          SameBits(got, HasProduct(problem) ? MatrixProduct(inputs[0], inputs[1]) : inputs[0]));
      for (const auto& [operand, name] : tensors) EXPECT_TRUE(client_->Delete(name).ok());
    }
  }
}

// Blocks of C that begin within short rows, in large messages, to a C that was never written.
TEST_P(Shardings, NarrowBlocksAreExact) {
  const TestMatrix a = SmallIntegers(20000, 8, 1), b = SmallIntegers(8, 24, 2),
                   c = MatrixProduct(a, b);
  const Mesh mesh = ParseMesh("x=4").value();
  for (const char* algorithm : {"serial", "ring", "direct"}) {
    SCOPED_TRACE(algorithm);
    const std::string spec = "A[M_x, K] * B[K, N_x] -> C[M, N]", id = algorithm;
    const Problem problem = ParseProblem(spec, mesh, {a.rows, b.cols, a.cols}, DType::kF32).value();
    ASSERT_NO_FATAL_FAILURE(Put("A" + id, problem, kA, a));
    ASSERT_NO_FATAL_FAILURE(Put("B" + id, problem, kB, b));
    const Result<JobInfo> job = client_->Run({.spec = spec,
                                              .a = "A" + id,
                                              .b = "B" + id,
                                              .c = "C" + id,
                                              .mesh = "x=4",
                                              .algorithm = algorithm,
                                              .split = "N=x"});
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    TestMatrix got{c.rows, c.cols, std::vector<float>(c.values.size(), -1)};
    const Result<TensorInfo> read =
        client_->Get("C" + id, got.values.data(), got.values.size() * sizeof(float));
    ASSERT_TRUE(read.ok()) << read.status().ToString();
    ASSERT_TRUE(SameBits(got, c));
  }
}

INSTANTIATE_TEST_SUITE_P(Nodes, Shardings, ::testing::Range(1, 5));

}  // namespace
}  // namespace agmm
