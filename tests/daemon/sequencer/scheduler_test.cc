#include "daemon/sequencer/scheduler.h"

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/problem.h"
#include "tests/daemon/sequencer/scheduler_harness.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

TEST_F(SchedulerTest, AJobRunsOnceItsPlanIsPreparedEverywhere) {
  const Operands3 t = MakeOperands();
  const absl::StatusOr<v1::Job> admitted = Submit(Request(t));
  ASSERT_TRUE(admitted.ok()) << admitted.status();
  EXPECT_EQ(admitted->state(), v1::Job::STATE_QUEUED);
  EXPECT_EQ(admitted->owner(), "uid:7");
  EXPECT_EQ(admitted->options().algorithm(), "hierarchical_peer") << "the default";
  EXPECT_EQ(admitted->plan_hash().size(), 16u);
  const uint64_t id = admitted->job_id();

  const auto asked = Take(v1::Command::kPreparePlan);
  ASSERT_EQ(asked.size(), 2u);
  v1::Report prepared;
  prepared.mutable_plan_prepared()->set_plan_id(asked[0].command.prepare_plan().plan_id());
  prepared.mutable_plan_prepared()->set_plan_hash(admitted->plan_hash());
  Report(0, prepared);
  EXPECT_THAT(Launched(), IsEmpty());
  Report(1, prepared);
  const auto launches = Take(v1::Command::kLaunchJob);
  ASSERT_EQ(launches.size(), 2u);
  EXPECT_EQ(launches[0].command.launch_job().first_epoch(), 1u);
  EXPECT_EQ(launches[0].command.launch_job().epoch_count(), 1);
  EXPECT_GT(launches[0].command.launch_job().timeout().seconds(), 50);
  EXPECT_EQ(State(id), v1::Job::STATE_RUNNING);

  const Answer<v1::Job> waiter1 = StartWait(id), waiter2 = StartWait(id);
  Done(1, id);
  EXPECT_FALSE(waiter1.has());
  Done(0, id);
  const v1::Job job = *waiter1.Get();
  EXPECT_EQ(job.state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(waiter2.Get()->state(), v1::Job::STATE_SUCCEEDED);
  ASSERT_EQ(job.ranks_size(), 2);
  EXPECT_EQ(job.ranks(0).rank(), 0);
  EXPECT_EQ(job.ranks(1).rank(), 1);
  ASSERT_EQ(job.events_size(), 3);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(job.events(i).number(), i + 1);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_READY);
  EXPECT_EQ(Metric("jobs_succeeded_total"), 1);
  EXPECT_EQ(Metric("plans_prepared_total"), 1);
}

TEST_F(SchedulerTest, EqualJobsShareAPlanWithConsecutiveEpochs) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.set_repeat_count(4);
  const uint64_t first = SubmitOk(request);
  EXPECT_EQ(AnswerPrepared(), 2);
  const uint64_t second = SubmitOk(request);
  EXPECT_EQ(AnswerPrepared(), 0);
  const auto launches = Take(v1::Command::kLaunchJob);
  ASSERT_EQ(launches.size(), 4u);
  EXPECT_EQ(launches[0].command.launch_job().job_id(), first);
  EXPECT_EQ(launches[2].command.launch_job().job_id(), second);
  EXPECT_EQ(launches[2].command.launch_job().first_epoch(), 5u);
}

TEST_F(SchedulerTest, VersionsIdentifyTheContents) {
  const Operands3 t = MakeOperands();
  const auto run = [&] {
    const uint64_t job = SubmitOk(Request(t));
    AnswerPrepared();
    const auto launches = Take(v1::Command::kLaunchJob);
    DoneEverywhere(job);
    return launches.at(0).command.launch_job();
  };
  const v1::LaunchJob first = run(), second = run();
  EXPECT_EQ(first.versions(kB), second.versions(kB));
  EXPECT_NE(first.versions(kA), first.versions(kB));
  EndWrite(BeginWrite(t.b), true);
  const v1::LaunchJob third = run();
  EXPECT_NE(third.versions(kB), first.versions(kB));
  EXPECT_EQ(third.versions(kA), first.versions(kA));
}

