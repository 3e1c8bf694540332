// Times a warm 64x64x64 job through a running world, submit to done, beside a bare call that takes the same way.
//
//   submit_bench ENDPOINT [JOBS]
//
// Prints {"jobs", "rpc_us": {"p50","p99"}, "submit_done_us": {"p50","p99"}}. The bare call is a WaitJob for a job that has
// ended: client to daemon, to the sequencer, and back.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/connection.h"
#include "client/npy.h"
#include "client/tensor_transfer.h"
#include "kernels/base/clock.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

constexpr int64_t kSize = 64;
constexpr int kWarmUp = 100;

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

absl::Status Run(const std::string& endpoint_text, int jobs) {
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
  absl::PrintF("{\"jobs\": %d, \"rpc_us\": %s, \"submit_done_us\": %s}\n", jobs, Percentiles(rpc_us),
               Percentiles(job_us));
  return absl::OkStatus();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int jobs = 2000;
  if (argc < 2 || argc > 3 || (argc == 3 && (!absl::SimpleAtoi(argv[2], &jobs) || jobs < 1))) {
    absl::FPrintF(stderr, "usage: submit_bench ENDPOINT [JOBS]\n");
    return 2;
  }
  const absl::Status status = agmm::Run(argv[1], jobs);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "submit_bench: %s\n", std::string(status.message()));
  return 1;
}
