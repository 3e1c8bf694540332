// Times jobs with known plans beside jobs of new shapes.
//
//   new_shapes_bench ENDPOINT [SIZE [ROUNDS]]
//
// A round submits 100 products at once, of SIZE x SIZE matrices except every tenth, which has a
// shape of its own: first with ten shapes that no job has had, and then all of them again, when
// every plan is known. Prints
// {"size", "jobs", "new_shapes", "new_us": {"median": [..], "last": [..]}, "known_us": {..}}: for
// each round, the times from the submission to the end of the 90 jobs whose plan is known in both,
// and of the last of them.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/agmm.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

constexpr int kJobs = 100, kNewShapes = 10;
// The difference between the lengths of K of two shapes.
constexpr int64_t kStep = 16;

template <typename T>
T OrFail(Result<T> result) {
  if (!result.ok()) FailWith(result.status());
  return *std::move(result);
}

// Times in us from the submission of all jobs to the end of each, by job.
std::vector<double> RunAtOnce(Client& client, const std::vector<JobRequest>& jobs) {
  std::mutex mutex;
  std::condition_variable ended;
  size_t count = 0;
  std::vector<double> us(jobs.size());
  const int64_t begin_ns = MonotonicNanos();
  for (size_t i = 0; i < jobs.size(); ++i) {
    client.Run(jobs[i], [&, i](const Result<JobInfo>& job) {
      if (!job.ok()) FailWith(job.status());
      std::lock_guard lock(mutex);
      us[i] = static_cast<double>(MonotonicNanos() - begin_ns) * 1e-3;
      if (++count == jobs.size()) ended.notify_one();
    });
  }
  std::unique_lock lock(mutex);
  ended.wait(lock, [&] { return count == jobs.size(); });
  return us;
}

class Bench {
 public:
  Bench(Client& client, int64_t size)
      : client_(client),
        size_(size),
        mesh_(absl::StrCat("x=", OrFail(client.World()).devices.size())),
        prefix_(absl::StrCat("new_shapes_bench.", getpid(), ".")) {}

  // Makes the operands of a product, and a place for C.
  JobRequest Make(const std::string& name, int64_t k) {
    const JobRequest job{.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                         .a = absl::StrCat(prefix_, name, "A"),
                         .b = absl::StrCat(prefix_, name, "B"),
                         .c = absl::StrCat(prefix_, name, "C"),
                         .mesh = mesh_};
    for (const auto& [tensor, rows, columns, sharding] : {std::tuple(job.a, size_, k, "[M_x, K]"),
                                                          {job.b, k, size_, "[K, N_x]"},
                                                          {job.c, size_, size_, "[M, N_x]"}}) {
      OrFail(client_.Fill(tensor,
                          {.rows = rows, .cols = columns, .sharding = sharding, .mesh = mesh_},
                          {.kind = Filling::Kind::kIntegers}));
    }
    return job;
  }
  void Remove(const JobRequest& job) {
    for (const std::string& tensor : {job.a, job.b, job.c})
      if (const Status gone = client_.Delete(tensor); !gone.ok()) FailWith(gone);
  }

 private:
  Client& client_;
  const int64_t size_;
  const std::string mesh_, prefix_;
};

// The times of the jobs whose plan is known in both passes, by round.
struct Times {
  std::vector<double> median_us, last_us;

  void Add(const std::vector<double>& of_jobs) {
    std::vector<double> us;
    for (size_t i = 0; i < of_jobs.size(); ++i)
      if (i % (kJobs / kNewShapes) != 0) us.push_back(of_jobs[i]);
    std::sort(us.begin(), us.end());
    median_us.push_back(us[us.size() / 2]);
    last_us.push_back(us.back());
  }
  std::string Json() const {
    const auto list = [](const std::vector<double>& us) {
      return absl::StrJoin(
          us, ", ", [](std::string* out, double one) { absl::StrAppendFormat(out, "%.1f", one); });
    };
    return absl::StrFormat("{\"median\": [%s], \"last\": [%s]}", list(median_us), list(last_us));
  }
};

void Run(const std::string& endpoint, int64_t size, int rounds) {
  const auto client = OrFail(Client::Connect({.endpoint = endpoint}));
  Bench bench(*client, size);
  const JobRequest usual = bench.Make("known", size);
  RunAtOnce(*client, std::vector<JobRequest>(kJobs, usual));  // plans, connects and packs
  Times with_new, all_known;
  for (int round = 0; round < rounds; ++round) {
    std::vector<JobRequest> jobs(kJobs, usual), others;
    for (int i = 0; i < kNewShapes; ++i) {
      const int64_t k = size + kStep * (1 + round * kNewShapes + i);
      others.push_back(bench.Make(absl::StrCat(round, ".", i), k));
      jobs[i * (kJobs / kNewShapes)] = others.back();
    }
    with_new.Add(RunAtOnce(*client, jobs));
    all_known.Add(RunAtOnce(*client, jobs));
    for (const JobRequest& other : others) bench.Remove(other);
  }
  bench.Remove(usual);
  absl::PrintF(
      "{\"size\": %d, \"jobs\": %d, \"new_shapes\": %d, \"new_us\": %s, \"known_us\": %s}\n", size,
      kJobs, kNewShapes, with_new.Json(), all_known.Json());
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int size = 256, rounds = 9;
  if (argc < 2 || argc > 4 || (argc > 2 && (!absl::SimpleAtoi(argv[2], &size) || size < 1)) ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &rounds) || rounds < 1))) {
    absl::FPrintF(stderr, "usage: new_shapes_bench ENDPOINT [SIZE [ROUNDS]]\n");
    return 2;
  }
  agmm::Run(argv[1], size, rounds);
}