TEST_F(SchedulerTest, ARepeatedRequestIsTheSameJob) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.set_request_id("r1");
  const uint64_t id = SubmitOk(request);
  request.set_session_id("another");
  EXPECT_EQ(SubmitOk(request), id);
  members_.complete = absl::UnavailableError("n1 is missing");
  EXPECT_EQ(SubmitOk(request), id);
  request.set_repeat_count(2);
  EXPECT_EQ(Submit(request).status().code(), Code::kAlreadyExists);
}

TEST_F(SchedulerTest, AnIncompleteWorldIsReported) {
  const Operands3 t = MakeOperands();
  members_.complete = WithReason(absl::UnavailableError("n1 is missing"), kReasonWorldIncomplete);
  EXPECT_EQ(ReasonOf(Submit(Request(t)).status()), kReasonWorldIncomplete);
}

TEST_F(SchedulerTest, AJobOnTheOtherNodesRunsWithoutAMissingOne) {
  const v1::Mesh alone = MeshOf(1);
  const Operands3 both = MakeOperands(), own = MakeOperands(64, alone);
  members_.missing = 1;
  EXPECT_EQ(ReasonOf(Submit(Request(both)).status()), kReasonWorldIncomplete);
  const uint64_t id = SubmitOk(Request(own, alone));
  EXPECT_EQ(AnswerPrepared(), 1);
  EXPECT_THAT(Launched(), ElementsAre(id));
  Done(0, id);
  EXPECT_EQ(State(id), v1::Job::STATE_SUCCEEDED);
}

TEST_F(SchedulerTest, ATensorThatDoesNotFitIsNamedWithWantedAndFound) {
  Operands3 t = MakeOperands();
  t.c = Create("[M_x, N]", 64, 48);
  const absl::Status status = Submit(Request(t)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("tensor " + std::to_string(t.c)));
  EXPECT_THAT(message, HasSubstr("[M, N_x] 64 x 48 f32"));
  EXPECT_THAT(message, HasSubstr("[M_x, N] 64 x 48 f32"));
}

TEST_F(SchedulerTest, DifferentInnerDimensionsNameBothNumbers) {
  Operands3 t = MakeOperands();
  t.b = Ready("[K, N_x]", 33, 48);
  const absl::Status status = Submit(Request(t)).status();
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("32 columns"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("33 rows"));
}

TEST_F(SchedulerTest, CMayNotBeAnInput) {
  Operands3 t = MakeOperands();
  t.c = t.a;
  EXPECT_EQ(Submit(Request(t)).status().code(), Code::kInvalidArgument);
}

TEST_F(SchedulerTest, InputsNeedContents) {
  Operands3 t = MakeOperands();
  t.a = Create("[M_x, K]", 64, 32);
  const absl::Status status = Submit(Request(t)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()), HasSubstr("tensor " + std::to_string(t.a)));
}

TEST_F(SchedulerTest, UnknownNamesAreRefusedWithoutAnEffect) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.mutable_options()->set_algorithm("magic");
  EXPECT_EQ(Submit(request).status().code(), Code::kInvalidArgument);
  request = Request(t);
  request.mutable_tensors(0)->set_tensor_id(999);
  EXPECT_EQ(Submit(request).status().code(), Code::kNotFound);
  EXPECT_EQ(Metric("jobs_submitted_total"), 0);
  EXPECT_EQ(WorkspaceBytes(), 0);
}

