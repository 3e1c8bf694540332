// A long-running application of agmm: runs one job after the other with the library.
//
//   agmm_jobs ENDPOINT FOLDER, with commands as in contender_rank.h, of rank 0
//
// * run ALGORITHM COUNT PRODUCTS [SPEC]: COUNT jobs of PRODUCTS epochs each. Answers COUNT times a
//   product, COUNT times of the gather alone (of serial jobs; 0 elsewhere), and COUNT times from
//   the first begin on any rank to the last one, in microseconds.
//   ALGORITHM: NAME, NAME:CHUNKS or NAME:CHUNKS:K_CHUNKS. SPEC: A[M_x, K] * B[K, N_x] -> C[M, N_x]
//   if left out. Operands have names of one letter; A is tensor bench.A.
//
// A job's time runs from the first begin to the last end on any rank, as the ranks report them; the
// hosts share the machine's clock. It is a little longer than T in `agmmctl job show`, the longest
// epoch of one rank, because the launch reaches some ranks late.
#include <cmath>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "client/connect/endpoint.h"
#include "kernels/base/status.h"
#include "tests/bench/contender_rank.h"

namespace agmm::bench {
namespace {

struct Times {
  double job_us, gather_us, launch_us;
};

class Application {
 public:
  Application(const std::string& text, const Endpoint& endpoint)
      : client_(Connect(text)),
        connection_(endpoint),
        mesh_(absl::StrFormat("x=%d", WorldSize())) {}

  Times Run(const std::string& algorithm, int products, const std::string& spec) {
    const std::vector<std::string> asked = absl::StrSplit(algorithm, ':');
    JobRequest request = {.spec = spec,
                          .mesh = mesh_,
                          .algorithm = asked[0],
                          .chunk_count = asked.size() > 1 ? std::stoi(asked[1]) : 0,
                          .k_chunk_count = asked.size() > 2 ? std::stoi(asked[2]) : 0,
                          .repeat_count = products};
    for (size_t at = spec.find('['); at != spec.npos && at > 0; at = spec.find('[', at + 1))
      request.tensors[spec.substr(at - 1, 1)] = "bench." + spec.substr(at - 1, 1);
    const Result<JobInfo> ran = client_->Run(request);
    if (!ran.ok()) throw std::runtime_error(ran.status().message());
    const absl::StatusOr<v1::Job> job = connection_.GetJob(ran->id);
    if (!job.ok()) throw std::runtime_error(std::string(job.status().message()));
    double begin = INFINITY, last_begin = 0, end = 0;
    for (const v1::RankReport& report : job->ranks()) {
      if (report.epoch_us().empty()) throw std::runtime_error("a rank did not report its epochs");
      begin = std::min(begin, report.start_unix_us());
      last_begin = std::max(last_begin, report.start_unix_us());
      end = std::max(end, report.epoch_start_unix_us() + *report.epoch_us().rbegin());
    }
    return {(end - begin) / products, algorithm == "serial" ? ran->figures.gather_us : 0,
            last_begin - begin};
  }

 private:
  static std::unique_ptr<Client> Connect(const std::string& text) {
    auto client = Client::Connect({.endpoint = text});
    if (!client.ok()) throw std::runtime_error(client.status().message());
    return *std::move(client);
  }
  size_t WorldSize() {
    const auto world = client_->World();
    if (!world.ok()) throw std::runtime_error(world.status().message());
    return world->devices.size();
  }

  const std::unique_ptr<Client> client_;
  Connection connection_;  // each rank's own times, which the library does not report
  const std::string mesh_;
};

std::string Answer(Application& application, const Words& words) {
  if (words.at(0) != "run") throw std::invalid_argument("unknown command " + words[0]);
  std::string jobs, gathers, launches, spec;
  for (size_t i = 4; i < words.size(); ++i) absl::StrAppend(&spec, words[i], " ");
  if (spec.empty()) spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";
  for (int i = 0; i < std::stoi(words.at(2)); ++i) {
    const Times times = application.Run(words.at(1), std::stoi(words.at(3)), spec);
    absl::StrAppendFormat(&jobs, "%.1f ", times.job_us);
    absl::StrAppendFormat(&gathers, "%.1f ", times.gather_us);
    absl::StrAppendFormat(&launches, "%.1f ", times.launch_us);
  }
  return jobs + gathers + launches;
}

}  // namespace
}  // namespace agmm::bench

int main(int argc, char** argv) try {
  const absl::StatusOr<agmm::Endpoint> endpoint = agmm::ResolveEndpoint(argv[1]);
  if (!endpoint.ok()) throw std::runtime_error(std::string(endpoint.status().message()));
  agmm::bench::Application application(argv[1], *endpoint);
  agmm::bench::Serve(argv[2], 0, [&](const agmm::bench::Words& words) {
    return agmm::bench::Answer(application, words);
  });
} catch (const std::exception& error) {
  std::cerr << error.what() << "\n";
  return 1;
}
