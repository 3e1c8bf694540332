// agmmctl with a daemon that answers CANCELLED without being asked to, or answers only after the
// client has disconnected.
#include <grpcpp/grpcpp.h>
#include <signal.h>

#include <atomic>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "agmm/v1/job.grpc.pb.h"
#include "agmm/v1/tensor.grpc.pb.h"
#include "gmock/gmock.h"
#include "proto/convert/grpc_call.h"
#include "proto/convert/rpc_status.h"
#include "tests/e2e/world.h"
#include "tests/support/matrix.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

// Stops while a client waits for a job, and never finishes an upload.
class StoppingDaemon final : public v1::JobService::Service,
                             public v1::TensorService::Service,
                             public v1::ContentService::Service {
 public:
  StoppingDaemon() {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(static_cast<v1::JobService::Service*>(this));
    builder.RegisterService(static_cast<v1::TensorService::Service*>(this));
    builder.RegisterService(static_cast<v1::ContentService::Service*>(this));
    server_ = builder.BuildAndStart();
  }
  ~StoppingDaemon() override { server_->Shutdown(ToGrpc(Deadline::After(absl::ZeroDuration()))); }
  std::string endpoint() const { return absl::StrCat("127.0.0.1:", port_); }

  grpc::Status GetTensor(grpc::ServerContext*, const v1::GetTensorRequest* request,
                         v1::Tensor* tensor) override {
    v1::TensorSpec& spec = *tensor->mutable_spec();
    spec.set_rows(8);
    spec.set_cols(8);
    spec.set_dtype(v1::DTYPE_F32);
    spec.set_sharding(request->tensor().name() == "X" ? "[M_x, K]" : "[K, N_x]");
    v1::MeshAxis& axis = *spec.mutable_mesh()->add_axes();
    axis.set_name("x");
    axis.set_size(1);
    spec.mutable_mesh()->add_ranks(0);
    return grpc::Status::OK;
  }
  grpc::Status SubmitJob(grpc::ServerContext*, const v1::SubmitJobRequest*, v1::Job* job) override {
    job->set_job_id(7);
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext*, const v1::GetJobRequest*, v1::Job* job) override {
    job->set_job_id(7);
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const v1::WatchJobRequest*,
                        grpc::ServerWriter<v1::WatchJobResponse>*) override {
    const absl::Status stopping = absl::CancelledError("the daemon is stopping");
    return grpc::Status(grpc::StatusCode::CANCELLED, std::string(stopping.message()),
                        ToProto(stopping).SerializeAsString());
  }
  grpc::Status CancelJob(grpc::ServerContext*, const v1::CancelJobRequest*, v1::Job*) override {
    ++cancels;
    return grpc::Status::OK;
  }

  grpc::Status Upload(grpc::ServerContext* context, const v1::UploadRequest*,
                      v1::UploadResponse*) override {
    uploading = true;
    while (!context->IsCancelled()) absl::SleepFor(absl::Milliseconds(1));
    return grpc::Status::CANCELLED;
  }
  grpc::Status AbortUpload(grpc::ServerContext*, const v1::AbortUploadRequest*,
                           v1::AbortUploadResponse*) override {
    ++aborts;
    return grpc::Status::OK;
  }

  std::atomic<int> cancels = 0, aborts = 0;
  std::atomic<bool> uploading = false;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

class CtlStopping : public ::testing::Test {
 protected:
  std::string ErrorOf(std::vector<std::string> arguments) {
    std::vector<std::string> argv = {Program("agmmctl"), "--endpoint", daemon_.endpoint()};
    argv.insert(argv.end(), arguments.begin(), arguments.end());
    Process process(argv, folder_ / arguments[1]);
    EXPECT_EQ(process.Wait(kPatience), 130);
    return process.err();
  }
  const TempFolder folder_{"ctl_stopping"};
  StoppingDaemon daemon_;
};

TEST_F(CtlStopping, AStoppingDaemonIsNotMistakenForCtrlC) {
  const std::string error = ErrorOf({"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"});
  EXPECT_THAT(error, HasSubstr("the daemon is stopping"));
  EXPECT_THAT(error, HasSubstr("may still be running"));
  EXPECT_EQ(daemon_.cancels, 0);
  EXPECT_THAT(ErrorOf({"job", "watch", "7"}), HasSubstr("the daemon is stopping"));
}

TEST_F(CtlStopping, CtrlCOfARewriteSaysThatTheContentsMayBeLost) {
  WriteNpy(folder_ / "X.npy", SmallIntegers(8, 8, 1));
  Process put({Program("agmmctl"), "--endpoint", daemon_.endpoint(), "tensor", "put", "#7",
               folder_ / "X.npy"},
              folder_ / "put");
  ASSERT_TRUE(Eventually([&] { return daemon_.uploading.load(); })) << put.err();
  put.Signal(SIGINT);
  EXPECT_EQ(put.Wait(kPatience), 130);
  EXPECT_THAT(put.err(), HasSubstr("#7 is freed if it was new, and may have lost its contents "
                                   "otherwise; see `agmmctl tensor show #7`"));
  EXPECT_EQ(daemon_.aborts, 1);
}

// nohup ignores SIGHUP.
TEST_F(CtlStopping, ASignalThatIsIgnoredAtTheStartStaysIgnored) {
  WriteNpy(folder_ / "X.npy", SmallIntegers(8, 8, 1));
  Process put({"/bin/sh", "-c", "trap '' HUP; exec \"$0\" \"$@\"", Program("agmmctl"), "--endpoint",
               daemon_.endpoint(), "tensor", "put", "#7", folder_ / "X.npy"},
              folder_ / "put");
  ASSERT_TRUE(Eventually([&] { return daemon_.uploading.load(); })) << put.err();
  EXPECT_TRUE(put.HasSignal("SigIgn", SIGHUP));
  EXPECT_FALSE(put.HasSignal("SigBlk", SIGHUP)) << "a blocked signal is taken, even if ignored";
  put.Signal(SIGHUP);
  EXPECT_TRUE(put.Running()) << put.err();
  // The first signal that is taken interrupts; a second would end the process without the text.
  put.Signal(SIGTERM);
  EXPECT_EQ(put.Wait(kPatience), 130);
  EXPECT_THAT(put.err(), HasSubstr("#7 is freed if it was new"));
  EXPECT_EQ(daemon_.aborts, 1);
}

TEST_F(CtlStopping, AnotherServerIsNamedInOneLine) {
  // This daemon does not have a ClusterService.
  Process process({Program("agmmctl"), "--endpoint", daemon_.endpoint(), "status"},
                  folder_ / "status");
  EXPECT_EQ(process.Wait(kPatience), 3);
  EXPECT_EQ(process.err(),
            absl::StrCat("agmmctl: something that is not agmmd answers at ", daemon_.endpoint(),
                         "; give the endpoint of a daemon with --endpoint: host:port or "
                         "unix:/path\n"));
}

}  // namespace
}  // namespace agmm
