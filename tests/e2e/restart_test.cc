// Ids start again at 1 when the sequencer restarts. A client's call about an old id must never
// reach the object that has this id now.
#include <signal.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "client/agmm.h"
#include "client/connect/tensor_transfer.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr char kGone[] = "was lost when node 0's daemon restarted";

class Restart : public Ctl {
 protected:
  void RestartSequencer() {
    world_.Kill(0);
    world_.Start(0);
    ASSERT_TRUE(world_.WaitReady(0));
    ASSERT_TRUE(world_.WaitReady(1));
  }
  // A client of the sequencer's own daemon that waits for its job and has been stopped.
  std::unique_ptr<Process> StoppedWait() {
    std::unique_ptr<Process> client =
        world_.StartCtl(0, {"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever,
                            "--wait", "--timeout", "10m"});
    // By then it knows its job's id, and waits.
    EXPECT_TRUE(Prints(client.get(), "admitted"));
    client->Stop();
    return client;
  }
  void ExpectRuns(const std::string& job) { EXPECT_TRUE(Reaches(job, "running")); }
  static void ExpectPeerLost(const absl::Status& status, const std::string& what) {
    EXPECT_TRUE(absl::IsAborted(status)) << status;
    EXPECT_EQ(ReasonOf(status), kReasonPeerLost);
    EXPECT_THAT(std::string(status.message()), HasSubstr(what));
  }
  static void ExpectPeerLost(const Status& status, const std::string& what) {
    EXPECT_EQ(status.code(), StatusCode::kAborted) << status.ToString();
    EXPECT_EQ(status.reason(), "PEER_LOST");
    EXPECT_THAT(status.message(), HasSubstr(what));
  }
};

TEST_F(Restart, ARepeatedWaitDoesNotReturnAnotherJob) {
  PutOperands();
  const std::unique_ptr<Process> watcher = StoppedWait();
  RestartSequencer();
  PutOperands();
  ASSERT_EQ(SubmitForever(), "1");
  watcher->Signal(SIGCONT);
  EXPECT_EQ(watcher->Wait(kPatience), 7);
  EXPECT_EQ(watcher->err(),
            absl::StrCat("agmmctl: job 1 ", kGone,
                         "; submit it again (`agmmctl status --ready` waits for the "
                         "world)\n"));
  ExpectRuns("1");
}

TEST_F(Restart, ACancelOfAnOldIdDoesNotCancelAnotherJob) {
  PutOperands();
  const std::unique_ptr<Process> client = StoppedWait();
  RestartSequencer();
  PutOperands();
  ASSERT_EQ(SubmitForever(), "1");
  client->Signal(SIGINT);
  client->Signal(SIGCONT);
  EXPECT_EQ(client->Wait(kPatience), 7);
  EXPECT_THAT(client->err(), HasSubstr(kGone));
  ExpectRuns("1");
  // An id that a person types means the current job.
  EXPECT_EQ(OkJson({"job", "cancel", "1"}).value("job_id", 0), 1);
  EXPECT_TRUE(Reaches("1", "cancelled"));
}

