#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <new>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/agmm.h"
#include "client/connect/connection.h"
#include "client/connect/program_text.h"
#include "client/connect/tensor_handle.h"
#include "client/connect/tensor_transfer.h"
#include "client/library/client_state.h"
#include "kernels/base/deadline.h"
#include "kernels/base/dtype_traits.h"
#include "kernels/base/status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

constexpr absl::string_view kPutThread = "a put in the background",
                            kGetThread = "a get in the background";

absl::Duration TimeoutOf(const google::protobuf::Duration& wire) {
  const absl::Duration timeout = FromProto(wire);
  return timeout > absl::ZeroDuration() ? timeout : kDefaultJobTimeout;
}

absl::string_view NameOf(ElementType type) {
  return TraitsOf(type == ElementType::kF32    ? DType::kF32
                  : type == ElementType::kBF16 ? DType::kBF16
                                               : DType::kF16)
      .name;
}

Status WrongSize(int64_t size_bytes, int64_t rows, int64_t cols, int64_t element_bytes) {
  return Status(
      StatusCode::kInvalidArgument,
      absl::StrFormat("%d bytes are given for a tensor of %d x %d elements of %d bytes; give "
                      "%d bytes, row-major",
                      size_bytes, rows, cols, element_bytes, rows * cols * element_bytes));
}

Status NullData(int64_t size_bytes) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrFormat("data is null; give the address of %d bytes", size_bytes));
}

Status WrongType(const TensorInfo& tensor, ElementType wanted) {
  return Status(
      StatusCode::kInvalidArgument,
      absl::StrFormat("\"%s\" has elements of type %s, and %s was requested; get it as %s",
                      tensor.name, NameOf(tensor.spec.type), NameOf(wanted),
                      NameOf(tensor.spec.type)));
}

Status NoMemory(const TensorInfo& tensor) {
  return Status(StatusCode::kResourceExhausted,
                absl::StrFormat("no memory for the %d x %d elements of \"%s\"; get it in pieces, "
                                "with a Writer",
                                tensor.spec.rows, tensor.spec.cols, tensor.name));
}

// The error for an empty std::function.
Status NoCallback(absl::string_view argument, absl::string_view what) {
  return Status(StatusCode::kInvalidArgument,
                absl::StrFormat("%s is empty; give a function that %s", argument, what));
}

// Returns the size of the contents in bytes; absent if a tensor cannot have this spec.
std::optional<int64_t> BytesIn(const TensorSpec& spec) {
  int64_t elements = 0, bytes = 0;
  if (spec.rows <= 0 || spec.cols <= 0 || __builtin_mul_overflow(spec.rows, spec.cols, &elements) ||
      __builtin_mul_overflow(elements, BytesOf(spec.type), &bytes)) {
    return std::nullopt;
  }
  return bytes;
}

TransferLimits LimitsOf(const ClientState& client, const TransferOptions& options) {
  return {Deadline::After(client.TransferTimeout(options.timeout)), options.stop};
}

// Takes a piece of the contents of `tensor`.
using TakePiece = std::function<Status(const TensorInfo& tensor, int64_t offset_bytes,
                                       const std::byte* from, int64_t size_bytes)>;

Result<TensorInfo> GetPieces(ClientState* client, const std::string& name, const TakePiece& take,
                             const TransferOptions& options) {
  int64_t total_bytes = 0;
  std::optional<TensorInfo> info;
  const WriteFn write = [&](const v1::Tensor& tensor, int64_t offset_bytes,
                            absl::string_view data) {
    if (!info.has_value()) {
      info = ToPublic(tensor);
      total_bytes = BytesIn(info->spec).value_or(0);
    }
    return FromPublic(take(*info, offset_bytes, reinterpret_cast<const std::byte*>(data.data()),
                           static_cast<int64_t>(data.size())));
  };
  const Progress progress{[&](int64_t moved_bytes) {
    if (options.progress) options.progress(moved_bytes, total_bytes);
  }};
  return client->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensor(name));
    return Download(connection, named.ref, write, progress, LimitsOf(*client, options),
                    named.sequencer);
  });
}

}  // namespace

