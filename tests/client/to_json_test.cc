// The schemas of --json as golden files, which show a field that was renamed or removed.
#include "client/ctl/json.h"

#include "client/ctl/plan_json.h"
#include "client/ctl/report.h"
#include "gtest/gtest.h"
#include "kernels/base/reason.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/client/messages_fixture.h"
#include "tests/golden/golden.h"

namespace agmm {
namespace {

void ExpectGoldenJson(const std::string& name, const Json& json) {
  ExpectGolden("json/" + name, json.dump(1) + "\n");
}

TEST(ToJson, OfATensorMatchesTheGoldenFile) {
  ExpectGoldenJson("tensor.json", ToJson(SomeTensor()));
}

TEST(ToJson, OfAGetNamesItsFile) {
  ExpectGoldenJson("tensor_get.json", ToJson(SomeTensor(), {"W.npy", false, DType::kF32}));
}

TEST(ToJson, OfAnErrorHasItsCodeItsReasonAndItsMessage) {
  ExpectGoldenJson(
      "error.json",
      ToJson(WithReason(absl::ResourceExhaustedError("no 4 GiB are free"), kReasonHeapFull)));
  EXPECT_TRUE(ToJson(absl::NotFoundError("no W"))["error"]["reason"].is_null());
}

TEST(JsonLine, HoldsAnyFileName) {
  EXPECT_EQ(JsonLine({{"file", "a\xff"}}), "{\"file\":\"a\xef\xbf\xbd\"}\n");
}

TEST(ToJson, OfAListHasTheTensorsAndTheBytesByClass) {
  v1::ListTensorsResponse list;
  *list.add_tensors() = SomeTensor();
  ExpectGoldenJson("tensor_list.json", ToJson(list, SomeStatus()));
}

TEST(PlanJson, SaysWhyDaemonsRefuseThePlan) {
  const Problem problem = *ParseProblem(kDefaultSpec, *ParseMesh("x=2"), {8, 4, 4}, DType::kF32);
  const Topology topology = *UniformTopology(2, 1, 0);
  const PlanOptions options = OptionsOf(problem, ResolveOptions(problem, topology, {})->recipe);
  PlanReport planned = {problem, topology, options, "", "", *Plan(problem, topology, options)};
  planned.traffic = TrafficOf(topology, planned.schedule);
  EXPECT_TRUE(PlanJson(planned)["refused_by_daemons"].is_null());
  planned.refused = "it has about 9 steps";
  EXPECT_EQ(PlanJson(planned)["refused_by_daemons"], "it has about 9 steps");
}

TEST(ToJson, OfAJobMatchesTheGoldenFile) { ExpectGoldenJson("job.json", ToJson(SomeJob())); }

TEST(ToJson, OfAFailedJobHasItsErrorAndNoFigures) {
  v1::Job job = SomeJob();
  job.set_state(v1::Job::STATE_FAILED);
  job.clear_figures();
  job.clear_ranks();
  job.clear_end_time();
  job.mutable_error()->set_code(4);
  job.mutable_error()->set_message("rank 1 waited 5.0 s");
  ExpectGoldenJson("job_failed.json", ToJson(job));
}

TEST(ToJson, OfJobsIsAList) {
  v1::ListJobsResponse list;
  EXPECT_EQ(ToJson(list).dump(), R"({"schema":"agmm.job_list.v1","jobs":[],"earlier_jobs":[]})");
  *list.add_jobs() = SomeJob();
  EXPECT_EQ(ToJson(list)["jobs"][0], ToJson(SomeJob()));
}

TEST(ToJson, OfAnEventNamesItsJob) {
  ExpectGoldenJson("job_event.json", ToJson(12, SomeJob().events(1)));
}

TEST(ToJson, OfTheStatusMatchesTheGoldenFile) {
  Json json = ToJson(SomeStatus());
  json["endpoint"] = "unix:/run/agmm/agmmd.sock";  // as agmmctl status adds it
  ExpectGoldenJson("status.json", json);
}

TEST(ToJson, ValuesOfANewerDaemonAreUnknown) {
  v1::Tensor tensor = SomeTensor();
  tensor.set_state(static_cast<v1::Tensor::State>(77));
  tensor.mutable_spec()->clear_dtype();
  EXPECT_EQ(ToJson(tensor)["state"], "unknown");
  EXPECT_EQ(ToJson(tensor)["dtype"], "unknown");
}

TEST(ToJson, IdsAndBytesAreExactNumbers) {
  v1::Tensor tensor = SomeTensor();
  tensor.set_shard_bytes(int64_t{1} << 62);
  EXPECT_EQ(ToJson(tensor)["shard_bytes"].dump(), "4611686018427387904");
}

}  // namespace
}  // namespace agmm
