// Times warm 64x64x64 jobs through a running world: one after the other, submit to done, beside a bare call that
// takes the same way; then with 64 of them in flight.
//
//   submit_bench ENDPOINT [JOBS [PIPELINED_JOBS]]
//
// Prints {"jobs", "rpc_us": {"p50","p99"}, "submit_done_us": {"p50","p99"},
//         "pipelined": {"jobs", "in_flight", "jobs_a_second", "lost"}}. The bare call is a WaitJob for a job that has
// ended: client to daemon, to the sequencer, and back. A job is lost unless it succeeded under an id of its own.
#include <algorithm>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/tensor_transfer.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

constexpr int64_t kSize = 64;
constexpr int kWarmUp = 100;
constexpr int kInFlight = 64;

absl::StatusOr<v1::Tensor> MakeTensor(Connection& connection, const std::string& session,
                                      const std::string& sharding, int ranks) {
  v1::CreateTensorRequest request;
  request.set_session_id(session);
  v1::TensorSpec* spec = request.mutable_spec();
  spec->set_rows(kSize);
  spec->set_cols(kSize);
  spec->set_dtype(v1::DTYPE_F32);
  spec->set_sharding(sharding);
  v1::MeshAxis* axis = spec->mutable_mesh()->add_axes();
  axis->set_name("x");
  axis->set_size(ranks);
  return connection.CreateTensor(request);
}

absl::Status Fill(Connection& connection, const v1::Tensor& tensor) {
  v1::BeginUpload begin;
  begin.set_tensor_id(tensor.tensor_id());
  const ReadFn ones = [](int64_t, int64_t size, char* out) {
    std::fill_n(reinterpret_cast<float*>(out), size / sizeof(float), 1.0f);
    return absl::OkStatus();
  };
  return Upload(&connection, begin, kSize * kSize * sizeof(float), ones, {[](int64_t) {}}).status();
}

std::string Percentiles(std::vector<double> us) {
  std::sort(us.begin(), us.end());
  auto at = [&](double share) { return us[static_cast<size_t>(share * (us.size() - 1))]; };
  return absl::StrFormat("{\"p50\": %.1f, \"p99\": %.1f}", at(0.5), at(0.99));
}

// One client that always has kInFlight jobs on their way: each is submitted, awaited, and followed by the next.
class Pipeline {
 public:
  Pipeline(Connection& connection, const v1::SubmitJobRequest& request, int jobs)
      : connection_(connection), request_(request), jobs_(jobs) {}

  // Jobs a second.
  double Run() {
    const int64_t begin_ns = MonotonicNanos();
    for (int i = 0; i < std::min(kInFlight, jobs_); ++i) Start(std::make_shared<Lane>());
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return ended_ == jobs_; });
    return jobs_ / ((MonotonicNanos() - begin_ns) * 1e-9);
  }
  int lost() const { return jobs_ - static_cast<int>(succeeded_.size()); }

 private:
  struct Lane {
    std::unique_ptr<grpc::ClientContext> context;
    v1::SubmitJobRequest submit;
    v1::WaitJobRequest wait;
    v1::Job job;
  };

  void Renew(Lane& lane) {
    lane.context = std::make_unique<grpc::ClientContext>();
    lane.context->set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  }

  void Start(const std::shared_ptr<Lane>& lane) {
    {
      std::lock_guard lock(mutex_);
      if (started_ == jobs_) return;
      lane->submit = request_;
      lane->submit.set_request_id(absl::StrCat(request_.session_id(), "-pipelined-", ++started_));
    }
    Renew(*lane);
    connection_.jobs()->async()->SubmitJob(lane->context.get(), &lane->submit, &lane->job,
                                           [this, lane](const grpc::Status& status) {
                                             if (!status.ok()) return End(lane, false);
                                             Await(lane);
                                           });
  }
  void Await(const std::shared_ptr<Lane>& lane) {
    Renew(*lane);
    lane->wait.set_job_id(lane->job.job_id());
    connection_.jobs()->async()->WaitJob(lane->context.get(), &lane->wait, &lane->job,
                                         [this, lane](const grpc::Status& status) {
                                           End(lane, status.ok() && lane->job.state() == v1::Job::STATE_SUCCEEDED);
                                         });
  }
  void End(const std::shared_ptr<Lane>& lane, bool succeeded) {
    const uint64_t id = lane->job.job_id();
    Start(lane);
    std::lock_guard lock(mutex_);
    if (succeeded) succeeded_.insert(id);
    ++ended_;
    changed_.notify_one();
  }

  Connection& connection_;
  const v1::SubmitJobRequest request_;
  const int jobs_;
  std::mutex mutex_;
  std::condition_variable changed_;
  int started_ = 0, ended_ = 0;
  std::set<uint64_t> succeeded_;
};

