#include "daemon/measure/tuner.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "kernels/base/reason.h"
#include "proto/convert/tuning_messages.h"
#include "tests/daemon/fake_members.h"
#include "tests/support/logged.h"
#include "tests/support/notification.h"
#include "tests/support/run_on_loop.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::StartsWith;

v1::TunedPlan PlanOf(int64_t m) {
  v1::TunedPlan plan;
  plan.set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
  for (int i = 0; i < 3; ++i) plan.add_dtypes(v1::DTYPE_F32);
  plan.set_mesh("x=2");
  plan.add_ranks_per_node(1);
  plan.add_ranks_per_node(1);
  plan.set_m(m);
  plan.set_n(64);
  plan.set_k(64);
  plan.mutable_options()->set_algorithm("ring");
  plan.mutable_options()->set_chunk_count(2);
  plan.mutable_options()->set_k_chunk_count(1);
  plan.mutable_options()->set_split("N=x");
  plan.set_time_us(10);
  plan.set_date("2026-11-27");
  return plan;
}

v1::StoreTuningRequest RequestOf(const v1::TunedPlan& plan) {
  v1::StoreTuningRequest request;
  *request.add_plans() = plan;
  return request;
}

// A tuner over a fake world of three nodes with a rank each.
class TunerTest : public testing::Test {
 protected:
  TunerTest() {
    machine_.name = "test";
    machine_.version = 3;
    machine_.between.rates.one_way = 1.25;
    for (WorldRank& rank : members_.mutable_ranks()) {
      rank.device = "cpu: 1 thread";
      rank.processor = "a processor";
    }
  }
  ~TunerTest() override {
    worker_.Stop();
    loop_.Stop();
  }
  // The tuner of a daemon that has just started.
  void Make() {
    Tuner::Parts parts;
    parts.loop = &loop_;
    parts.worker = &worker_;
    parts.members = &members_;
    parts.machine = [this] { return std::make_shared<const Machine>(machine_); };
    parts.folder = folder_.path();
    parts.shipped = [this]() -> const TuningText& { return shipped_; };
    Do([&] { tuner_ = std::make_unique<Tuner>(std::move(parts)); });
  }
  template <typename Task>
  void Do(Task task) {
    RunOnLoop(&loop_, std::move(task));
  }
  absl::StatusOr<v1::TuningStatus> Get() {
    absl::StatusOr<v1::TuningStatus> answer = absl::UnknownError("no answer");
    Notification answered;
    loop_.Post([&] {
      tuner_->GetTuning({}, {}, [&](absl::StatusOr<v1::TuningStatus> status) {
        answer = std::move(status);
        answered.Notify();
      });
    });
    answered.Wait();
    return answer;
  }
  absl::StatusOr<v1::TuningStatus> Store(const v1::StoreTuningRequest& request) {
    absl::StatusOr<v1::TuningStatus> answer = absl::UnknownError("no answer");
    Notification answered;
    loop_.Post([&] {
      tuner_->StoreTuning({}, request, [&](absl::StatusOr<v1::TuningStatus> status) {
        answer = std::move(status);
        answered.Notify();
      });
    });
    answered.Wait();
    return answer;
  }
  std::shared_ptr<const TuningTable> Table() {
    std::shared_ptr<const TuningTable> table;
    Do([&] { table = tuner_->table(); });
    return table;
  }
  std::string file() const { return folder_ / "tuning.textproto"; }

  const TempFolder folder_{"tuner"};
  Machine machine_;
  TuningText shipped_;
  FakeMembers members_{3, 1, 1 << 20};
  std::unique_ptr<Tuner> tuner_;
  Loop loop_{"the tests"}, worker_{"the worker"};
};

TEST_F(TunerTest, WithoutPlansThereIsNoTable) {
  Make();
  const auto status = Get();
  ASSERT_TRUE(status.ok()) << status.status();
  EXPECT_EQ(status->plans_size(), 0);
  EXPECT_EQ(status->file(), file());
  EXPECT_EQ(Table(), nullptr);
}