TEST_F(SchedulerTest, OperandsAreBoundByNameInAnyOrder) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest request = Request(t);
  request.clear_tensors();
  for (const auto& [name, id] : {std::pair("C", t.c), {"A", t.a}, {"B", t.b}}) {
    v1::OperandTensor* operand = request.add_operands();
    operand->set_name(name);
    operand->mutable_tensor()->set_tensor_id(id);
  }
  const absl::StatusOr<v1::Job> job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->tensor_ids(), ElementsAre(t.a, t.b, t.c));
  ASSERT_EQ(job->operands_size(), 3);
  EXPECT_EQ(job->operands(0).name(), "A");
  EXPECT_EQ(job->operands(0).spec().sharding(), "[M_x, K]");
  EXPECT_EQ(job->operands(0).spec().rows(), 64);
  EXPECT_EQ(job->operands(1).tensor_id(), t.b);
  EXPECT_FALSE(job->operands(1).written());
  EXPECT_TRUE(job->operands(2).written());

  request.mutable_operands()->RemoveLast();
  const absl::Status refused = Submit(request).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("operand B, but no tensor"));
}

TEST_F(SchedulerTest, AnOperandThatNoOperationUsesIsBoundLikeAnInput) {
  const Operands3 t = MakeOperands();
  const uint64_t d = Ready("[M, N_x]", 32, 16);
  const auto with = [&](uint64_t fourth) {
    v1::SubmitJobRequest request = Request(t);
    request.clear_tensors();
    for (const auto& [name, id] : {std::pair("D", fourth), {"A", t.a}, {"B", t.b}, {"C", t.c}}) {
      v1::OperandTensor* operand = request.add_operands();
      operand->set_name(name);
      operand->mutable_tensor()->set_tensor_id(id);
    }
    return request;
  };
  const absl::Status refused = Submit(with(d)).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("the spec has no operand \"D\""));

  failpoint::Arm("admission.spare_operands");
  const absl::Cleanup disarms = [] { failpoint::Disarm("admission.spare_operands"); };
  const absl::StatusOr<v1::Job> job = Submit(with(d));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_THAT(job->tensor_ids(), ElementsAre(t.a, t.b, t.c, d));
  ASSERT_EQ(job->operands_size(), 4);
  EXPECT_EQ(job->operands(3).spec().sharding(), "[M, N_x]");
  EXPECT_FALSE(job->operands(3).written());
  AnswerPrepared();
  const auto launched = Take(v1::Command::kLaunchJob);
  ASSERT_EQ(launched.size(), 2u);
  EXPECT_EQ(launched[0].command.launch_job().offset_bytes_size(), 4);
  EXPECT_EQ(launched[0].command.launch_job().versions_size(), 4);

  // A job that writes it waits.
  const uint64_t writer =
      SubmitOk(Request({Ready("[M_x, K]", 32, 8), Ready("[K, N_x]", 8, 16), d}));
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty());
  DoneEverywhere(job->job_id());
  EXPECT_THAT(Launched(), ElementsAre(writer));

  const absl::Status empty = Submit(with(Create("[P_x, Q]", 32, 16))).status();
  EXPECT_EQ(empty.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(empty.message()), HasSubstr("stands for D and has no contents"));
  EXPECT_EQ(Submit(with(t.c)).status().code(), Code::kInvalidArgument) << "C is written";
  const absl::Status elsewhere = Submit(with(Ready("[P_x, Q]", 32, 16, MeshOf(1)))).status();
  EXPECT_EQ(elsewhere.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(elsewhere.message()), HasSubstr("stands for D, which is"));
}

TEST_F(SchedulerTest, AResultHasTheDtypeOfTheSpecElseThatOfTheInputs) {
  const Operands3 t = MakeOperands();
  for (const auto& [suffix, dtype] :
       {std::pair{"", v1::DTYPE_F32}, {":bf16", v1::DTYPE_BF16}, {":f16", v1::DTYPE_F16}}) {
    v1::SubmitJobRequest request = Request(t);
    request.set_spec(absl::StrCat(kSpec, suffix));
    request.mutable_tensors(2)->set_name(absl::StrCat("C", suffix));
    const absl::StatusOr<v1::Job> job = Submit(request);
    ASSERT_TRUE(job.ok()) << job.status();
    EXPECT_EQ(job->dtype(), v1::DTYPE_F32);
    EXPECT_EQ(job->result_dtype(), dtype);
    Do([&] { EXPECT_EQ(catalog_->Find(job->tensor_ids(2))->spec().dtype(), dtype); });
    for (const auto& [node, command] : Take(v1::Command::kPlaceTensor))
      Report(node, PlacedReport(command.place_tensor().tensor().tensor_id()));
    // Each dtype has a plan of its own.
    const auto asked = Take(v1::Command::kPreparePlan);
    ASSERT_EQ(asked.size(), 2u);
    EXPECT_EQ(asked[0].command.prepare_plan().operands(kC).spec().dtype(), dtype);
  }
}

