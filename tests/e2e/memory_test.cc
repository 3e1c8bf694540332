// The memory that a daemon keeps after its clients' work, under a memory limit.
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "agmm/v1/tensor.grpc.pb.h"

#include "client/agmm.h"
#include "client/connect/tensor_transfer.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/memory_limit.h"
#include "tests/support/notification.h"

namespace agmm {
namespace {

constexpr double kMiB = 1 << 20;

WorldOptions Limited(int devices) {
  WorldOptions options;
  options.devices = devices;
  // A sanitizer needs more memory itself.
  if (!kSanitized) options.hosts = {{WithinMemory(2048), "127.0.0.1"}};
  return options;
}

TEST(Memory, ThreeHundredJobsOfALargePlanLeaveWhatTheirHistoryCounts) {
  World world(Limited(8));
  ASSERT_NO_FATAL_FAILURE(world.StartAll());
  Result<std::unique_ptr<Client>> connected = Client::Connect({.endpoint = world.endpoint(0)});
  ASSERT_TRUE(connected.ok()) << connected.status().ToString();
  Client& client = **connected;
  const TestMatrix a = SmallIntegers(512, 16, 1), b = SmallIntegers(16, 512, 2);
  for (const auto& [name, matrix, sharding] :
       {std::tuple("A", &a, "[M_x, K]"), std::tuple("B", &b, "[K, N_x]")}) {
    ASSERT_TRUE(client
                    .Put(name, {.rows = matrix->rows, .cols = matrix->cols, .sharding = sharding},
                         matrix->values.data(), matrix->values.size() * sizeof(float))
                    .ok());
  }
  // Allocated bytes without the history, which is bounded.
  double beside = 0;
  for (int job = 1; job <= 300; ++job) {
    const Result<JobInfo> done = client.Run({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                                             .a = "A",
                                             .b = "B",
                                             .c = "C",
                                             .algorithm = "peer",
                                             .chunk_count = 64});
    ASSERT_TRUE(done.ok()) << done.status().ToString();
    if (job % 100 != 0) continue;
    const v1::GetStatusResponse status = world.Status(0);
    const double history = MetricOf(status, "job_history_bytes");
    const double now = MetricOf(status, "process_allocated_bytes") - history;
    if (job == 100) {
      beside = now;
      // About 4,400 steps a job, of 8 bytes each.
      EXPECT_GT(history, 100 * 4000 * 8);
    }
    EXPECT_LT(now, beside + 4 * kMiB) << "job " << job;
  }
}

class Flooded : public ::testing::Test {
 protected:
  static constexpr uint64_t kTensor = 1;
  static constexpr int64_t kRows = 1024, kCols = 256;  // 1 MiB
  static constexpr int kUploads = 64;

  Flooded() : world_(WithTransferMemory()) {}
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    const Ran filled =
        world_.Ctl(0, {"tensor", "fill", "T", "--shape", absl::StrFormat("%dx%d", kRows, kCols),
                       "--sharding", "[M_x, K]"});
    ASSERT_EQ(filled.exit_code, 0) << filled.err;
    channel_ = grpc::CreateChannel(absl::StrCat("unix:", world_.socket(0)),
                                   grpc::InsecureChannelCredentials());
    stub_ = v1::ContentService::NewStub(channel_);
    // Takes the lease that the other uploads wait for.
    v1::UploadResponse response;
    grpc::ClientContext context;
    const grpc::Status opened = stub_->Upload(&context, Message("first"), &response);
    ASSERT_TRUE(opened.ok()) << opened.error_message();
  }
  static WorldOptions WithTransferMemory() {
    WorldOptions options = Limited(1);
    options.local = "transfer_memory: \"32MiB\"";
    return options;
  }
  static v1::UploadRequest Message(const std::string& id) {
    v1::UploadRequest request;
    request.mutable_begin()->set_upload_id(id);
    request.mutable_begin()->set_tensor_id(kTensor);
    return request;
  }
  double Metric(const std::string& name) { return MetricOf(world_.Status(0), name); }
  void EndFirst() {
    v1::AbortUploadRequest request;
    request.set_upload_id("first");
    grpc::ClientContext context;
    v1::AbortUploadResponse response;
    EXPECT_TRUE(stub_->AbortUpload(&context, request, &response).ok());
  }

