#include "client/library/client.h"

#include <future>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/library/job_handle.h"
#include "client/library/to_public.h"
#include "kernels/base/random.h"
#include "kernels/base/utf8.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

// As the daemons bound it.
constexpr size_t kMaxJobBytes = 1 << 20;

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

// What a daemon could not even read would end the stream that all Runs share.
absl::Status CheckReadable(const v1::SubmitJobRequest& request) {
  std::vector<std::pair<const char*, const std::string*>> texts = {
      {"spec", &request.spec()}, {"algorithm", &request.options().algorithm()}};
  for (const v1::TensorRef& ref : request.tensors())
    texts.push_back({"the name of a tensor", &ref.name()});
  for (const auto& [field, text] : texts) {
    if (const auto at = NoUtf8From(*text); at.has_value())
      return absl::InvalidArgumentError(
          absl::StrFormat("%s is no UTF-8 from byte %d on; encode it as UTF-8", field, *at));
  }
  if (const size_t bytes = request.ByteSizeLong(); bytes > kMaxJobBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the job's request has %d bytes; at most %d are taken; use a shorter spec "
                        "and shorter names",
                        bytes, kMaxJobBytes));
  }
  return absl::OkStatus();
}

}  // namespace

Client::Client(std::unique_ptr<ClientImpl> impl) : impl_(std::move(impl)) {}

Client::~Client() { impl_->core->Close(); }

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  absl::StatusOr<Endpoint> endpoint = ResolveEndpoint(options.endpoint);
  if (!endpoint.ok()) return ToPublic(endpoint.status());
  auto impl = std::make_unique<ClientImpl>();
  impl->core = std::make_shared<Core>(*std::move(endpoint), std::move(options));
  std::unique_ptr<Client> client(new Client(std::move(impl)));
  if (const absl::Status opened = client->impl_->core->Open(); !opened.ok())
    return ToPublic(opened);
  return client;
}

absl::StatusOr<v1::CreateTensorRequest> ClientImpl::RequestFor(const std::string& name,
                                                               const TensorSpec& spec,
                                                               absl::Duration timeout) const {
  v1::CreateTensorRequest request;
  request.set_name(name);
  request.mutable_spec()->set_rows(spec.rows);
  request.mutable_spec()->set_cols(spec.cols);
  request.mutable_spec()->set_dtype(ToWire(spec.type));
  request.mutable_spec()->set_sharding(spec.sharding);
  absl::StatusOr<v1::Mesh> mesh = core->MeshOf(spec.mesh, spec.ranks, timeout);
  if (!mesh.ok()) return mesh.status();
  *request.mutable_spec()->mutable_mesh() = *std::move(mesh);
  request.set_session_id(core->session());
  request.set_request_id(NewRequestId());
  return request;
}

Result<WorldInfo> Client::World(Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const auto status = impl_->core->connection()->GetStatus(impl_->core->CallTimeout(timeout));
  if (!status.ok()) return ToPublic(status.status());
  return ToPublic(*status);
}

Result<TensorInfo> Client::Create(const std::string& name, const TensorSpec& spec,
                                  Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const absl::Duration limit = impl_->core->CallTimeout(timeout);
  const auto request = impl_->RequestFor(name, spec, limit);
  if (!request.ok()) return ToPublic(request.status());
  const auto tensor = impl_->core->connection()->CreateTensor(*request, limit);
  if (!tensor.ok()) return ToPublic(tensor.status());
  return ToPublic(*tensor);
}

Result<TensorInfo> Client::Fill(const std::string& name, const TensorSpec& spec,
                                const Filling& filling, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const absl::Duration limit = impl_->core->TransferTimeout(timeout);
  auto put = impl_->RequestFor(name, spec, impl_->core->CallTimeout({}));
  if (!put.ok()) return ToPublic(put.status());
  v1::FillTensorRequest request;
  *request.mutable_put() = *std::move(put);
  v1::Fill& fill = *request.mutable_fill();
  switch (filling.kind) {
    case Filling::Kind::kUniform: fill.set_kind(v1::Fill::KIND_UNIFORM); break;
    case Filling::Kind::kIntegers: fill.set_kind(v1::Fill::KIND_INTEGERS); break;
    case Filling::Kind::kConstant: fill.set_kind(v1::Fill::KIND_CONSTANT); break;
  }
  fill.set_seed(filling.seed);
  fill.set_value(filling.value);
  const auto tensor = impl_->core->connection()->FillTensor(request, limit);
  if (!tensor.ok()) return ToPublic(tensor.status());
  return ToPublic(*tensor);
}

Result<std::vector<TensorInfo>> Client::List(Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const auto list = impl_->core->connection()->ListTensors(impl_->core->CallTimeout(timeout));
  if (!list.ok()) return ToPublic(list.status());
  std::vector<TensorInfo> tensors;
  for (const v1::Tensor& tensor : list->tensors()) tensors.push_back(ToPublic(tensor));
  return tensors;
}

Result<TensorInfo> Client::Find(const std::string& name, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const auto tensor =
      impl_->core->connection()->GetTensor(RefTo(name), impl_->core->CallTimeout(timeout));
  if (!tensor.ok()) return ToPublic(tensor.status());
  return ToPublic(*tensor);
}

