// Moves a tensor of BYTES between this program and a daemon of one node, and compares this with
// lower bounds: the same messages through a server in another process that only copies them into
// its memory, and memcpy.
//
//   transfer_bench TCP_ENDPOINT UNIX_ENDPOINT [BYTES, default 1 GiB] [ROUNDS, default 5]
//
// Prints {"bytes", "seconds": {what: [of each round]}}, where what is upload and stream_up,
// download and stream_down, map_write (from Map to Commit, in place), map_read and memcpy. All take
// turns; a first round does not count.
#include <sys/prctl.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/connect/connection.h"
#include "client/connect/tensor_mapping.h"
#include "client/connect/tensor_transfer.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "proto/channel/channel.h"
#include "proto/convert/blocks.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

constexpr int64_t kRowBytes = 4096;  // a shard without padding
constexpr char kBareUpload[] = "/agmm.v1.ContentService/BareUpload";

class BareServer final : public v1::ContentService::Service {
 public:
  explicit BareServer(int64_t bytes) : memory_(bytes, 1) {
    using Handler =
        grpc::internal::ClientStreamingHandler<BareServer, v1::UploadRequest, v1::UploadResponse>;
    AddMethod(new grpc::internal::RpcServiceMethod(
        kBareUpload, grpc::internal::RpcMethod::CLIENT_STREAMING,
        new Handler([](BareServer* self, grpc::ServerContext* context, auto* stream,
                       auto* response) { return self->BareUpload(context, stream, response); },
                    this)));
  }
  grpc::Status BareUpload(grpc::ServerContext*, grpc::ServerReader<v1::UploadRequest>* stream,
                          v1::UploadResponse*) {
    v1::UploadRequest request;
    while (stream->Read(&request)) {
      const v1::UploadChunk& chunk = request.chunk();
      std::memcpy(memory_.data() + chunk.offset_bytes(), chunk.data().data(), chunk.data().size());
    }
    return grpc::Status::OK;
  }
  grpc::Status ReadTensor(grpc::ServerContext*, const v1::ReadTensorRequest*,
                          grpc::ServerWriter<v1::ReadTensorResponse>* stream) override {
    v1::ReadTensorResponse response;
    for (size_t at = 0; at < memory_.size(); at += kPieceBytes) {
      response.set_offset_bytes(at);
      response.set_data(memory_.data() + at, std::min<size_t>(kPieceBytes, memory_.size() - at));
      if (!stream->Write(response)) break;
    }
    return grpc::Status::OK;
  }

 private:
  std::vector<char> memory_;
};

// Starts a separate process, like a daemon, before gRPC starts in this one. Returns its port.
int StartBareServer(int64_t bytes) {
  int ends[2];
  if (pipe(ends) != 0) return 0;
  int port = 0;
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    BareServer service(bytes);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
    if (write(ends[1], &port, sizeof(port)) != sizeof(port)) _exit(1);
    server->Wait();
    _exit(0);
  }
  if (read(ends[0], &port, sizeof(port)) != sizeof(port)) return 0;
  return port;
}

absl::Status OkOr(const grpc::Status& status) {
  return status.ok() ? absl::OkStatus() : absl::InternalError(status.error_message());
}

class Transfers {
 public:
  Transfers(const Endpoint& tcp, const Endpoint& local, int bare_port, int64_t bytes)
      : tcp_(tcp),
        local_(local),
        channel_(OpenChannel(absl::StrCat("127.0.0.1:", bare_port), {})),
        bare_(v1::ContentService::NewStub(channel_)),
        from_(bytes, 2),
        to_(bytes, 3) {}

  absl::Status Run(int rounds) {
    AGMM_ASSIGN_OR_RETURN(const std::string session, tcp_.OpenSession());
    v1::CreateTensorRequest request;
    request.set_session_id(session);
    v1::TensorSpec* spec = request.mutable_spec();
    spec->set_rows(size() / kRowBytes);
    spec->set_cols(kRowBytes / 4);
    spec->set_dtype(v1::DTYPE_F32);
    spec->set_sharding("[M, N]");
    v1::MeshAxis* axis = spec->mutable_mesh()->add_axes();
    axis->set_name("x");
    axis->set_size(1);
    AGMM_ASSIGN_OR_RETURN(tensor_, tcp_.CreateTensor(request));
    const std::vector<std::pair<std::string, std::function<absl::Status()>>> all = {
        {"upload", [this] { return Put(); }},
        {"stream_up", [this] { return StreamUp(); }},
        {"download", [this] { return Get(); }},
        {"stream_down", [this] { return StreamDown(); }},
        {"map_write", [this] { return MapWrite(); }},
        {"map_read", [this] { return MapRead(); }},
        {"memcpy", [this] { return Copy(); }}};
    for (int round = -1; round < rounds; ++round) {
      for (const auto& [what, move] : all) {
        const int64_t begin_ns = MonotonicNanos();
        AGMM_RETURN_IF_ERROR(move());
        if (round >= 0) seconds_[what].push_back((MonotonicNanos() - begin_ns) * 1e-9);
        if (what == "download" && to_ != from_)
          return absl::DataLossError("what was read is not what was written");
      }
    }
    return absl::OkStatus();
  }

