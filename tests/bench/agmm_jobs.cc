// An application of agmm that stays: submits one job of one epoch after the other and waits for
// each.
//   agmm_jobs ENDPOINT FOLDER     commands as in contender_rank.h, of rank 0
//     run ALGORITHM COUNT             bench.C = bench.A bench.B, COUNT times; answers COUNT times,
//     then COUNT times
//                                     of the gather alone (of serial jobs; 0 elsewhere),
//                                     microseconds
// A job's time is from its first begin on any rank, by the ranks' own reports, to its last end; the
// hosts share the machine's clock. That is a little more than the longest epoch of a rank, which is
// T in `agmmctl job show`: the ranks that the launch has reached late are waited for.
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/connection.h"
#include "client/endpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"
#include "tests/bench/contender_rank.h"

namespace agmm::bench {
namespace {

constexpr absl::Duration kJobBound = absl::Seconds(60);

struct Times {
  double job_us, gather_us;
};

class Client {
 public:
  explicit Client(const Endpoint& endpoint) : connection_(endpoint) {}

  absl::StatusOr<Times> Run(const std::string& algorithm) {
    v1::SubmitJobRequest request;
    request.set_request_id(absl::StrCat("bench-", absl::ToUnixNanos(absl::Now())));
    request.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
    for (const char* name : {"bench.A", "bench.B", "bench.C"})
      request.add_tensors()->set_name(name);
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor a, connection_.GetTensor(request.tensors(0)));
    *request.mutable_mesh() = a.spec().mesh();
    request.mutable_options()->set_algorithm(algorithm);
    AGMM_ASSIGN_OR_RETURN(const v1::Job submitted, connection_.SubmitJob(request));
    AGMM_ASSIGN_OR_RETURN(const v1::Job job,
                          connection_.WaitJob(submitted.job_id(), absl::Now() + kJobBound));
    if (job.state() != v1::Job::STATE_SUCCEEDED) return FromProto(job.error());
    double begin = INFINITY, end = 0;
    for (const v1::RankReport& report : job.ranks()) {
      if (report.epoch_us_size() != 1)
        return absl::InternalError("a rank did not report its epoch");
      begin = std::min(begin, report.epoch_start_unix_us());
      end = std::max(end, report.epoch_start_unix_us() + report.epoch_us(0));
    }
    return Times{end - begin, algorithm == "serial" ? job.figures().gather_us() : 0};
  }

 private:
  Connection connection_;
};

std::string Answer(Client& client, const Words& words) {
  if (words.at(0) != "run") throw std::invalid_argument("unknown command " + words[0]);
  std::string jobs, gathers;
  for (int i = 0; i < std::stoi(words.at(2)); ++i) {
    const absl::StatusOr<Times> times = client.Run(words[1]);
    if (!times.ok()) throw std::runtime_error(std::string(times.status().message()));
    absl::StrAppendFormat(&jobs, "%.1f ", times->job_us);
    absl::StrAppendFormat(&gathers, "%.1f ", times->gather_us);
  }
  return jobs + gathers;
}

}  // namespace
}  // namespace agmm::bench

int main(int argc, char** argv) {
  const absl::StatusOr<agmm::Endpoint> endpoint = agmm::ResolveEndpoint(argv[1]);
  if (!endpoint.ok()) {
    std::cerr << endpoint.status().message() << "\n";
    return 1;
  }
  agmm::bench::Client client(*endpoint);
  agmm::bench::Serve(argv[2], 0,
                     [&](const agmm::bench::Words& words) { return Answer(client, words); });
}
