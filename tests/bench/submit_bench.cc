// Times warm 64x64x64 jobs through a running world: one after the other, from submit to done,
// compared with a bare call on the same path; then with 64 of them in flight.
//
//   submit_bench ENDPOINT [JOBS [PIPELINED_JOBS [BY_CALLS]]]
//
// Prints {"jobs", "rpc_us": {"p50","p99"}, "run_us": {...}, "submit_wait_us": {...},
//         "pipelined": {"jobs", "in_flight", "jobs_a_second", "lost"}, "pipelined_calls": {...},
//         "pipelined_bare": {...}}.
// The bare call is a WaitJob for a job that has ended: client to daemon, to the sequencer, and
// back. A job runs by Client::Run, and for comparison by two calls, SubmitJob and WaitJob. A job is
// lost unless it succeeded under an id of its own. pipelined_bare is the most that one call a job
// could reach: GetTensor calls, which go the same way, carry less and start nothing.
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/grpc_call.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

constexpr int64_t kSize = 64;
constexpr int kWarmUp = 100;
constexpr int kInFlight = 64;

std::string Percentiles(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  auto at = [&](double share) { return us[static_cast<size_t>(share * (us.size() - 1))]; };
  return absl::StrFormat("{\"p50\": %.1f, \"p99\": %.1f}", at(0.5), at(0.99));
}

// One client that always has kInFlight jobs in flight: the end of each starts the next.
class Pipeline {
 public:
  explicit Pipeline(int jobs) : jobs_(jobs) {}
  virtual ~Pipeline() = default;

  std::string Measure() {
    const int64_t begin_ns = MonotonicNanos();
    for (int i = 0; i < std::min(kInFlight, jobs_); ++i) Next();
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ == jobs_; });
    return absl::StrFormat(
        "{\"jobs\": %d, \"in_flight\": %d, \"jobs_a_second\": %.1f, \"lost\": %d}", jobs_,
        kInFlight, jobs_ / ((MonotonicNanos() - begin_ns) * 1e-9),
        jobs_ - static_cast<int>(succeeded_.size()));
  }

 protected:
  // Begins job `number`; End is called when it has ended.
  virtual void Begin(int number) = 0;
  // `id` is that of a job that succeeded, else 0.
  void End(uint64_t id) {
    Next();
    std::lock_guard lock(mutex_);
    if (id != 0) succeeded_.insert(id);
    if (++ended_ == jobs_) changed_.notify_one();
  }

 private:
  void Next() {
    int number;
    {
      std::lock_guard lock(mutex_);
      if (started_ == jobs_) return;
      number = ++started_;
    }
    Begin(number);
  }

  const int jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int started_ = 0, ended_ = 0;
  std::set<uint64_t> succeeded_;
};

class RunPipeline final : public Pipeline {
 public:
  RunPipeline(Client& client, const JobRequest& request, int jobs)
      : Pipeline(jobs), client_(client), request_(request) {}

 private:
  void Begin(int) override {
    client_.Run(request_, [this](const Result<JobInfo>& job) { End(job.ok() ? job->id : 0); });
  }

  Client& client_;
  const JobRequest request_;
};

class CallPipeline final : public Pipeline {
 public:
  CallPipeline(Connection& connection, const v1::SubmitJobRequest& request, int jobs)
      : Pipeline(jobs), connection_(connection), request_(request) {}

 private:
  struct Lane {
    std::unique_ptr<grpc::ClientContext> context;
    v1::SubmitJobRequest submit;
    v1::WaitJobRequest wait;
    v1::Job job;
  };

  void Renew(Lane& lane) {
    lane.context = std::make_unique<grpc::ClientContext>();
    lane.context->set_deadline(ToGrpc(Deadline::After(absl::Seconds(60))));
  }

  void Begin(int number) override {
    const auto lane = std::make_shared<Lane>();
    lane->submit = request_;
    lane->submit.set_request_id(absl::StrCat(request_.request_id(), "-pipelined-", number));
    Renew(*lane);
    connection_.jobs()->async()->SubmitJob(
        lane->context.get(), &lane->submit, &lane->job,
        [this, lane](const grpc::Status& status) { status.ok() ? Await(lane) : End(0); });
  }
  void Await(const std::shared_ptr<Lane>& lane) {
    Renew(*lane);
    lane->wait.set_job_id(lane->job.job_id());
    connection_.jobs()->async()->WaitJob(
        lane->context.get(), &lane->wait, &lane->job, [this, lane](const grpc::Status& status) {
          End(status.ok() && lane->job.state() == v1::Job::STATE_SUCCEEDED ? lane->job.job_id()
                                                                           : 0);
        });
  }

  Connection& connection_;
  const v1::SubmitJobRequest request_;
};

class BarePipeline final : public Pipeline {
 public:
  BarePipeline(Connection& connection, const std::string& tensor, int calls)
      : Pipeline(calls), connection_(connection) {
    request_.mutable_tensor()->set_name(tensor);
  }

 private:
  struct Lane {
    grpc::ClientContext context;
    v1::Tensor tensor;
  };

