// Times warm 64x64x64 jobs that are submitted while the world measures itself.
//
//   measuring_bench ENDPOINT [JOBS]
//
// Prints {"jobs", "usual_us": [..], "measuring_us": [..]}: the times from submit to end of jobs in
// an idle world, and of jobs each of which was submitted at a random moment of a measurement.
#include <unistd.h>

#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr int64_t kSize = 64;
constexpr int kWarmUp = 20;
// Longer than a probe takes, so that all of its stages and all probes have their turn.
constexpr int kMostWaitUs = 300'000;

template <typename T>
T OrFail(Result<T> result) {
  if (!result.ok()) FailWith(result.status());
  return *std::move(result);
}

double RunUs(Client& client, const JobRequest& job) {
  const int64_t begin_ns = MonotonicNanos();
  OrFail(client.Run(job));
  return static_cast<double>(MonotonicNanos() - begin_ns) * 1e-3;
}

// Requests a measurement unless one is due, and returns true while a probe is under way.
absl::StatusOr<bool> IsMeasuring(Connection& connection) {
  AGMM_ASSIGN_OR_RETURN(v1::MachineStatus status, connection.GetMachine());
  if (status.state() == v1::MachineStatus::STATE_IDLE) {
    AGMM_ASSIGN_OR_RETURN(status, connection.MeasureMachine());
  }
  return status.state() == v1::MachineStatus::STATE_MEASURING;
}

// Waits for a random moment of a measurement, between 0 and kMostWaitUs after a probe was seen.
absl::Status AwaitMoment(Connection& connection, absl::Duration wait) {
  for (bool waited = false;; waited = true) {
    bool measuring = false;
    while (!measuring) {
      AGMM_ASSIGN_OR_RETURN(measuring, IsMeasuring(connection));
      if (!measuring) absl::SleepFor(absl::Milliseconds(1));
    }
    if (waited) return absl::OkStatus();
    absl::SleepFor(wait);
  }
}

std::string List(const std::vector<double>& us) {
  return absl::StrJoin(
      us, ", ", [](std::string* out, double one) { absl::StrAppendFormat(out, "%.1f", one); });
}

absl::Status Run(const std::string& endpoint_text, int jobs) {
  const auto client = OrFail(Client::Connect({.endpoint = endpoint_text}));
  AGMM_ASSIGN_OR_RETURN(const Endpoint endpoint, ResolveEndpoint(endpoint_text));
  Connection connection(endpoint);
  const std::string mesh = absl::StrCat("x=", OrFail(client->World()).devices.size()),
                    prefix = absl::StrCat("measuring_bench.", getpid(), ".");
  const JobRequest job{.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                       .a = prefix + "A",
                       .b = prefix + "B",
                       .c = prefix + "C",
                       .mesh = mesh};
  for (const auto& [name, sharding] :
       {std::pair(job.a, "[M_x, K]"), std::pair(job.b, "[K, N_x]")}) {
    OrFail(
        client->Fill(name, {.rows = kSize, .cols = kSize, .sharding = sharding, .mesh = mesh}, {}));
  }
  std::vector<double> usual_us, measuring_us;
  for (int i = 0; i < kWarmUp; ++i) RunUs(*client, job);
  std::mt19937_64 random(1);
  const auto wait = [&] { return absl::Microseconds(random() % kMostWaitUs); };
  for (int i = 0; i < jobs; ++i) {
    absl::SleepFor(wait());
    usual_us.push_back(RunUs(*client, job));
  }
  for (int i = 0; i < jobs; ++i) {
    AGMM_RETURN_IF_ERROR(AwaitMoment(connection, wait()));
    measuring_us.push_back(RunUs(*client, job));
  }
  absl::PrintF("{\"jobs\": %d, \"usual_us\": [%s], \"measuring_us\": [%s]}\n", jobs, List(usual_us),
               List(measuring_us));
  for (const std::string& name : {job.a, job.b, job.c})
    if (const Status gone = client->Delete(name); !gone.ok()) FailWith(gone);
  return absl::OkStatus();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int jobs = 200;
  if (argc < 2 || argc > 3 || (argc > 2 && (!absl::SimpleAtoi(argv[2], &jobs) || jobs < 1))) {
    absl::FPrintF(stderr, "usage: measuring_bench ENDPOINT [JOBS]\n");
    return 2;
  }
  const absl::Status status = agmm::Run(argv[1], jobs);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "measuring_bench: %s\n", std::string(status.message()));
  return 1;
}