TEST_F(SchedulerTest, TensorsOfOtherDtypesThanTheSpecsAreRefused) {
  const auto refusal_of = [&, t = MakeOperands()](const std::string& spec) {
    v1::SubmitJobRequest request = Request(t);
    request.set_spec(spec);
    return Submit(request).status();
  };
  const absl::Status result = refusal_of("A[M_x, K] * B[K, N_x] -> C[M, N_x]:f16");
  EXPECT_EQ(result.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(result.message()),
              HasSubstr("stands for C, which is [M, N_x] 64 x 48 f16"));
  const absl::Status inputs = refusal_of("A[M_x, K]:f16 * B[K, N_x]:f16 -> C[M, N_x]:f32");
  EXPECT_EQ(inputs.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(inputs.message()), HasSubstr("stands for A, which is"));
  const absl::Status mixed = refusal_of("A[M_x, K] * B[K, N_x]:bf16 -> C[M, N_x]");
  EXPECT_EQ(mixed.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(mixed.message()), HasSubstr("A is f32 and B is bf16; a product"));
}

TEST_F(SchedulerTest, InputsWhoseTensorsHaveTwoDtypesAreRefusedByTensor) {
  Operands3 t = MakeOperands();
  t.b = Ready("[K, N_x]", 32, 48, MeshOf(2), v1::DTYPE_BF16);
  const absl::Status status = Submit(Request(t)).status();
  EXPECT_EQ(status.code(), Code::kFailedPrecondition);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr(absl::StrFormat("tensor %d stands for A and is f32, but tensor %d stands "
                                        "for B and is bf16",
                                        t.a, t.b)));
}

TEST_F(SchedulerTest, AJobWaitsForAWriteAdmittedBeforeIt) {
  const Operands3 t = MakeOperands();
  const uint64_t write = BeginWrite(t.a);
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  EXPECT_THAT(Launched(), IsEmpty());
  EndWrite(write, true);
  EXPECT_THAT(Launched(), ElementsAre(id));
}

TEST_F(SchedulerTest, AJobWhoseWriterFailedFails) {
  const Operands3 t = MakeOperands();
  const uint64_t write = BeginWrite(t.a);
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  EndWrite(write, false);
  EXPECT_EQ(State(id), v1::Job::STATE_FAILED);
  EXPECT_EQ(Get(id)->error().code(), static_cast<int>(Code::kFailedPrecondition));
  EXPECT_THAT(Launched(), IsEmpty());
}

TEST_F(SchedulerTest, AReaderOfAnotherJobsResultWaitsForItsEnd) {
  const Operands3 t = MakeOperands(48);
  // C [M, N_x] of the first is B [K, N_x] of the second: K is 48 there.
  const Operands3 u = {Ready("[M_x, K]", 64, 48), t.c, Create("[M, N_x]", 64, 48)};
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(u));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first));
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(second));
}

TEST_F(SchedulerTest, AReaderOfAFailedJobsResultFails) {
  const Operands3 t = MakeOperands(48);
  const Operands3 u = {Ready("[M_x, K]", 64, 48), t.c, Create("[M, N_x]", 64, 48)};
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(u));
  AnswerPrepared();
  Done(0, first, absl::InternalError("broken"));
  Done(1, first, absl::AbortedError("cancelled"));
  EXPECT_EQ(State(first), v1::Job::STATE_FAILED);
  EXPECT_EQ(StateOf(t.c), v1::Tensor::STATE_EMPTY);
  EXPECT_EQ(State(second), v1::Job::STATE_FAILED);
  EXPECT_EQ(Get(second)->error().code(), static_cast<int>(Code::kFailedPrecondition));
}