TEST_F(TunerTest, AStoredPlanHasTheHardwareAndTheRateOfItsRanks) {
  Make();
  members_.mutable_ranks()[1].device = "cpu: 2 threads";
  const auto stored = Store(RequestOf(PlanOf(8)));
  ASSERT_TRUE(stored.ok()) << stored.status();
  ASSERT_EQ(stored->plans_size(), 1);
  EXPECT_EQ(stored->plans(0).hardware(), "a processor; cpu: 1 thread; cpu: 2 threads");
  EXPECT_EQ(stored->plans(0).between_gb_per_s(), 1.25);
  ASSERT_NE(Table(), nullptr);
  EXPECT_EQ(Table()->plans().size(), 1u);
  EXPECT_EQ(Get()->SerializeAsString(), stored->SerializeAsString());
}

TEST_F(TunerTest, TheRanksOfAPlanCanBeGiven) {
  Make();
  members_.mutable_ranks()[2].device = "another";
  v1::StoreTuningRequest request = RequestOf(PlanOf(8));
  request.add_ranks(1);
  request.add_ranks(2);
  EXPECT_EQ(Store(request)->plans(0).hardware(), "a processor; cpu: 1 thread; another");
}

TEST_F(TunerTest, IslandsAreHardware) {
  Make();
  members_.mutable_ranks()[1].island = 1;
  EXPECT_EQ(Store(RequestOf(PlanOf(8)))->plans(0).hardware(),
            "a processor; cpu: 1 thread; islands 0,1");
}

TEST_F(TunerTest, WithoutMeasurementsTheRateIsUnknown) {
  Make();
  machine_.version = 0;
  EXPECT_EQ(Store(RequestOf(PlanOf(8)))->plans(0).between_gb_per_s(), 0);
}

TEST_F(TunerTest, APlanReplacesTheOneForTheSameShape) {
  Make();
  ASSERT_TRUE(Store(RequestOf(PlanOf(8))).ok());
  ASSERT_TRUE(Store(RequestOf(PlanOf(8))).ok());
  EXPECT_EQ(Table()->plans().size(), 1u);
}

TEST_F(TunerTest, ARestartReadsStoredPlans) {
  Make();
  const auto stored = Store(RequestOf(PlanOf(8)));
  Make();
  EXPECT_EQ(Get()->SerializeAsString(), stored->SerializeAsString());
  EXPECT_EQ(Table()->plans().size(), 1u);
}

TEST_F(TunerTest, StoredPlansComeBeforeShippedOnes) {
  TuningText::Entry entry;
  entry.plan = *FromProto(PlanOf(8));
  entry.plan.time_us = 99;
  shipped_.entries.push_back(entry);
  Make();
  ASSERT_EQ(Get()->shipped_size(), 1);
  EXPECT_EQ(Get()->plans_size(), 0);
  const auto stored = Store(RequestOf(PlanOf(8)));
  EXPECT_EQ(stored->plans_size(), 1);
  ASSERT_EQ(Table()->plans().size(), 2u);
  EXPECT_EQ(Table()->plans()[0].time_us, 10);
  EXPECT_EQ(Table()->plans()[1].time_us, 99);
}

TEST_F(TunerTest, ACorruptEntryIsSkippedWithItsPlace) {
  Make();
  ASSERT_TRUE(Store(RequestOf(PlanOf(8))).ok());
  std::ofstream(file(), std::ios::app) << "plans {\n  m: x\n}\n";
  const Logged logged;
  Make();
  const auto status = Get();
  EXPECT_EQ(status->plans_size(), 1);
  const std::string place = file() + ":";
  EXPECT_THAT(status->skipped(), ElementsAre(AllOf(StartsWith(place), HasSubstr(":6: "))));
  EXPECT_THAT(logged.text(), HasSubstr("warning: 1 stored tuned plan cannot be used; " + place));
  // It stays until someone corrects it.
  EXPECT_THAT(Store(RequestOf(PlanOf(16)))->skipped(), ElementsAre(StartsWith(place)));
}

