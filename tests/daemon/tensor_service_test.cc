// Contents of tensors over gRPC: what a client may send, and that every way a call can end closes
// its access.
#include "daemon/rpc/tensor_service.h"

#include <grpcpp/grpcpp.h>

#include <memory>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr absl::Duration kHang = absl::Seconds(60);
constexpr uint64_t kTensor = 7, kAccess = 99;

// Grants access to one tensor, at once or when it is told to, and keeps the books.
class FakeControl final : public Control {
 public:
  void GetStatus(const CallContext&, const v1::GetStatusRequest&,
                 Reply<v1::GetStatusResponse> r) override {
    r(No());
  }
  void OpenedSession(const CallContext&, const v1::OpenedSessionRequest&,
                     Reply<v1::OpenedSessionResponse> r) override {
    r(No());
  }
  void CloseSession(const CallContext&, const v1::CloseSessionRequest&,
                    Reply<v1::CloseSessionResponse> r) override {
    r(No());
  }
  void CreateTensor(const CallContext&, const v1::CreateTensorRequest&,
                    Reply<v1::Tensor> r) override {
    r(No());
  }
  void DeleteTensor(const CallContext&, const v1::DeleteTensorRequest&,
                    Reply<v1::DeleteTensorResponse> r) override {
    r(No());
  }
  void ListTensors(const CallContext&, const v1::ListTensorsRequest&,
                   Reply<v1::ListTensorsResponse> r) override {
    r(No());
  }
  void SubmitJob(const CallContext&, const v1::SubmitJobRequest&, Reply<v1::Job> r) override {
    r(No());
  }
  void GetJob(const CallContext&, const v1::GetJobRequest&, Reply<v1::Job> r) override { r(No()); }
  void WaitJob(const CallContext&, const v1::WaitJobRequest&, Reply<v1::Job> r) override {
    r(No());
  }
  void CancelJob(const CallContext&, const v1::CancelJobRequest&, Reply<v1::Job> r) override {
    r(No());
  }
  void ListJobs(const CallContext&, const v1::ListJobsRequest&,
                Reply<v1::ListJobsResponse> r) override {
    r(No());
  }
  void PollJob(const CallContext&, const v1::PollJobRequest&,
               Reply<v1::PollJobResponse> r) override {
    r(No());
  }
  void GetTensor(const CallContext&, const v1::GetTensorRequest&, Reply<v1::Tensor> r) override {
    r(No());
  }
  void FillTensor(const CallContext&, const v1::FillTensorRequest&, Reply<v1::Tensor> r) override {
    r(No());
  }

  void BeginAccess(const CallContext&, const v1::BeginAccessRequest& request,
                   Reply<v1::BeginAccessResponse> reply) override {
    {
      absl::MutexLock lock(&mutex_);
      begun_ = request;
      waiting_ = std::move(reply);
      if (hold_) return;
    }
    Grant();
  }
  void EndAccess(const CallContext& call, const v1::EndAccessRequest& request,
                 Reply<v1::EndAccessResponse> reply) override {
    EXPECT_EQ(request.access_id(), kAccess);
    EXPECT_EQ(call.deadline, absl::InfiniteFuture());
    EXPECT_TRUE(call.cancel->status().ok());
    absl::Status error;
    {
      absl::MutexLock lock(&mutex_);
      commits_.push_back(request.commit());
      error = end_error_;
    }
    v1::EndAccessResponse response;
    *response.mutable_tensor() = tensor_;
    response.mutable_tensor()->set_version(5);
    if (error.ok())
      reply(response);
    else
      reply(error);
  }

  // Answers the BeginAccess that waits.
  void Grant() {
    Reply<v1::BeginAccessResponse> reply;
    {
      absl::MutexLock lock(&mutex_);
      reply = std::exchange(waiting_, nullptr);
    }
    if (!begin_error_.ok()) return reply(begin_error_);
    v1::BeginAccessResponse response;
    response.set_access_id(kAccess);
    *response.mutable_tensor() = tensor_;
    reply(response);
  }

  v1::BeginAccessRequest AwaitBegun() {
    absl::MutexLock lock(&mutex_);
    const auto begun = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return begun_.tensor_id() != 0;
    };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&begun), kHang));
    return begun_;
  }
  // What the accesses ended as, once one has.
  std::vector<bool> AwaitEnded() {
    absl::MutexLock lock(&mutex_);
    const auto ended = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !commits_.empty(); };
    EXPECT_TRUE(mutex_.AwaitWithTimeout(absl::Condition(&ended), kHang));
    return commits_;
  }
  std::vector<bool> commits() {
    absl::MutexLock lock(&mutex_);
    return commits_;
  }

  // Set before the server runs.
  v1::Tensor tensor_;
  bool hold_ = false;
  absl::Status begin_error_, end_error_;

 private:
  static absl::Status No() { return absl::UnimplementedError("not asked for by these tests"); }

  absl::Mutex mutex_;
  v1::BeginAccessRequest begun_ ABSL_GUARDED_BY(mutex_);
  Reply<v1::BeginAccessResponse> waiting_ ABSL_GUARDED_BY(mutex_);
  std::vector<bool> commits_ ABSL_GUARDED_BY(mutex_);
};