Status Client::Delete(const std::string& name, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const absl::Duration limit = impl_->core->CallTimeout(timeout);
  const auto tensor = impl_->core->connection()->GetTensor(RefTo(name), limit);
  if (!tensor.ok()) return ToPublic(tensor.status());
  return ToPublic(impl_->core->connection()->DeleteTensor(IdOf(*tensor), limit));
}

absl::StatusOr<v1::SubmitJobRequest> ClientImpl::RequestFor(const JobRequest& given,
                                                            absl::Duration timeout) const {
  v1::SubmitJobRequest request;
  request.set_request_id(NewRequestId());
  request.set_spec(given.spec);
  absl::StatusOr<v1::Mesh> mesh = core->MeshOf(given.mesh, given.ranks, timeout);
  if (!mesh.ok()) return mesh.status();
  *request.mutable_mesh() = *std::move(mesh);
  for (const std::string* name : {&given.a, &given.b, &given.c})
    *request.add_tensors() = RefTo(*name);
  request.mutable_options()->set_algorithm(given.algorithm);
  request.mutable_options()->set_chunk_count(given.chunk_count);
  request.set_repeat_count(given.repeat_count);
  if (given.timeout != Milliseconds::zero())
    *request.mutable_timeout() = ToProto(absl::FromChrono(given.timeout));
  request.set_session_id(core->session());
  if (const absl::Status readable = CheckReadable(request); !readable.ok()) return readable;
  return request;
}

Result<JobHandle> Client::Submit(const JobRequest& given, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const absl::Duration limit = impl_->core->CallTimeout(timeout);
  const auto request = impl_->RequestFor(given, limit);
  if (!request.ok()) return ToPublic(request.status());
  const auto job = impl_->core->connection()->SubmitJob(*request, limit);
  if (!job.ok()) return ToPublic(job.status());
  return impl_->Handle(IdOf(*job), JobTimeout(given));
}

void ClientImpl::Run(const JobRequest& given, Milliseconds timeout, bool may_run_anywhere,
                     std::function<void(const Result<JobInfo>&)> on_end) const {
  auto request = RequestFor(given, core->CallTimeout({}));
  auto end = [core = core, on_end = std::move(on_end)](const absl::StatusOr<v1::Job>& job) {
    on_end(job.ok() ? JobResult(*job) : Result<JobInfo>(ToPublic(job.status())));
    core->End();
  };
  if (!request.ok()) return core->loop()->Post([end, status = request.status()] { end(status); });
  const absl::Duration limit = timeout == Milliseconds::zero()
                                   ? JobTimeout(given) + core->CallTimeout({})
                                   : ToTimeout(timeout, {});
  core->runs()->Run(*std::move(request), absl::Now() + limit, may_run_anywhere, std::move(end));
}

void Client::Run(const JobRequest& request, std::function<void(const Result<JobInfo>&)> on_end,
                 Milliseconds timeout) {
  if (!impl_->core->Begin()) return on_end(ClientGone());
  impl_->Run(request, timeout, /*may_run_anywhere=*/false, std::move(on_end));
}

Result<JobInfo> Client::Run(const JobRequest& request, Milliseconds timeout) {
  // The loop, which sees to what goes wrong with a run, would be held up here.
  if (impl_->core->loop()->OnThisThread()) {
    const auto job = Submit(request);
    return job.ok() ? job->Wait(timeout) : Result<JobInfo>(job.status());
  }
  if (!impl_->core->Begin()) return ClientGone();
  auto ended = std::make_shared<std::promise<Result<JobInfo>>>();
  impl_->Run(request, timeout, /*may_run_anywhere=*/true,
             [ended](const Result<JobInfo>& outcome) { ended->set_value(outcome); });
  return ended->get_future().get();
}

Result<JobHandle> Client::FindJob(uint64_t id, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const auto job = impl_->core->connection()->GetJob(id, impl_->core->CallTimeout(timeout));
  if (!job.ok()) return ToPublic(job.status());
  return impl_->Handle(IdOf(*job), TimeoutOf(job->timeout()));
}

Result<std::vector<JobInfo>> Client::Jobs(int limit, Milliseconds timeout) {
  const CoreUse use(impl_->core.get());
  if (!use.ok()) return ClientGone();
  const absl::Time deadline = absl::Now() + impl_->core->CallTimeout(timeout);
  std::vector<JobInfo> jobs;
  v1::ListJobsRequest request;
  while (static_cast<int>(jobs.size()) < limit) {
    request.set_page_size(std::min(limit - static_cast<int>(jobs.size()), 1000));
    const auto page = impl_->core->connection()->ListJobs(request, deadline - absl::Now());
    if (!page.ok()) return ToPublic(page.status());
    for (const v1::Job& job : page->jobs()) jobs.push_back(ToPublic(job));
    if (page->next_before_job_id() == 0) break;
    request.set_before_job_id(page->next_before_job_id());
  }
  return jobs;
}

JobHandle ClientImpl::Handle(const Id& job, absl::Duration job_timeout) const {
  auto state = std::make_shared<JobHandleState>();
  state->core = core;
  state->job_timeout = job_timeout;
  state->sequencer = job.sequencer;
  JobHandle handle;
  handle.state_ = std::move(state);
  handle.id_ = job.number;
  return handle;
}

}  // namespace agmm