  void Begin(int number) override {
    const auto lane = std::make_shared<Lane>();
    lane->context.set_deadline(ToGrpc(Deadline::After(absl::Seconds(60))));
    connection_.tensors()->async()->GetTensor(
        &lane->context, &request_, &lane->tensor,
        [this, lane, number](const grpc::Status& status) { End(status.ok() ? number : 0); });
  }

  Connection& connection_;
  v1::GetTensorRequest request_;
};

absl::Status ToAbsl(const Status& status) {
  return absl::Status(static_cast<absl::StatusCode>(status.code()), status.message());
}

absl::Status Run(const std::string& endpoint_text, int jobs, int pipelined_jobs,
                 int by_calls_jobs) {
  AGMM_ASSIGN_OR_RETURN(const Endpoint endpoint, ResolveEndpoint(endpoint_text));
  Connection connection(endpoint);
  auto connected = Client::Connect({.endpoint = endpoint_text});
  if (!connected.ok()) return ToAbsl(connected.status());
  Client& client = **connected;
  auto world = client.World();
  if (!world.ok()) return ToAbsl(world.status());
  const std::string mesh = absl::StrCat("x=", world->devices.size());
  const std::string prefix = absl::StrCat("submit_bench.", getpid(), ".");
  const std::vector<float> ones(kSize * kSize, 1.0f);
  JobRequest job{
      .spec = kDefaultSpec, .a = prefix + "A", .b = prefix + "B", .c = prefix + "C", .mesh = mesh};
  for (const auto& [name, sharding] :
       {std::pair(job.a, "[M_x, K]"), std::pair(job.b, "[K, N_x]")}) {
    const auto put =
        client.Put(name, {.rows = kSize, .cols = kSize, .sharding = sharding, .mesh = mesh},
                   ones.data(), kSize * kSize * sizeof(float));
    if (!put.ok()) return ToAbsl(put.status());
  }
  v1::SubmitJobRequest request;
  request.set_spec(job.spec);
  AGMM_ASSIGN_OR_RETURN(*request.mutable_mesh(), MeshFromText(mesh, {}));
  for (const std::string& name : {job.a, job.b, job.c}) request.add_tensors()->set_name(name);
  std::vector<double> rpc_us, run_us, calls_us;
  for (int i = 0; i < kWarmUp + jobs; ++i) {
    const int64_t begin_ns = MonotonicNanos();
    const auto ran = client.Run(job);
    const int64_t ran_ns = MonotonicNanos();
    if (!ran.ok()) return ToAbsl(ran.status());
    request.set_request_id(absl::StrCat(prefix, i));
    const int64_t submitted_ns = MonotonicNanos();
    AGMM_ASSIGN_OR_RETURN(const v1::Job submitted, connection.SubmitJob(request));
    AGMM_ASSIGN_OR_RETURN(const v1::Job ended,
                          connection.WaitJob(IdOf(submitted), Deadline::After(absl::Seconds(60))));
    const int64_t ended_ns = MonotonicNanos();
    if (ended.state() != v1::Job::STATE_SUCCEEDED) return FromProto(ended.error());
    AGMM_RETURN_IF_ERROR(
        connection.WaitJob(IdOf(ended), Deadline::After(absl::Seconds(60))).status());
    const int64_t waited_ns = MonotonicNanos();
    if (i < kWarmUp) continue;
    run_us.push_back((ran_ns - begin_ns) / 1e3);
    calls_us.push_back((ended_ns - submitted_ns) / 1e3);
    rpc_us.push_back((waited_ns - ended_ns) / 1e3);
  }
  RunPipeline by_run(client, job, pipelined_jobs);
  CallPipeline by_calls(connection, request, by_calls_jobs);
  BarePipeline bare(connection, job.a, pipelined_jobs);
  const std::string run = by_run.Measure(), calls = by_calls.Measure(), least = bare.Measure();
  absl::PrintF(
      "{\"jobs\": %d, \"rpc_us\": %s, \"run_us\": %s, \"submit_wait_us\": %s, \"pipelined\": %s, "
      "\"pipelined_calls\": %s, \"pipelined_bare\": %s}\n",
      jobs, Percentiles(rpc_us), Percentiles(run_us), Percentiles(calls_us), run, calls, least);
  for (const std::string& name : {job.a, job.b, job.c})
    if (const Status gone = client.Delete(name); !gone.ok()) return ToAbsl(gone);
  return absl::OkStatus();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int jobs = 2000, pipelined = 20000, by_calls = 5000;
  if (argc < 2 || argc > 5 || (argc > 2 && (!absl::SimpleAtoi(argv[2], &jobs) || jobs < 1)) ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &pipelined) || pipelined < 1)) ||
      (argc > 4 && (!absl::SimpleAtoi(argv[4], &by_calls) || by_calls < 1))) {
    absl::FPrintF(stderr, "usage: submit_bench ENDPOINT [JOBS [PIPELINED_JOBS [BY_CALLS]]]\n");
    return 2;
  }
  const absl::Status status = agmm::Run(argv[1], jobs, pipelined, by_calls);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "submit_bench: %s\n", std::string(status.message()));
  return 1;
}
