// What a daemon under a limit of memory keeps of the work that its clients gave it.
#include <memory>
#include <string>
#include <tuple>

#include "client/agmm.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"

namespace agmm {
namespace {

constexpr double kMiB = 1 << 20;

WorldOptions Limited(int devices) {
  WorldOptions options;
  options.devices = devices;
  // A sanitizer takes more for itself.
  if (!kSanitized) options.hosts = {{{"/usr/bin/prlimit", "--data=2147483648"}, "127.0.0.1"}};
  return options;
}

TEST(Memory, ThreeHundredJobsOfALargePlanLeaveWhatTheirHistoryCounts) {
  World world(Limited(8));
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  Result<std::unique_ptr<Client>> connected = Client::Connect({.endpoint = world.endpoint(0)});
  ASSERT_TRUE(connected.ok()) << connected.status().ToString();
  Client& client = **connected;
  const TestMatrix a = SmallIntegers(512, 16, 1), b = SmallIntegers(16, 8, 2);
  for (const auto& [name, matrix, sharding] :
       {std::tuple("A", &a, "[M_x, K]"), std::tuple("B", &b, "[K, N_x]")}) {
    ASSERT_TRUE(client
                    .Put(name, {.rows = matrix->rows, .cols = matrix->cols, .sharding = sharding},
                         matrix->values.data(), matrix->values.size() * sizeof(float))
                    .ok());
  }
  // Allocated bytes beside the history, which is bounded.
  double beside = 0;
  for (int job = 1; job <= 300; ++job) {
    const Result<JobInfo> done = client.Run({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                                             .a = "A",
                                             .b = "B",
                                             .c = "C",
                                             .algorithm = "peer",
                                             .chunk_count = 64});
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    if (job % 100 != 0) continue;
    const v1::GetStatusResponse status = world.Status(0);
    const double history = MetricOf(status, "job_history_bytes");
    const double now = MetricOf(status, "process_allocated_bytes") - history;
    if (job == 100) {
      beside = now;
      // About 7,700 steps a job, of 8 bytes each.
      EXPECT_GT(history, 100 * 7000 * 8);
    }
    EXPECT_LT(now, beside + 4 * kMiB) << "job " << job;
  }
}

}  // namespace
}  // namespace agmm
