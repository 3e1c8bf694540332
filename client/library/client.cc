#include <future>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/connect/readable.h"
#include "client/library/client_state.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

std::string NewRequestId() { return RandomHex(kIdBytes); }

v1::TensorRef RefTo(const std::string& name) {
  v1::TensorRef ref;
  ref.set_name(name);
  return ref;
}

absl::Duration JobTimeout(const JobRequest& request) {
  return ToTimeout(request.timeout, absl::ToChronoMilliseconds(kDefaultJobTimeout));
}

absl::Duration TimeoutOf(const google::protobuf::Duration& wire) {
  const absl::Duration timeout = FromProto(wire);
  return timeout > absl::ZeroDuration() ? timeout : kDefaultJobTimeout;
}

}  // namespace

Client::Client(std::shared_ptr<ClientState> state) : state_(std::move(state)) {}

Client::~Client() { state_->Close(); }

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  absl::StatusOr<Endpoint> endpoint = ResolveEndpoint(options.endpoint);
  if (!endpoint.ok()) return ToPublic(endpoint.status());
  if (Forked()) return ForkedError();
  for (const auto& [name, value] : {std::pair{"call_timeout", options.call_timeout},
                                    {"transfer_timeout", options.transfer_timeout}}) {
    if (value <= Milliseconds::zero()) {
      return Status(
          StatusCode::kInvalidArgument,
          absl::StrFormat("ClientOptions::%s is %d ms; give more than 0 ms", name, value.count()));
    }
  }
  auto state = std::make_shared<ClientState>(*std::move(endpoint), std::move(options));
  std::unique_ptr<Client> client(new Client(std::move(state)));
  if (const absl::Status opened = client->state_->Open(); !opened.ok()) return ToPublic(opened);
  return client;
}

absl::StatusOr<v1::CreateTensorRequest> ClientState::RequestFor(const std::string& name,
                                                                const TensorSpec& spec,
                                                                absl::Duration timeout) {
  if (spec.type != ElementType::kF32 && spec.type != ElementType::kBF16 &&
      spec.type != ElementType::kF16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("TensorSpec::type is %d; use kF32, kBF16 or kF16", spec.type));
  }
  v1::CreateTensorRequest request;
  request.set_name(name);
  request.mutable_spec()->set_rows(spec.rows);
  request.mutable_spec()->set_cols(spec.cols);
  request.mutable_spec()->set_dtype(ToWire(spec.type));
  request.mutable_spec()->set_sharding(spec.sharding);
  AGMM_ASSIGN_OR_RETURN(*request.mutable_spec()->mutable_mesh(),
                        MeshOf(spec.mesh, spec.ranks, timeout));
  request.set_session_id(session_);
  request.set_request_id(NewRequestId());
  return request;
}

Result<WorldInfo> Client::World(Milliseconds timeout) {
  return state_->Call(
      [&](Connection* connection) { return connection->GetStatus(state_->CallTimeout(timeout)); });
}

Result<TensorInfo> Client::Create(const std::string& name, const TensorSpec& spec,
                                  Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    const absl::Duration limit = state_->CallTimeout(timeout);
    AGMM_ASSIGN_OR_RETURN(const auto request, state_->RequestFor(name, spec, limit));
    return connection->CreateTensor(request, limit);
  });
}

Result<TensorInfo> Client::Fill(const std::string& name, const TensorSpec& spec,
                                const Filling& filling, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    v1::FillTensorRequest request;
    AGMM_ASSIGN_OR_RETURN(*request.mutable_put(),
                          state_->RequestFor(name, spec, state_->CallTimeout({})));
    v1::Fill& fill = *request.mutable_fill();
    switch (filling.kind) {
      case Filling::Kind::kUniform: fill.set_kind(v1::Fill::KIND_UNIFORM); break;
      case Filling::Kind::kIntegers: fill.set_kind(v1::Fill::KIND_INTEGERS); break;
      case Filling::Kind::kConstant: fill.set_kind(v1::Fill::KIND_CONSTANT); break;
    }
    if (fill.kind() == v1::Fill::KIND_UNSPECIFIED) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "Filling::kind is %d; use kUniform, kIntegers or kConstant", filling.kind));
    }
    fill.set_seed(filling.seed);
    fill.set_value(filling.value);
    return connection->FillTensor(request, state_->TransferTimeout(timeout));
  });
}