  std::string Json() const {
    std::vector<std::string> lists;
    for (const auto& [what, seconds] : seconds_)
      lists.push_back(absl::StrFormat("\"%s\": [%s]", what, absl::StrJoin(seconds, ", ")));
    return absl::StrFormat("{\"bytes\": %d, \"seconds\": {%s}}\n", size(),
                           absl::StrJoin(lists, ", "));
  }

 private:
  int64_t size() const { return static_cast<int64_t>(from_.size()); }

  absl::Status Put() {
    v1::BeginUpload begin;
    begin.set_tensor_id(tensor_.tensor_id());
    const ReadFn read = [&](int64_t offset, int64_t bytes, char* out) {
      std::memcpy(out, from_.data() + offset, bytes);
      return absl::OkStatus();
    };
    return Upload(&tcp_, begin, size(), read, {[](int64_t) {}}).status();
  }
  absl::Status StreamUp() {
    grpc::ClientContext context;
    v1::UploadResponse response;
    const grpc::internal::RpcMethod method(kBareUpload, grpc::internal::RpcMethod::CLIENT_STREAMING,
                                           channel_);
    const std::unique_ptr<grpc::ClientWriter<v1::UploadRequest>> stream(
        grpc::internal::ClientWriterFactory<v1::UploadRequest>::Create(channel_.get(), method,
                                                                       &context, &response));
    v1::UploadRequest request;
    for (int64_t at = 0; at < size(); at += kPieceBytes) {
      const int64_t bytes = std::min(kPieceBytes, size() - at);
      request.mutable_chunk()->set_offset_bytes(at);
      request.mutable_chunk()->mutable_data()->resize(bytes);
      std::memcpy(request.mutable_chunk()->mutable_data()->data(), from_.data() + at, bytes);
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    return OkOr(stream->Finish());
  }

  absl::Status Get() {
    v1::TensorRef ref;
    ref.set_tensor_id(tensor_.tensor_id());
    const WriteFn write = [&](const v1::Tensor&, int64_t offset, absl::string_view data) {
      std::memcpy(to_.data() + offset, data.data(), data.size());
      return absl::OkStatus();
    };
    return Download(&tcp_, ref, write, {[](int64_t) {}}).status();
  }
  absl::Status StreamDown() {
    grpc::ClientContext context;
    const auto stream = bare_->ReadTensor(&context, v1::ReadTensorRequest());
    for (v1::ReadTensorResponse response; stream->Read(&response);)
      std::memcpy(to_.data() + response.offset_bytes(), response.data().data(),
                  response.data().size());
    return OkOr(stream->Finish());
  }

  absl::StatusOr<std::unique_ptr<TensorMapping>> Map(bool writable) {
    v1::BeginMapping begin;
    begin.mutable_tensor()->set_tensor_id(tensor_.tensor_id());
    begin.set_writable(writable);
    AGMM_ASSIGN_OR_RETURN(std::unique_ptr<TensorMapping> mapping,
                          TensorMapping::Open(&local_, begin, Deadline::After(absl::Minutes(1))));
    if (mapping->shards().size() != 1 || mapping->shards()[0].pitch_bytes != kRowBytes)
      return absl::InternalError("the tensor is not one piece; use a world of one device");
    return mapping;
  }
  absl::Status MapWrite() {
    AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorMapping> mapping, Map(/*writable=*/true));
    std::memcpy(mapping->shards()[0].data, from_.data(), from_.size());
    return mapping->Commit(Deadline::After(absl::Minutes(1))).status();
  }
  absl::Status MapRead() {
    AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<TensorMapping> mapping, Map(/*writable=*/false));
    std::memcpy(to_.data(), mapping->shards()[0].data, to_.size());
    return absl::OkStatus();
  }
  absl::Status Copy() {
    std::memcpy(to_.data(), from_.data(), to_.size());
    return absl::OkStatus();
  }

  Connection tcp_, local_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::ContentService::Stub> bare_;
  const std::vector<char> from_;
  std::vector<char> to_;
  v1::Tensor tensor_;
  std::map<std::string, std::vector<double>> seconds_;
};

absl::Status Run(const std::string& tcp, const std::string& local, int64_t bytes, int rounds) {
  const int port = StartBareServer(bytes);
  if (port == 0) return absl::InternalError("the bare server did not start");
  AGMM_ASSIGN_OR_RETURN(const Endpoint tcp_endpoint, ResolveEndpoint(tcp));
  AGMM_ASSIGN_OR_RETURN(const Endpoint local_endpoint, ResolveEndpoint(local));
  Transfers transfers(tcp_endpoint, local_endpoint, port, bytes);
  AGMM_RETURN_IF_ERROR(transfers.Run(rounds));
  absl::PrintF("%s", transfers.Json());
  return absl::OkStatus();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int64_t bytes = int64_t{1} << 30;
  int rounds = 5;
  if (argc < 3 || argc > 5 || (argc > 3 && (!absl::SimpleAtoi(argv[3], &bytes) || bytes < 1)) ||
      (argc > 4 && (!absl::SimpleAtoi(argv[4], &rounds) || rounds < 1)) ||
      bytes % agmm::kRowBytes != 0) {
    absl::FPrintF(stderr,
                  "usage: transfer_bench TCP_ENDPOINT UNIX_ENDPOINT [BYTES, of 4096] [ROUNDS]\n");
    return 2;
  }
  const absl::Status status = agmm::Run(argv[1], argv[2], bytes, rounds);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "transfer_bench: %s\n", std::string(status.message()));
  return 1;
}
