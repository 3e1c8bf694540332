// The progress of jobs: the nodes' answers, the waits of queued jobs, and the causes of late ones.
#include <gmock/gmock.h>

#include <algorithm>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "daemon/sequencer/scheduler.h"
#include "kernels/base/reason.h"
#include "tests/daemon/sequencer/scheduler_harness.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::StartsWith;

class ProgressTest : public SchedulerTest {
 protected:
  Answer<v1::Job> Ask(uint64_t job, bool step_times = false) {
    Answer<v1::Job> answer;
    v1::GetJobRequest request;
    request.set_job_id(job);
    request.set_progress(true);
    request.set_step_times(step_times);
    Do([&] { scheduler_->GetJob({}, request, answer.reply()); });
    return answer;
  }
  // Node 0's rank sends to node 1, and node 1's rank waits for that.
  static v1::Report ProgressReport(int node, uint64_t query) {
    v1::Report report;
    report.mutable_launch_progress()->set_query_id(query);
    v1::RankReport* rank = report.mutable_launch_progress()->add_ranks();
    rank->set_rank(node);
    rank->set_node(node);
    v1::RankProgress* progress = rank->mutable_progress();
    progress->set_epoch(1);
    v1::LaneProgress* lane = progress->add_lanes();
    lane->mutable_step()->set_rank(node);
    lane->mutable_step()->set_text(node == 0 ? "send rows 0:32 of A to rank 1" : "multiply");
    lane->set_for_us(node == 0 ? 900000 : 950000);
    if (node == 0) {
      lane->set_network_bytes(1 << 20);
      lane->add_to_nodes(1);
    } else {
      lane->add_waits()->mutable_producer()->set_rank(0);
    }
    return report;
  }
  // Answers for the nodes, and returns the nodes that were asked.
  std::vector<int> AnswerProgress(const std::set<int>& silent = {}) {
    std::vector<int> nodes;
    for (const auto& [node, command] : Take(v1::Command::kReportProgress)) {
      nodes.push_back(node);
      if (silent.count(node) == 0)
        Report(node, ProgressReport(node, command.report_progress().query_id()));
    }
    return nodes;
  }
  uint64_t Launch(const v1::SubmitJobRequest& request) {
    const uint64_t id = SubmitOk(request);
    AnswerPrepared();
    EXPECT_THAT(Launched(), ElementsAre(id));
    return id;
  }
};