TEST_F(TunerTest, AFileThatCannotBeReadIsNamed) {
  std::filesystem::create_directories(file());
  const Logged logged;
  Make();
  EXPECT_THAT(Get()->skipped(), ElementsAre(HasSubstr(file())));
  EXPECT_THAT(logged.text(), HasSubstr("warning: no stored tuned plan is used: "));
  EXPECT_EQ(Table(), nullptr);
}

TEST_F(TunerTest, WorldsThatShareAFolderKeepEachOthersPlans) {
  Make();
  measure::TuningFile other(folder_.path());
  TunedPlan plan = *FromProto(PlanOf(16));
  plan.key.hardware = "other hardware";
  ASSERT_TRUE(other.Add({plan}).ok());
  EXPECT_EQ(Store(RequestOf(PlanOf(8)))->plans_size(), 2);
  EXPECT_EQ(other.Read()->entries.size(), 2u);
}

TEST_F(TunerTest, ABadRequestNamesTheFieldAndStoresNothing) {
  Make();
  v1::StoreTuningRequest wrong_plan = RequestOf(PlanOf(8));
  *wrong_plan.add_plans() = PlanOf(-1);
  v1::StoreTuningRequest wrong_nodes = RequestOf(PlanOf(8));
  wrong_nodes.mutable_plans(0)->clear_ranks_per_node();
  wrong_nodes.mutable_plans(0)->add_ranks_per_node(2);
  v1::StoreTuningRequest too_few = RequestOf(PlanOf(8)), no_rank = too_few, not_there = too_few,
                         twice = too_few;
  too_few.add_ranks(1);
  for (const int rank : {0, 3}) no_rank.add_ranks(rank);
  for (const int rank : {0, -1}) not_there.add_ranks(rank);
  for (const int rank : {1, 1}) twice.add_ranks(rank);
  for (const auto& [request, error] :
       {std::pair(wrong_plan, "plans[1]: m is -1"),
        {wrong_nodes, "plans[0]: ranks_per_node is 2, but ranks 0-1 are 1, 1 on their nodes"},
        {too_few, "ranks has 1 entries, but mesh x=2 of plans[0] has 2"},
        {no_rank, "the plans are for rank 3; the world has 3, 0 to 2"},
        {not_there, "the plans are for rank -1"},
        {twice, "ranks 1,1 has one twice"}}) {
    const absl::Status status = Store(request).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), StartsWith(error));
  }
  EXPECT_EQ(Get()->plans_size(), 0);
  EXPECT_EQ(Table(), nullptr);
}

TEST_F(TunerTest, RanksThatChangeBetweenNodesHaveNoTunedPlans) {
  members_.mutable_ranks()[2].node = 0;
  Make();
  v1::TunedPlan plan = PlanOf(9);
  plan.set_mesh("x=3");
  plan.add_ranks_per_node(1);
  const absl::Status status = Store(RequestOf(plan)).status();
  EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("give the ranks of each node as neighbours"));
}

TEST_F(TunerTest, APlanOfAMissingNodeIsNotStored) {
  Make();
  members_.missing = 1;
  EXPECT_TRUE(absl::IsUnavailable(Store(RequestOf(PlanOf(8))).status()));
}

TEST_F(TunerTest, AFileThatCannotBeWrittenIsAnErrorAndTheTableStaysAsItIs) {
  Make();
  ASSERT_TRUE(Store(RequestOf(PlanOf(8))).ok());
  std::filesystem::remove_all(folder_.path());
  std::ofstream(folder_.path()) << "";
  EXPECT_FALSE(Store(RequestOf(PlanOf(16))).ok());
  EXPECT_EQ(Table()->plans().size(), 1u);
  std::filesystem::remove(folder_.path());
}

}  // namespace
}  // namespace agmm