Client::Client(std::shared_ptr<ClientState> state) : state_(std::move(state)) {}

Client::~Client() { Close(); }

void Client::Close() { state_->Close(); }

const std::string& Client::endpoint() const { return state_->endpoint(); }

Result<std::unique_ptr<Client>> Client::Connect(ClientOptions options) {
  absl::StatusOr<Endpoint> endpoint = ResolveEndpoint(options.endpoint);
  if (!endpoint.ok()) return ToPublic(endpoint.status());
  if (Forked()) return ForkedError();
  for (const auto& [name, value] : {std::pair{"call_timeout", options.call_timeout},
                                    {"transfer_timeout", options.transfer_timeout}}) {
    if (value <= Milliseconds::zero()) {
      return Status(StatusCode::kInvalidArgument,
                    absl::StrFormat("%s is %d ms; give more than 0 ms", name, value.count()));
    }
  }
  if (const absl::Status named = CheckProgramName(options.program); !named.ok())
    return ToPublic(named);
  auto state = std::make_shared<ClientState>(*std::move(endpoint), std::move(options));
  std::unique_ptr<Client> client(new Client(std::move(state)));
  if (const absl::Status opened = client->state_->Open(); !opened.ok()) return ToPublic(opened);
  return client;
}

Result<WorldInfo> Client::World(Milliseconds timeout) {
  return state_->Call([&](Connection*) { return state_->GetStatus(state_->CallTimeout(timeout)); });
}

Result<std::vector<SessionInfo>> Client::Sessions(Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<OpenSessions> {
    const Deadline deadline = Deadline::After(state_->CallTimeout(timeout));
    OpenSessions sessions{.own_id = state_->session()};
    AGMM_ASSIGN_OR_RETURN(sessions.list, connection->ListSessions(deadline.Left()));
    AGMM_ASSIGN_OR_RETURN(sessions.status, connection->GetStatus(deadline.Left()));
    return sessions;
  });
}

Result<TensorInfo> Client::Create(const std::string& name, const TensorSpec& spec,
                                  Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    const Deadline deadline = Deadline::After(state_->CallTimeout(timeout));
    AGMM_ASSIGN_OR_RETURN(const auto request, state_->RequestFor(name, spec, deadline));
    return connection->CreateTensor(request, deadline.Left());
  });
}

Result<TensorInfo> Client::Fill(const std::string& name, const TensorSpec& spec,
                                const Filling& filling, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    const Deadline deadline = Deadline::After(state_->TransferTimeout(timeout));
    v1::FillTensorRequest request;
    AGMM_ASSIGN_OR_RETURN(*request.mutable_put(), state_->RequestFor(name, spec, deadline));
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
    return connection->FillTensor(request, deadline.Left());
  });
}

Result<std::vector<TensorInfo>> Client::List(Milliseconds timeout) {
  return state_->Call([&](Connection* connection) {
    return connection->ListTensors(state_->CallTimeout(timeout));
  });
}

Result<TensorInfo> Client::Find(const std::string& name, Milliseconds timeout) {
  return state_->Call([&](Connection*) {
    return state_->Find(name, Deadline::After(state_->CallTimeout(timeout)));
  });
}

Status Client::Delete(const std::string& name, Milliseconds timeout) {
  return state_->Call([&](Connection* connection) -> absl::Status {
    const Deadline deadline = Deadline::After(state_->CallTimeout(timeout));
    AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensor(name));
    if (named.ref.has_tensor_id())
      return connection->DeleteTensor(Id(named.ref.tensor_id(), named.sequencer), deadline.Left());
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor tensor,
                          connection->GetTensor(named.ref, deadline.Left()));
    return connection->DeleteTensor(IdOf(tensor), deadline.Left());
  });
}