class TensorContents : public ::testing::Test {
 protected:
  void SetUp() override {
    heap_ = *device_->CreateHeap(16 << 20);
    store_ = std::make_unique<TensorStore>(0, std::vector<Heap*>{heap_.get()});
    io_ = std::make_unique<TensorIo>(store_.get(), nullptr, 0, std::vector<int>{0});
    const Mesh mesh = *ParseMesh("x=1");
    const Tensor tensor = *ParseTensor("[M_x, K]", mesh, kRows, kCols, DType::kF32);
    control_.tensor_.set_tensor_id(kTensor);
    *control_.tensor_.mutable_spec() = ToProto(mesh, tensor);
    control_.tensor_.set_shard_bytes(ShardBytes(mesh, tensor));
    ASSERT_EQ(store_->Place(control_.tensor_), absl::OkStatus());
    service_ = std::make_unique<TensorService>(&control_, io_.get(), &loop_, 3);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    server_ = builder.BuildAndStart();
    stub_ = v1::TensorService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override { server_->Shutdown(); }

  // Every element's byte pattern tells where it belongs.
  static std::string Contents() {
    std::string bytes(kRows * kCols * 4, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
    return bytes;
  }
  static v1::TensorBlock Rows(int64_t begin, int64_t end) {
    v1::TensorBlock block;
    block.set_row_begin(begin);
    block.set_row_end(end);
    block.set_col_end(kCols);
    block.set_data(Contents().substr(begin * kCols * 4, (end - begin) * kCols * 4));
    return block;
  }
  // Sends `blocks`, the first with the tensor's id.
  grpc::Status Write(const std::vector<v1::TensorBlock>& blocks,
                     v1::WriteTensorResponse* response) {
    grpc::ClientContext context;
    auto stream = stub_->WriteTensor(&context, response);
    for (size_t i = 0; i < blocks.size(); ++i) {
      v1::WriteTensorRequest request;
      if (i == 0) request.set_tensor_id(kTensor);
      *request.mutable_block() = blocks[i];
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    return stream->Finish();
  }
  void ExpectRefused(const std::vector<v1::TensorBlock>& blocks, const std::string& what) {
    v1::WriteTensorResponse response;
    const grpc::Status status = Write(blocks, &response);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
    EXPECT_THAT(status.error_message(), HasSubstr(what));
    EXPECT_THAT(control_.commits(), ElementsAre(false));
  }

  static constexpr int64_t kRows = 1000, kCols = 700;  // 2.7 MiB
  FakeControl control_;
  Loop loop_;
  std::unique_ptr<Device> device_ = CreateCpuDevice(1);
  std::unique_ptr<Heap> heap_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<TensorIo> io_;
  std::unique_ptr<TensorService> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::TensorService::Stub> stub_;
};

TEST_F(TensorContents, AreReadAsTheyWereWritten) {
  v1::WriteTensorResponse response;
  const grpc::Status written =
      Write({Rows(0, 1), Rows(1, 400), Rows(400, 999), Rows(999, 1000)}, &response);
  ASSERT_TRUE(written.ok()) << written.error_message();
  EXPECT_EQ(response.tensor().version(), 5);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
  EXPECT_TRUE(control_.AwaitBegun().write());
  EXPECT_EQ(control_.AwaitBegun().node(), 3);

  grpc::ClientContext context;
  v1::ReadTensorRequest request;
  request.set_tensor_id(kTensor);
  auto stream = stub_->ReadTensor(&context, request);
  BlockCursor cursor(kRows, kCols, DType::kF32);
  std::string bytes;
  for (v1::ReadTensorResponse block; stream->Read(&block);) {
    EXPECT_EQ(cursor.Accept(block.block()), absl::OkStatus());
    EXPECT_LE(static_cast<int64_t>(block.block().data().size()), kBlockBytes);
    bytes += block.block().data();
  }
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_TRUE(cursor.done());
  EXPECT_TRUE(bytes == Contents());
  EXPECT_EQ(control_.commits().size(), 2u);
}

TEST_F(TensorContents, AWriteThatEndsEarlyLeavesItEmpty) {
  ExpectRefused({Rows(0, 999)}, "999 of 1000 rows");
}

TEST_F(TensorContents, AGapIsRefused) {
  ExpectRefused({Rows(0, 10), Rows(11, 1000)}, "begins at row 10");
}

TEST_F(TensorContents, ABlockTwiceIsRefused) {
  ExpectRefused({Rows(0, 1000), Rows(999, 1000)}, "out of order");
}

TEST_F(TensorContents, ABlockOfTheWrongSizeIsRefused) {
  v1::TensorBlock block = Rows(0, 10);
  block.mutable_data()->pop_back();
  ExpectRefused({block}, "is 28000 bytes and 27999 came");
}

TEST_F(TensorContents, AWriteWithoutATensorIsRefused) {
  for (bool message : {false, true}) {
    grpc::ClientContext context;
    v1::WriteTensorResponse response;
    auto stream = stub_->WriteTensor(&context, &response);
    v1::WriteTensorRequest request;
    *request.mutable_block() = Rows(0, 1);
    if (message) stream->Write(request);
    stream->WritesDone();
    EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  }
  EXPECT_THAT(control_.commits(), IsEmpty());
}

TEST_F(TensorContents, AnErrorComesWithoutWaitingForTheClientToFinish) {
  grpc::ClientContext context;
  v1::WriteTensorResponse response;
  auto stream = stub_->WriteTensor(&context, &response);
  v1::WriteTensorRequest request;
  request.set_tensor_id(kTensor);
  *request.mutable_block() = Rows(5, 6);
  stream->Write(request);
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(TensorContents, ABrokenWriteEndsItsAccess) {
  grpc::ClientContext context;
  v1::WriteTensorResponse response;
  auto stream = stub_->WriteTensor(&context, &response);
  v1::WriteTensorRequest request;
  request.set_tensor_id(kTensor);
  *request.mutable_block() = Rows(0, 100);
  stream->Write(request);
  control_.AwaitBegun();
  context.TryCancel();
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::CANCELLED);
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

TEST_F(TensorContents, ABrokenReadEndsItsAccess) {
  grpc::ClientContext context;
  v1::ReadTensorRequest request;
  request.set_tensor_id(kTensor);
  auto stream = stub_->ReadTensor(&context, request);
  v1::ReadTensorResponse block;
  EXPECT_TRUE(stream->Read(&block));
  context.TryCancel();
  while (stream->Read(&block)) {
  }
  stream->Finish();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

class TensorWithHeldAccess : public TensorContents {
 protected:
  TensorWithHeldAccess() { control_.hold_ = true; }
};

TEST_F(TensorWithHeldAccess, IsGivenBackWhenItsWriterWentAwayMeanwhile) {
  grpc::ClientContext context;
  v1::WriteTensorResponse response;
  auto stream = stub_->WriteTensor(&context, &response);
  v1::WriteTensorRequest request;
  request.set_tensor_id(kTensor);
  stream->Write(request);
  control_.AwaitBegun();
  context.TryCancel();
  stream->Finish();
  EXPECT_THAT(control_.commits(), IsEmpty());
  control_.Grant();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

TEST_F(TensorWithHeldAccess, IsGivenBackWhenItsReaderWentAwayMeanwhile) {
  grpc::ClientContext context;
  v1::ReadTensorRequest request;
  request.set_tensor_id(kTensor);
  auto stream = stub_->ReadTensor(&context, request);
  control_.AwaitBegun();
  context.TryCancel();
  stream->Finish();
  EXPECT_THAT(control_.commits(), IsEmpty());
  control_.Grant();
  EXPECT_THAT(control_.AwaitEnded(), ElementsAre(false));
}

class TensorWithoutAccess : public TensorContents {
 protected:
  TensorWithoutAccess() {
    control_.begin_error_ = WithReason(absl::AbortedError("node b was lost"), kReasonPeerLost);
  }
};

TEST_F(TensorWithoutAccess, TellsWhyAndEndsNothing) {
  v1::WriteTensorResponse response;
  const grpc::Status status = Write({Rows(0, 1000)}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_EQ(status.error_message(), "node b was lost");
  google::rpc::Status details;
  ASSERT_TRUE(details.ParseFromString(status.error_details()));
  EXPECT_EQ(ReasonOf(FromProto(details)), kReasonPeerLost);
  EXPECT_THAT(control_.commits(), IsEmpty());
}

class TensorThatCannotBeCommitted : public TensorContents {
 protected:
  TensorThatCannotBeCommitted() { control_.end_error_ = absl::AbortedError("the world ended"); }
};

TEST_F(TensorThatCannotBeCommitted, FailsTheWrite) {
  v1::WriteTensorResponse response;
  const grpc::Status status = Write({Rows(0, 1000)}, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::ABORTED);
  EXPECT_THAT(control_.commits(), ElementsAre(true));
}

}  // namespace
}  // namespace agmm