TEST_F(ProgressTest, ConcurrentQueriesShareOneQuestionToTheNodes) {
  const uint64_t job = Launch(Request(MakeOperands()));
  EXPECT_EQ(Get(job)->ranks_size(), 0);
  EXPECT_THAT(Take(v1::Command::kReportProgress), IsEmpty());
  const Answer<v1::Job> first = Ask(job), second = Ask(job);
  EXPECT_FALSE(first.has());
  EXPECT_THAT(AnswerProgress(), ElementsAre(0, 1));
  for (const auto& answer : {first, second}) {
    const v1::Job got = *answer.Get();
    ASSERT_EQ(got.ranks_size(), 2);
    EXPECT_EQ(got.ranks(1).progress().lanes(0).waits(0).producer().rank(), 0);
    EXPECT_THAT(got.silent_nodes(), IsEmpty());
  }
  // The record has no progress.
  EXPECT_EQ(Get(job)->ranks_size(), 0);
  // A node that has ended the job is not asked, and its ranks are done.
  Done(0, job);
  const Answer<v1::Job> half = Ask(job, /*step_times=*/true);
  EXPECT_THAT(AnswerProgress(), ElementsAre(1));
  EXPECT_EQ(half.Get()->ranks(0).progress().epochs_done(), 1);
  EXPECT_EQ(half.Get()->ranks(0).steps_size(), 1);
  Done(1, job);
  EXPECT_EQ(Ask(job).Get()->state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_THAT(Take(v1::Command::kReportProgress), IsEmpty());
}

TEST_F(ProgressTest, ManyClientsAreAnsweredInBetweenTheLoopsOtherWork) {
  const uint64_t job = Launch(Request(MakeOperands()));
  std::vector<std::string> order;
  v1::GetJobRequest request;
  request.set_job_id(job);
  request.set_progress(true);
  CallContext gone;
  gone.cancel->Cancel(absl::CancelledError("hung up"));
  Do([&] {
    for (int client = 0; client < 100; ++client) {
      scheduler_->GetJob({}, request, [&](const absl::StatusOr<v1::Job>& answer) {
        EXPECT_EQ(answer->ranks_size(), 2);
        order.emplace_back("answer");
        if (order.size() == 1) loop_.Post([&] { order.emplace_back("other work"); });
      });
    }
    scheduler_->GetJob(gone, request, [&](const absl::StatusOr<v1::Job>& answer) {
      EXPECT_EQ(answer.status().message(), "hung up") << "no record is built";
    });
  });
  AnswerProgress();
  ASSERT_TRUE(Eventually([&] {
    size_t size = 0;
    Do([&] { size = order.size(); });
    return size == 101;
  }));
  EXPECT_EQ(std::find(order.begin(), order.end(), "other work") - order.begin(), 1);
}

TEST_F(ProgressTest, NamesANodeThatIsSilentAfterASecond) {
  const uint64_t job = Launch(Request(MakeOperands()));
  const Answer<v1::Job> asked = Ask(job);
  AnswerProgress(/*silent=*/{1});
  Advance(absl::Seconds(1));
  const v1::Job got = *asked.Get();
  EXPECT_THAT(got.silent_nodes(), ElementsAre("n1"));
  EXPECT_EQ(got.ranks_size(), 1);
}

TEST_F(ProgressTest, EndsWithTheGeneration) {
  const uint64_t job = Launch(Request(MakeOperands()));
  const Answer<v1::Job> asked = Ask(job);
  Do([&] { scheduler_->OnGenerationEnded({}, absl::AbortedError("node n1 was lost")); });
  EXPECT_EQ(asked.Get()->job_id(), job);
  EXPECT_EQ(State(job), v1::Job::STATE_FAILED);
}

TEST_F(ProgressTest, AQueuedJobSaysWhichJobItWaitsForAndOnWhichRanks) {
  v1::SubmitJobRequest endless = Request(MakeOperands());
  endless.set_repeat_count(5);
  const uint64_t runs = Launch(endless);
  endless.clear_repeat_count();
  const uint64_t queued = SubmitOk(endless), behind = SubmitOk(endless);
  v1::Job got = *Ask(queued).Get();
  EXPECT_EQ(got.waits_for().job_id(), runs);
  EXPECT_THAT(got.waits_for().ranks(), ElementsAre(0, 1));
  EXPECT_THAT(got.waits_for().reason(), HasSubstr("which had not ended"));
  got = *Ask(behind).Get();
  EXPECT_EQ(got.waits_for().job_id(), queued);
  EXPECT_FALSE(Get(queued)->has_waits_for());
}

TEST_F(ProgressTest, AQueuedJobNamesTheFirstJobOfTheChainBeforeIt) {
  const auto one = MeshOf(1, 0), other = MeshOf(1, 1);
  const Operands3 tensors = MakeOperands(64, one);
  BeginWrite(tensors.a);
  const uint64_t first = SubmitOk(Request(tensors, one));
  // On both ranks, and then on the one that the first job does not use.
  std::vector<uint64_t> behind = {SubmitOk(Request(MakeOperands()))};
  const Operands3 last = MakeOperands(64, other);
  for (int i = 0; i < 3; ++i) behind.push_back(SubmitOk(Request(last, other)));
  AnswerPrepared();
  for (const uint64_t job : behind) {
    const v1::Job got = *Ask(job).Get();
    EXPECT_EQ(got.waits_for().job_id(), first);
    EXPECT_EQ(got.waits_for().ranks_size(), job == behind[0] ? 1 : 0);
    EXPECT_THAT(got.waits_for().reason(),
                StartsWith(absl::StrFormat("job %d, which is before it in the queue and waited for "
                                           "tensor %d, which a transfer",
                                           first, tensors.a)));
  }
}

TEST_F(ProgressTest, AJobThatWaitsForATensorNamesItsHolder) {
  const Operands3 tensors = MakeOperands();
  const uint64_t runs = Launch(Request(tensors));
  // A read of C waits for the job, and a second job waits for that read.
  Answer<v1::BeginLeaseResponse> read;
  v1::BeginLeaseRequest lease;
  lease.set_tensor_id(tensors.c);
  lease.set_node(1);
  Do([&] { catalog_->BeginLease({}, lease, read.reply()); });
  const uint64_t queued = SubmitOk(Request(tensors));
  v1::Job got = *Ask(queued).Get();
  EXPECT_EQ(got.waits_for().job_id(), runs);
  EXPECT_THAT(got.waits_for().ranks(), ElementsAre(0, 1));
  EXPECT_EQ(got.waits_for().reason(),
            absl::StrFormat("tensor %d, behind a transfer that waits for job %d, which had not "
                            "ended",
                            tensors.c, runs));
  Done(0, runs);
  Done(1, runs);
  ASSERT_TRUE(read.Get().ok());
  got = *Ask(queued).Get();
  EXPECT_EQ(got.waits_for().job_id(), 0);
  EXPECT_EQ(
      got.waits_for().reason(),
      absl::StrFormat("tensor %d, which a transfer or a mapping through node n1 reads", tensors.c));
  Do([&] {
    v1::EndLeaseRequest end;
    end.set_lease_id(read.Get()->lease_id());
    end.set_node(1);
    catalog_->EndLease({}, end, [](const absl::StatusOr<v1::EndLeaseResponse>&) {});
  });
  EXPECT_THAT(Launched(), ElementsAre(queued));
}

TEST_F(ProgressTest, AJobThatCouldReadWithItsHolderNamesTheJobBetween) {
  // C has the shape of the B of the others.
  const Operands3 tensors = MakeOperands(32), others = MakeOperands();
  const uint64_t first = Launch(Request(tensors));
  Done(0, first);
  Done(1, first);
  Answer<v1::BeginLeaseResponse> read;
  v1::BeginLeaseRequest lease;
  lease.set_tensor_id(tensors.c);
  lease.set_node(1);
  Do([&] { catalog_->BeginLease({}, lease, read.reply()); });
  ASSERT_TRUE(read.Get().ok());
  const uint64_t writer = SubmitOk(Request(tensors));
  const uint64_t reader = SubmitOk(Request({others.a, tensors.c, others.c}));
  const v1::Job got = *Ask(reader).Get();
  EXPECT_EQ(got.waits_for().job_id(), writer);
  EXPECT_EQ(got.waits_for().reason(),
            absl::StrFormat("tensor %d, behind job %d, which waited for a transfer or a mapping "
                            "through node n1",
                            tensors.c, writer));
}

TEST_F(ProgressTest, AJobBehindATransferNamesItsHolderAndTheFirstJobBeforeThatOne) {
  const Operands3 slow = MakeOperands(), tensors = MakeOperands();
  BeginWrite(slow.a);
  const uint64_t first = SubmitOk(Request(slow));
  const uint64_t holder = SubmitOk(Request(tensors));
  // A read of C waits for the holder, and the last job waits for that read.
  Answer<v1::BeginLeaseResponse> read;
  v1::BeginLeaseRequest lease;
  lease.set_tensor_id(tensors.c);
  lease.set_node(1);
  Do([&] { catalog_->BeginLease({}, lease, read.reply()); });
  const uint64_t last = SubmitOk(Request(tensors));
  AnswerPrepared();
  const v1::Job got = *Ask(last).Get();
  EXPECT_EQ(got.waits_for().job_id(), first);
  EXPECT_THAT(got.waits_for().reason(),
              StartsWith(absl::StrFormat(
                  "tensor %d, behind a transfer that waits for job %d, which is behind job %d, "
                  "which waited for tensor %d, which a transfer",
                  tensors.c, holder, first, slow.a)));
}

TEST_F(ProgressTest, ADrainingNodeIsGivenUpOnlyWithoutMessagesInFlight) {
  const uint64_t job = Launch(Request(MakeOperands()));
  ASSERT_TRUE(Cancel(job).ok());
  const auto answer = [&](int busy) {
    size_t answered = 0;
    for (const Deadline end = Deadline::After(kPatience); answered == 0 && !end.HasPassed();) {
      Advance(Parts().drain_limit);
      for (const auto& [node, command] : Take(v1::Command::kReportProgress)) {
        v1::Report report = ProgressReport(node, command.report_progress().query_id());
        v1::LaunchProgress* progress = report.mutable_launch_progress();
        // Node 0 sends, and node 1 receives.
        if (node == 0) progress->mutable_ranks(0)->mutable_progress()->set_in_flight_count(1);
        if (node == 1) progress->set_arriving_count(busy);
        Report(node, report);
        ++answered;
      }
    }
    EXPECT_EQ(answered, 2);
  };
  const auto lost = [&] {
    std::vector<std::pair<int, std::string>> nodes;
    Do([&] { nodes = members_.lost; });
    return nodes;
  };
  for (int i = 0; i < 3; ++i) answer(1);
  EXPECT_THAT(lost(), IsEmpty());
  answer(0);
  ASSERT_THAT(lost(), SizeIs(1));
  EXPECT_EQ(lost()[0].first, 1);
}

TEST_F(ProgressTest, ADrainLimitDropsNoNodeAfterTheLaunchHasEnded) {
  v1::SubmitJobRequest request = Request(MakeOperands());
  const uint64_t first = SubmitOk(request), second = SubmitOk(request);
  AnswerPrepared();
  ASSERT_THAT(Launched(), ElementsAre(first, second));
  // The queries of a launch that reached its drain limit.
  const auto asked = [&] {
    std::vector<FakeMembers::Sent> sent;
    EXPECT_TRUE(Eventually([&] {
      Advance(Parts().drain_limit);
      return !(sent = Take(v1::Command::kReportProgress)).empty();
    }));
    return sent;
  };
  const auto lost = [&] {
    size_t nodes = 0;
    Do([&] { nodes = members_.lost.size(); });
    return nodes;
  };
  // The second job drains to be requeued, and has its next launch when the nodes answer.
  Done(0, first, absl::InternalError("broken"));
  Done(1, first, absl::AbortedError("cancelled"));
  const std::vector<FakeMembers::Sent> old = asked();
  for (int node : {0, 1}) Done(node, second, absl::AbortedError("cancelled"), /*began=*/false);
  AnswerPrepared();
  ASSERT_THAT(Launched(), ElementsAre(second));
  for (const auto& [node, command] : old)
    Report(node, ProgressReport(node, command.report_progress().query_id()));
  EXPECT_EQ(lost(), 0u);
  // The end of the generation, which also ends the query, does not drop the node either.
  ASSERT_TRUE(Cancel(second).ok());
  EXPECT_THAT(asked(), SizeIs(2));
  Do([&] { scheduler_->OnGenerationEnded({1}, absl::AbortedError("node n1 was lost")); });
  EXPECT_EQ(lost(), 0u);
}

TEST_F(ProgressTest, AJobIsOverSoonAfterItsDeadlineAndNamesTheStepThatHeldItUp) {
  v1::SubmitJobRequest request = Request(MakeOperands());
  request.mutable_timeout()->set_seconds(10);
  const uint64_t job = Launch(request);
  const Answer<v1::Job> ended = StartWait(job);
  // Node 1 reports its deadline; node 0 drains, because it still sends.
  Done(1, job, absl::DeadlineExceededError("rank 1 waited"));
  EXPECT_FALSE(ended.has());
  std::set<int> asked;
  Advance(absl::Seconds(10));
  EXPECT_TRUE(Eventually([&] {
    Advance(absl::Milliseconds(100));
    for (int node : AnswerProgress()) asked.insert(node);
    return ended.has();
  }));
  EXPECT_THAT(asked, ElementsAre(0));
  const v1::Job got = *ended.Get();
  EXPECT_EQ(got.state(), v1::Job::STATE_FAILED);
  ExpectLate(got,
             "10s: rank 0 lane 0 step 0 on node n0 (send rows 0:32 of A to rank 1): at work "
             "for 900 ms, 1 MiB to node n1");
  EXPECT_THAT(got.error().message(), HasSubstr("; node n1: rank 1 waited; if it needs longer"));
  EXPECT_THAT(got.ranks(), SizeIs(2));
  // Its memory is held until node 0 has drained.
  EXPECT_THAT(WorkspaceBytes(), ::testing::Gt(0));
  Done(0, job, absl::AbortedError("cancelled"));
  EXPECT_EQ(Get(job)->error().message(), got.error().message());
}

}  // namespace
}  // namespace agmm