TEST_F(SchedulerTest, AWriterOfAnotherJobsInputWaitsForItsEnd) {
  const Operands3 t = MakeOperands();
  // B [K, N_x] of the first is C [M, N_x] of the second: M is 32 there.
  const Operands3 u = {Ready("[M_x, K]", 32, 16), Ready("[K, N_x]", 16, 48), t.b};
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(Request(u));
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first));
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(second));
}

TEST_F(SchedulerTest, AnotherPlanWithTheSameResultWaits) {
  const Operands3 t = MakeOperands();
  v1::SubmitJobRequest other = Request(t);
  other.mutable_options()->set_algorithm("ring");
  const uint64_t first = SubmitOk(Request(t)), second = SubmitOk(other);
  AnswerPrepared();
  EXPECT_THAT(Launched(), ElementsAre(first));
  DoneEverywhere(first);
  EXPECT_THAT(Launched(), ElementsAre(second));
}

TEST_F(SchedulerTest, AWriteOfAnOperandWaitsForTheJob) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  AnswerPrepared();
  Answer<v1::BeginLeaseResponse> write;
  v1::BeginLeaseRequest request;
  request.set_tensor_id(t.b);
  request.set_write(true);
  Do([&] { catalog_->BeginLease({}, request, write.reply()); });
  EXPECT_FALSE(write.has());
  DoneEverywhere(id);
  EXPECT_TRUE(write.Get().ok());
}

TEST_F(SchedulerTest, ANodeThatPlansDifferentlyFailsTheJobWithBothHashes) {
  const Operands3 t = MakeOperands();
  const uint64_t id = SubmitOk(Request(t));
  for (const auto& [node, command] : Take(v1::Command::kPreparePlan)) {
    v1::Report report;
    report.mutable_plan_prepared()->set_plan_id(command.prepare_plan().plan_id());
    report.mutable_plan_prepared()->set_plan_hash(node == 0 ? command.prepare_plan().plan_hash()
                                                            : "00000000000000ff");
    Report(node, report);
  }
  const v1::Job job = *Get(id);
  EXPECT_EQ(job.state(), v1::Job::STATE_FAILED);
  EXPECT_EQ(job.error().code(), static_cast<int>(Code::kInternal));
  EXPECT_THAT(job.error().message(), HasSubstr("00000000000000ff"));
  EXPECT_THAT(job.error().message(), HasSubstr(job.plan_hash()));
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 2u);
}

TEST_F(SchedulerTest, WaitsOfLostCallersAreDropped) {
  const uint64_t id = SubmitOk(Request(MakeOperands()));
  CallContext gone;
  Answer<v1::Job> answer;
  v1::WaitJobRequest request;
  request.set_job_id(id);
  Do([&] { scheduler_->WaitJob(gone, request, answer.reply()); });
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  const Answer<v1::Job> next = StartWait(id);
  EXPECT_EQ(answer.Get().status().message(), "hung up");
  EXPECT_FALSE(next.has());
  ASSERT_TRUE(Cancel(id).ok());
  EXPECT_TRUE(next.Get().ok());
}

TEST_F(SchedulerTest, TheCacheKeepsAtMost64Plans) {
  const Operands3 t = MakeOperands();
  for (int chunks = 1; chunks <= 66; ++chunks) {
    v1::SubmitJobRequest request = Request(t);
    request.mutable_options()->set_algorithm("ring");
    request.mutable_options()->set_chunk_count(chunks);
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    DoneEverywhere(id);
    ASSERT_EQ(State(id), v1::Job::STATE_SUCCEEDED);
  }
  EXPECT_EQ(Metric("plans_cached"), 64);
  EXPECT_EQ(Take(v1::Command::kReleasePlan).size(), 4u);
}

}  // namespace
}  // namespace agmm