TEST_F(Restart, AHandleOfTheLibraryStandsForItsJobAlone) {
  for (int asked : {0, 1}) {
    SCOPED_TRACE(asked);
    auto client = Client::Connect({.endpoint = world_.endpoint(asked)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    PutOperands();
    const auto job = (*client)->Submit({.spec = "A[M_x,K] * B[K,N_x] -> C[M,N_x]",
                                        .a = "X",
                                        .b = "W",
                                        .c = "Y",
                                        .repeat_count = 1'000'000,
                                        .timeout = kPatienceMs});
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    ASSERT_EQ(job->id(), 1u);
    std::future<Result<JobInfo>> done = job->Done(kPatienceMs);
    RestartSequencer();
    PutOperands();
    ASSERT_EQ(SubmitForever(), "1");
    EXPECT_EQ(done.get().status().reason(), "PEER_LOST");  // the message may vary
    ExpectPeerLost(job->Cancel(), kGone);
    ExpectPeerLost(job->Info().status(), kGone);
    ExpectPeerLost(job->Wait(kPatienceMs).status(), kGone);
    ExpectPeerLost(job->Done(kPatienceMs).get().status(), kGone);
    std::promise<Status> end;
    job->Watch([](const JobEvent&) { return true; },
               [&](const Result<JobInfo>& info) { end.set_value(info.status()); });
    ExpectPeerLost(end.get_future().get(), kGone);
    ExpectRuns("1");
    // A new FindJob returns the current job.
    const auto found = (*client)->FindJob(1);
    ASSERT_TRUE(found.ok()) << found.status().ToString();
    EXPECT_TRUE(found->Cancel().ok());
    EXPECT_TRUE(Reaches("1", "cancelled"));
    RestartSequencer();
  }
}

TEST_F(Restart, TheIdOfATensorDoesNotMeanAnotherTensor) {
  for (int asked : {0, 1}) {
    SCOPED_TRACE(asked);
    const std::unique_ptr<Connection> connection = world_.Connect(asked);
    PutOperands();
    v1::TensorRef ref;
    ref.set_name("X");
    const auto old = connection->GetTensor(ref);
    ASSERT_TRUE(old.ok()) << old.status();
    RestartSequencer();
    PutOperands();
    ASSERT_EQ(connection->GetTensor(ref)->tensor_id(), old->tensor_id());
    ref.set_tensor_id(old->tensor_id());
    ExpectPeerLost(connection->DeleteTensor(IdOf(*old)), kGone);
    ExpectPeerLost(Download(
                       connection.get(), ref, [](auto&&...) { return absl::OkStatus(); },
                       {[](int64_t) {}}, {.deadline = Deadline::After(kPatience)}, old->sequencer())
                       .status(),
                   kGone);
    v1::BeginUpload begin;
    begin.set_tensor_id(old->tensor_id());
    ExpectPeerLost(Upload(
                       connection.get(), begin, 96 * 80 * 4,
                       [](int64_t, int64_t size, char* out) {
                         std::memset(out, 0, size);
                         return absl::OkStatus();
                       },
                       {[](int64_t) {}}, {.deadline = Deadline::After(kPatience)}, old->sequencer())
                       .status(),
                   kGone);
    v1::SubmitJobRequest submit;
    submit.set_spec("A[M_x,K] * B[K,N_x] -> C[M,N_x]");
    *submit.mutable_mesh() = old->spec().mesh();
    submit.add_tensors()->set_tensor_id(old->tensor_id());
    submit.add_tensors()->set_name("W");
    submit.add_tensors()->set_name("Y");
    ExpectPeerLost(connection->SubmitJob(submit, kPlacingCall, old->sequencer()).status(),
                   "submit again");
    EXPECT_TRUE(SameBits(Get("X"), SmallIntegers(96, 80, 1)));
    RestartSequencer();
  }
}

// Large enough that it cannot be in flight as a whole.
TEST_F(Restart, ADownloadDoesNotContinueWithAnotherTensor) {
  const auto put = [&](const char* seed) {
    Ok({"tensor", "fill", "L", "--shape", "2048x2048", "--seed", seed});
  };
  put("1");
  const std::unique_ptr<Connection> connection = world_.Connect(0);
  ASSERT_TRUE(connection->GetStatus().ok());
  v1::TensorRef ref;
  ref.set_name("L");
  bool restarted = false;
  const auto got = Download(connection.get(), ref,
                            [&](const v1::Tensor&, int64_t, absl::string_view) {
                              if (std::exchange(restarted, true)) return absl::OkStatus();
                              RestartSequencer();
                              put("2");
                              return absl::OkStatus();
                            },
                            {[](int64_t) {}}, {.deadline = Deadline::After(kPatience)});
  ExpectPeerLost(got.status(), kGone);
}

TEST_F(Restart, ASubmitThatIsRepeatedIsOneJobOfEachSequencer) {
  PutOperands();
  const std::unique_ptr<Connection> connection = world_.Connect(1);
  v1::TensorRef ref;
  ref.set_name("X");
  v1::SubmitJobRequest submit;
  submit.set_request_id("once");
  submit.set_spec("A[M_x,K] * B[K,N_x] -> C[M,N_x]");
  *submit.mutable_mesh() = connection->GetTensor(ref)->spec().mesh();
  for (const char* name : {"X", "W", "Y"}) submit.add_tensors()->set_name(name);
  std::vector<std::string> sequencers;
  for (int life : {1, 2}) {
    SCOPED_TRACE(life);
    const auto job = connection->SubmitJob(submit);
    ASSERT_TRUE(job.ok()) << job.status();
    const auto again = connection->SubmitJob(submit);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(again->job_id(), job->job_id());
    EXPECT_EQ(again->sequencer(), job->sequencer());
    EXPECT_EQ(job->job_id(), 1u);
    EXPECT_EQ(job->sequencer(), world_.Status(1).nodes(0).incarnation());
    sequencers.push_back(job->sequencer());
    RestartSequencer();
    PutOperands();
  }
  EXPECT_NE(sequencers[0], sequencers[1]);
}

}  // namespace
}  // namespace agmm