  World world_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::ContentService::Stub> stub_;
};

TEST_F(Flooded, WaitingChunksAreBoundedAndFreedWithTheirCalls) {
  struct Call {
    grpc::ClientContext context;
    v1::UploadRequest request;
    v1::UploadResponse response;
    grpc::Status status;
    Notification done;
  };
  const double before = Metric("process_allocated_bytes");
  // Uses a separate connection, because gRPC keeps some MiB of buffers for a connection that was
  // busy.
  grpc::ChannelArguments own;
  own.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  std::unique_ptr<v1::ContentService::Stub> flood =
      v1::ContentService::NewStub(grpc::CreateCustomChannel(
          absl::StrCat("unix:", world_.socket(0)), grpc::InsecureChannelCredentials(), own));
  // Three chunks for each upload, 192 MiB in all.
  std::deque<Call> calls;
  for (int i = 0; i < 3 * kUploads; ++i) {
    Call& call = calls.emplace_back();
    call.request = Message(absl::StrCat("up", i % kUploads));
    call.request.mutable_chunk()->mutable_data()->resize(1 << 20);
    flood->async()->Upload(&call.context, &call.request, &call.response,
                           [&call](grpc::Status status) {
                             call.status = std::move(status);
                             call.done.Notify();
                           });
  }
  // At least all but 16 are refused at once: half of 32 MiB is for one owner, and the second and
  // third chunk of an upload take some of it until they are refused.
  const Deadline end = Deadline::After(kPatience);
  const auto refused = [&] {
    return std::count_if(calls.begin(), calls.end(), [](Call& call) {
      return call.done.WaitFor(absl::ZeroDuration()) && !call.status.ok();
    });
  };
  while (refused() < 3 * kUploads - 16 && !end.HasPassed()) absl::SleepFor(absl::Milliseconds(5));
  EXPECT_GE(refused(), 3 * kUploads - 16);
  // A refused chunk is freed a moment after its answer.
  EXPECT_TRUE(world_.WaitFor(0, "no more than waits", [&](const v1::GetStatusResponse& status) {
    return MetricOf(status, "transfer_memory_bytes") <= 16 * kMiB &&
           (kSanitized || MetricOf(status, "process_allocated_bytes") < before + 32 * kMiB);
  })) << Metric("process_allocated_bytes") - before;
  for (Call& call : calls) call.context.TryCancel();
  for (Call& call : calls) ASSERT_TRUE(call.done.WaitFor(kPatience));
  calls.clear();  // they hold the connection
  flood.reset();
  EXPECT_TRUE(world_.WaitFor(0, "its memory back", [&](const v1::GetStatusResponse& status) {
    return MetricOf(status, "transfer_memory_bytes") == 0 &&
           MetricOf(status, "process_allocated_bytes") < before + 8 * kMiB;
  })) << Metric("process_allocated_bytes") - before;
  EndFirst();
}

TEST_F(Flooded, ClientsWaitUntilThereIsMemory) {
  constexpr int kClients = 20;
  const std::string contents(kRows * kCols * sizeof(float), '\0');
  std::vector<std::thread> clients;
  std::vector<absl::Status> results(kClients);
  for (int i = 0; i < kClients; ++i) {
    clients.emplace_back([&, i] {
      const std::unique_ptr<Connection> connection = world_.Connect(0);
      const ReadFn read = [&](int64_t offset, int64_t bytes, char* to) {
        std::copy_n(contents.data() + offset, bytes, to);
        return absl::OkStatus();
      };
      results[i] = Upload(connection.get(), Message(absl::StrCat("up", i)).begin(),
                          static_cast<int64_t>(contents.size()), read, {[](int64_t) {}},
                          {.deadline = Deadline::After(kPatience)}, "")
                       .status();
    });
  }
  // Fifteen wait with a message of slightly more than 1 MiB each, and the others without one.
  EXPECT_TRUE(world_.WaitFor(0, "full", [&](const v1::GetStatusResponse& status) {
    return MetricOf(status, "transfer_memory_bytes") > 15 * kMiB;
  }));
  EndFirst();
  for (std::thread& client : clients) client.join();
  for (const absl::Status& result : results) EXPECT_EQ(result, absl::OkStatus());
  EXPECT_EQ(Metric("transfer_memory_bytes"), 0);
}

}  // namespace
}  // namespace agmm