Result<JobHandle> Client::Submit(const JobRequest& given, Milliseconds timeout,
                                 std::stop_token stop) {
  return state_->Call([&](Connection*) -> absl::StatusOr<JobHandle> {
    AGMM_ASSIGN_OR_RETURN(
        const v1::Job job,
        state_->Submit(given, Deadline::After(state_->CallTimeout(timeout)), stop));
    return state_->HandleOf(IdOf(job), JobTimeout(given));
  });
}

void Client::Run(const JobRequest& request, std::function<void(const Result<JobInfo>&)> on_end,
                 Milliseconds timeout, std::stop_token stop) {
  if (!on_end) on_end = [](const Result<JobInfo>&) {};
  const ClientState::Use client = state_->Begin();
  if (client == nullptr) return on_end(Refusal());
  client->Run(request, timeout, stop, [client, on_end](const absl::StatusOr<v1::Job>& job) {
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
  return RunAsync(request, timeout).get();
}

std::future<Result<JobInfo>> Client::RunAsync(const JobRequest& request, Milliseconds timeout,
                                              std::stop_token stop) {
  auto promise = std::make_shared<std::promise<Result<JobInfo>>>();
  std::future<Result<JobInfo>> future = promise->get_future();
  if (const ClientState::Use client = state_->Begin(); client != nullptr) {
    client->Run(request, timeout, stop, [client, promise](const absl::StatusOr<v1::Job>& job) {
      promise->set_value(JobResult(job));
    });
  } else {
    promise->set_value(Refusal());
  }
  return future;
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

Result<TensorInfo> Client::Put(const std::string& name, const TensorSpec& spec, const void* data,
                               int64_t size_bytes, const TransferOptions& options) {
  if (const std::optional<int64_t> bytes = BytesIn(spec); bytes.has_value()) {
    if (*bytes != size_bytes)
      return WrongSize(size_bytes, spec.rows, spec.cols, BytesOf(spec.type));
    if (data == nullptr) return NullData(size_bytes);
  }
  const char* const from = static_cast<const char*>(data);
  return Put(
      name, spec,
      [from](int64_t offset_bytes, std::byte* into, int64_t size) {
        std::memcpy(into, from + offset_bytes, size);
        return Status();
      },
      options);
}

Result<TensorInfo> Client::Put(const std::string& name, const TensorSpec& spec,
                               const Reader& reader, const TransferOptions& options) {
  if (!reader) return NoCallback("reader", "fills the buffer it gets");
  return state_->Call([&](Connection* connection) -> absl::StatusOr<v1::Tensor> {
    const std::optional<int64_t> total_bytes = BytesIn(spec);
    if (!total_bytes.has_value()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("a tensor cannot have %d x %d elements; give at least one row and one "
                          "column, and less than 2^63 bytes",
                          spec.rows, spec.cols));
    }
    const TransferLimits limits = LimitsOf(*state_, options);
    v1::BeginUpload begin;
    AGMM_ASSIGN_OR_RETURN(*begin.mutable_put(),
                          state_->RequestFor(name, spec, limits.deadline, limits.stop));
    const ReadFn read = [&](int64_t offset_bytes, int64_t size, char* out) {
      return FromPublic(reader(offset_bytes, reinterpret_cast<std::byte*>(out), size));
    };
    const Progress progress{[&](int64_t moved_bytes) {
      if (options.progress) options.progress(moved_bytes, *total_bytes);
    }};
    return Upload(connection, std::move(begin), *total_bytes, read, progress, limits);
  });
}

Result<TensorInfo> Client::Get(const std::string& name, void* data, int64_t size_bytes,
                               const TransferOptions& options) {
  if (data == nullptr) return NullData(size_bytes);
  return GetPieces(
      state_.get(), name,
      [&](const TensorInfo& tensor, int64_t offset_bytes, const std::byte* from, int64_t size) {
        if (BytesIn(tensor.spec) != size_bytes) {
          return WrongSize(size_bytes, tensor.spec.rows, tensor.spec.cols,
                           BytesOf(tensor.spec.type));
        }
        std::memcpy(static_cast<char*>(data) + offset_bytes, from, size);
        return Status();
      },
      options);
}

Result<TensorInfo> Client::Get(const std::string& name, const Writer& writer,
                               const TransferOptions& options) {
  if (!writer) return NoCallback("writer", "takes the bytes it gets");
  return GetPieces(
      state_.get(), name,
      [&](const TensorInfo&, int64_t offset_bytes, const std::byte* from, int64_t size) {
        return writer(offset_bytes, from, size);
      },
      options);
}

Result<TensorInfo> Client::GetElements(
    const std::string& name, ElementType type,
    const std::function<std::span<std::byte>(int64_t count)>& room,
    const TransferOptions& options) {
  std::span<std::byte> into;
  return GetPieces(
      state_.get(), name,
      [&](const TensorInfo& tensor, int64_t offset_bytes, const std::byte* from, int64_t size) {
        const TensorSpec& spec = tensor.spec;
        if (offset_bytes == 0) {
          if (spec.type != type) return WrongType(tensor, type);
          try {
            into = room(spec.rows * spec.cols);
          } catch (const std::bad_alloc&) {
            return NoMemory(tensor);
          }
          if (BytesIn(spec) != static_cast<int64_t>(into.size()))
            return WrongSize(into.size(), spec.rows, spec.cols, BytesOf(type));
        }
        std::memcpy(into.data() + offset_bytes, from, size);
        return Status();
      },
      options);
}

std::future<Result<TensorInfo>> Client::PutAsync(std::string name, TensorSpec spec,
                                                 const void* data, int64_t size_bytes,
                                                 TransferOptions options) {
  return state_->Start(
      kPutThread, std::move(options),
      [=, this, name = std::move(name), spec = std::move(spec)](const TransferOptions& options) {
        return Put(name, spec, data, size_bytes, options);
      });
}

std::future<Result<TensorInfo>> Client::PutAsync(std::string name, TensorSpec spec, Reader reader,
                                                 TransferOptions options) {
  return state_->Start(
      kPutThread, std::move(options),
      [this, name = std::move(name), spec = std::move(spec), reader = std::move(reader)](
          const TransferOptions& options) { return Put(name, spec, reader, options); });
}

std::future<Result<TensorInfo>> Client::GetAsync(std::string name, void* data, int64_t size_bytes,
                                                 TransferOptions options) {
  return state_->Start(kGetThread, std::move(options),
                       [=, this, name = std::move(name)](const TransferOptions& options) {
                         return Get(name, data, size_bytes, options);
                       });
}

std::future<Result<TensorInfo>> Client::GetAsync(std::string name, Writer writer,
                                                 TransferOptions options) {
  return state_->Start(kGetThread, std::move(options),
                       [this, name = std::move(name), writer = std::move(writer)](
                           const TransferOptions& options) { return Get(name, writer, options); });
}

std::string Status::ToString() const {
  if (ok()) return "OK";
  return absl::StrCat(absl::StatusCodeToString(static_cast<absl::StatusCode>(code_)), ": ",
                      message_);
}

void FailWith(const Status& status) {
  std::fprintf(stderr, "agmm: %s\n", status.ToString().c_str());
  std::abort();
}

int64_t BytesOf(ElementType type) { return type == ElementType::kF32 ? 4 : 2; }

BFloat16::BFloat16(float value) : bits(F32ToBF16(value)) {}
BFloat16::operator float() const { return BF16ToF32(bits); }
Float16::Float16(float value) : bits(F32ToF16(value)) {}
Float16::operator float() const { return F16ToF32(bits); }

}  // namespace agmm