Result<std::vector<TensorInfo>> Client::List(Milliseconds timeout) {
  return state_->Call([&](Connection* connection) {
    return connection->ListTensors(state_->CallTimeout(timeout));
  });
}

Result<TensorInfo> Client::Find(const std::string& name, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) {
    return connection->GetTensor(RefTo(name), state_->CallTimeout(timeout));
  });
}

Status Client::Delete(const std::string& name, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::Status {
    const absl::Duration limit = state_->CallTimeout(timeout);
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor, connection->GetTensor(RefTo(name), limit));
    return connection->DeleteTensor(IdOf(tensor), limit);
  });
}

absl::StatusOr<v1::SubmitJobRequest> ClientState::RequestFor(const JobRequest& given,
                                                             absl::Duration timeout) {
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_spec(given.spec);
  AGMM_ASSIGN_OR_RETURN(*request.mutable_mesh(), MeshOf(given.mesh, given.ranks, timeout));
  for (const std::string* name : {&given.a, &given.b, &given.c})
    *request.add_tensors() = RefTo(*name);
  request.mutable_options()->set_algorithm(given.algorithm);
  request.mutable_options()->set_chunk_count(given.chunk_count);
  request.mutable_options()->set_k_chunk_count(given.k_chunk_count);
  request.mutable_options()->set_split(given.split);
  request.mutable_options()->set_workspace_shard_count(given.workspace_shard_count);
  request.mutable_options()->set_carried(given.carried);
  request.set_repeat_count(given.repeat_count);
  if (given.timeout != Milliseconds::zero())
    *request.mutable_timeout() = ToProto(absl::FromChrono(given.timeout));
  request.set_session_id(session_);
  return request;
}

Result<JobHandle> Client::Submit(const JobRequest& given, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<JobHandle> {
    const absl::Duration limit = state_->CallTimeout(timeout);
    AGMM_ASSIGN_OR_RETURN(const auto request, state_->RequestFor(given, limit));
    AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->SubmitJob(request, limit));
    return state_->HandleOf(IdOf(job), JobTimeout(given));
  });
}

void ClientState::Run(const JobRequest& given, Milliseconds timeout, Runs::OnEnd on_end) {
  auto request = RequestFor(given, CallTimeout({}));
  const absl::Status status = request.ok() ? CheckReadable(*request) : request.status();
  if (!status.ok()) return on_end(status);
  runs_->Run(*std::move(request), WaitDeadline(timeout, JobTimeout(given)), std::move(on_end));
}

void Client::Run(const JobRequest& request, std::function<void(const Result<JobInfo>&)> on_end,
                 Milliseconds timeout) {
  if (!on_end) on_end = [](const Result<JobInfo>&) {};
  const ClientState::Use client = state_->Begin();
  if (client == nullptr) return on_end(Refusal());
  client->Run(request, timeout, [client, on_end](const absl::StatusOr<v1::Job>& job) {
    client->loop()->Post([client, on_end, outcome = JobResult(job)] { on_end(outcome); });
  });
}

Result<JobInfo> Client::Run(const JobRequest& request, Milliseconds timeout) {
  const ClientState::Use client = state_->Begin();
  if (client == nullptr) return Refusal();
  // A run needs the loop, so it cannot be waited for there.
  if (client->loop()->OnLoop()) {
    const auto job = Submit(request);
    return job.ok() ? job->Wait(timeout) : Result<JobInfo>(job.status());
  }
  auto ended = std::make_shared<std::promise<Result<JobInfo>>>();
  client->Run(request, timeout, [client, ended](const absl::StatusOr<v1::Job>& job) {
    ended->set_value(JobResult(job));
  });
  return ended->get_future().get();
}

Result<JobHandle> Client::FindJob(uint64_t id, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<JobHandle> {
    AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->GetJob(id, state_->CallTimeout(timeout)));
    return state_->HandleOf(IdOf(job), TimeoutOf(job.timeout()));
  });
}

Result<std::vector<JobInfo>> Client::Jobs(int limit, Milliseconds timeout) {
  if (limit < 0) {
    return Status(StatusCode::kInvalidArgument,
                  absl::StrFormat("limit is %d; give 0 or more", limit));
  }
  return state_->Call([&](Connection* connection) {
    return connection->ListJobs(limit, state_->CallTimeout(timeout));
  });
}

}  // namespace agmm