absl::Status Run(const std::string& endpoint_text, int jobs, int pipelined_jobs) {
  AGMM_ASSIGN_OR_RETURN(const Endpoint endpoint, ResolveEndpoint(endpoint_text));
  Connection connection(endpoint);
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse world, connection.GetStatus());
  int ranks = 0;
  for (const v1::NodeStatus& node : world.nodes()) ranks += node.devices_size();
  AGMM_ASSIGN_OR_RETURN(const std::string session, connection.OpenSession());
  v1::SubmitJobRequest request;
  request.set_spec(kDefaultSpec);
  request.set_session_id(session);
  for (const char* sharding : {"[M_x, K]", "[K, N_x]", "[M, N_x]"}) {
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, MakeTensor(connection, session, sharding, ranks));
    if (request.tensors_size() < 2) AGMM_RETURN_IF_ERROR(Fill(connection, tensor));
    request.add_tensors()->set_tensor_id(tensor.tensor_id());
    *request.mutable_mesh() = tensor.spec().mesh();
  }
  std::vector<double> rpc_us, job_us;
  for (int i = 0; i < kWarmUp + jobs; ++i) {
    request.set_request_id(absl::StrCat(session, "-", i));
    const int64_t begin_ns = MonotonicNanos();
    AGMM_ASSIGN_OR_RETURN(const v1::Job submitted, connection.SubmitJob(request));
    AGMM_ASSIGN_OR_RETURN(const v1::Job job,
                          connection.WaitJob(IdOf(submitted), absl::Now() + absl::Seconds(60)));
    const int64_t end_ns = MonotonicNanos();
    if (job.state() != v1::Job::STATE_SUCCEEDED) return FromProto(job.error());
    AGMM_RETURN_IF_ERROR(
        connection.WaitJob(IdOf(job), absl::Now() + absl::Seconds(60)).status());
    const int64_t waited_ns = MonotonicNanos();
    if (i < kWarmUp) continue;
    job_us.push_back((end_ns - begin_ns) / 1e3);
    rpc_us.push_back((waited_ns - end_ns) / 1e3);
  }
  Pipeline pipeline(connection, request, pipelined_jobs);
  const double rate = pipeline.Run();
  absl::PrintF(
      "{\"jobs\": %d, \"rpc_us\": %s, \"submit_done_us\": %s, \"pipelined\": {\"jobs\": %d, \"in_flight\": %d, "
      "\"jobs_a_second\": %.1f, \"lost\": %d}}\n",
      jobs, Percentiles(rpc_us), Percentiles(job_us), pipelined_jobs, kInFlight, rate, pipeline.lost());
  return absl::OkStatus();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int jobs = 2000, pipelined = 20000;
  if (argc < 2 || argc > 4 || (argc > 2 && (!absl::SimpleAtoi(argv[2], &jobs) || jobs < 1)) ||
      (argc > 3 && (!absl::SimpleAtoi(argv[3], &pipelined) || pipelined < 1))) {
    absl::FPrintF(stderr, "usage: submit_bench ENDPOINT [JOBS [PIPELINED_JOBS]]\n");
    return 2;
  }
  const absl::Status status = agmm::Run(argv[1], jobs, pipelined);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "submit_bench: %s\n", std::string(status.message()));
  return 1;
}
