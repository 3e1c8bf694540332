// The text output of agmmctl: at most 100 columns wide, and clear about unknown values.
#include "client/ctl/report.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/notification.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_line.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/messages_fixture.h"
#include "tests/support/widest.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(TensorReport, FitsInAHundredColumnsWithAnyNames) {
  v1::ListTensorsResponse list;
  *list.add_tensors() = SomeTensor();
  list.mutable_tensors(0)->set_tensor_id(12);
  v1::Tensor& large = *list.add_tensors();
  large = SomeTensor();
  large.set_tensor_id(99'999);
  large.set_name(std::string(200, 'n'));
  large.mutable_spec()->set_rows(1 << 20);
  large.mutable_spec()->set_cols(1 << 20);
  large.mutable_spec()->set_sharding("[M_dptp, N_longaxis]");
  large.set_shard_bytes(int64_t{1} << 40);
  large.mutable_spec()->mutable_mesh()->set_ranks(1, 17);
  const std::string table = TensorTable(list);
  EXPECT_LE(Widest(table), 100) << table;
  EXPECT_THAT(table, AllOf(HasSubstr("4096x512  bf16"), HasSubstr("[K, N_x]")));
  EXPECT_THAT(table, HasSubstr("  x=4"));
  EXPECT_THAT(table, HasSubstr("  4-7"));
  EXPECT_THAT(table, HasSubstr("nn.."));
  // Names that fit are shown in full.
  list.mutable_tensors()->RemoveLast();
  list.mutable_tensors(0)->set_name("layers.12.attention");
  EXPECT_THAT(TensorTable(list), HasSubstr("layers.12.attention  4096x512"));
  EXPECT_LE(Widest(MemoryTable(SomeStatus())), 100) << MemoryTable(SomeStatus());
  EXPECT_EQ(TensorTable({}), "no tensors\n");
}

// Sizes as on a large host, and long names.
TEST(Report, TablesFitInEightyColumnsAndLoseNoFigure) {
  FitLinesTo(80);
  v1::GetStatusResponse status = SomeStatus();
  v1::DeviceStatus& device = *status.mutable_nodes(0)->mutable_devices(0);
  device.set_workspace_bytes(int64_t{54321} << 20);
  device.set_tensor_bytes(int64_t{65432} << 20);
  device.set_scratch_bytes(int64_t{9876} << 20);
  status.mutable_nodes(0)->set_name("worker-17.rack4.cluster.example.org");
  status.mutable_nodes(0)->set_address("worker-17.rack4.cluster.example.org:7101");
  v1::ListTensorsResponse tensors;
  *tensors.add_tensors() = SomeTensor();
  tensors.mutable_tensors(0)->set_tensor_id(1234);
  tensors.mutable_tensors(0)->set_name("model.layers.12.attention.wq");
  tensors.mutable_tensors(0)->mutable_spec()->set_rows(131072);
  v1::ListJobsResponse jobs;
  *jobs.add_jobs() = SomeJob();
  v1::Job& job = *jobs.add_jobs();
  job = SomeJob();
  job.set_job_id(123456);
  job.set_m(131072);
  job.set_n(28672);
  job.set_k(8192);
  job.set_schedule("bidirectional_ring");
  job.mutable_figures()->set_tflops(123.456);
  job.mutable_error()->set_message(
      absl::StrCat(std::string(60, 'e'), " ", std::string(60, 'e'), " the end"));
  for (const std::string& text :
       {StatusText(status), MemoryTable(status), TensorTable(tensors), JobTable(jobs)})
    EXPECT_LE(Widest(text), 80) << text;
  EXPECT_THAT(StatusText(status),
              AllOf(HasSubstr("54321.0"), HasSubstr("65432.0"), HasSubstr("9876.0")));
  EXPECT_THAT(TensorTable(tensors), AllOf(HasSubstr("model.layers."), HasSubstr("131072x512")));
  EXPECT_THAT(JobTable(jobs), AllOf(HasSubstr("131072x28672x8192"), HasSubstr("bidirectional_ring"),
                                    HasSubstr("  123.456\n"), HasSubstr(" the end\n")));
  FitLinesTo(100);
}

TEST(TensorReport, ATensorShowsItsPlaceItsBytesAndItsOwner) {
  const std::string text = TensorText(SomeTensor());
  EXPECT_THAT(text, AllOf(HasSubstr("[K, N_x] over mesh x=4 on ranks 4-7"),
                          HasSubstr("ready, version 7"), HasSubstr("1 MiB (1048576 bytes)"),
                          HasSubstr("4 MiB (4194304 bytes)"), HasSubstr("128 bytes into the heap"),
                          HasSubstr("uid:1000"), HasSubstr("until it is deleted")));
  EXPECT_LE(Widest(text), 100);
}

TEST(StatusReport, FitsInAHundredColumns) {
  v1::GetStatusResponse status = SomeStatus();
  status.mutable_nodes(0)->mutable_devices(0)->set_workspace_bytes(int64_t{1} << 40);
  status.mutable_nodes(0)->mutable_devices(0)->set_tensor_bytes(int64_t{1} << 40);
  const std::string text = StatusText(status);
  EXPECT_LE(Widest(text), 100) << text;
}

TEST(StatusReport, HasTheVersionAndSaysWhichNodesDiffer) {
  v1::GetStatusResponse status = SomeStatus();
  EXPECT_THAT(StatusText(status), HasSubstr("\nversion 0.1.0 (1a2b3c4d5e6f)\n"));
  v1::NodeStatus* const other = status.mutable_nodes(1);
  EXPECT_EQ(other->state(), v1::NodeStatus::STATE_MISSING);
  other->set_state(v1::NodeStatus::STATE_READY);
  *status.add_nodes() = status.nodes(0);
  status.mutable_nodes(2)->set_name("c");
  EXPECT_THAT(StatusText(status),
              HasSubstr("\nversions differ: 0.1.0 (1a2b3c4d5e6f) on a, c; not known on b\n"))
      << "a daemon of an earlier version says none";
  other->set_version("0.1.0 (ffffffffffff, changed)\x1b");
  EXPECT_THAT(StatusText(status), HasSubstr(" on a, c; 0.1.0 (ffffffffffff, changed)\\x1b on b\n"));
}

TEST(StatusReport, ShowsTheAddressesOfAName) {
  EXPECT_THAT(StatusText(SomeStatus()),
              AllOf(HasSubstr("address b.example.org:7102 (10.0.0.2, fd00::2)\n"),
                    HasSubstr("  127.0.0.1:7101  "), Not(HasSubstr("(127.0.0.1"))));
}

TEST(StatusReport, NamesTheFailedRanksWithTheFullReason) {
  v1::GetStatusResponse status = SomeStatus();
  status.set_ready(true);
  EXPECT_THAT(StatusText(status), HasSubstr("  ready\n"));
  v1::NodeStatus* const node = status.mutable_nodes(0);
  const std::string why = "GPU 0 is lost: " + std::string(200, 'x') + " the end";
  node->mutable_devices(0)->set_failure(why);
  EXPECT_THAT(StatusText(status),
              AllOf(HasSubstr("  ready, but rank 0 has failed\n"),
                    HasSubstr("failed: GPU 0 is lost:"), HasSubstr("the end\n")));
  *node->add_devices() = node->devices(0);
  node->mutable_devices(node->devices_size() - 1)->set_rank(1);
  EXPECT_THAT(StatusText(status), HasSubstr("  ready, but ranks 0-1 have failed\n"));
  status.set_ready(false);
  status.set_reason("node b is missing");
  EXPECT_THAT(StatusText(status),
              HasSubstr("  not ready: node b is missing; ranks 0-1 have failed\n"));
}

TEST(JobReport, NamesThePlanAndItsReason) {
  const std::string text = JobText(SomeJob());
  for (const char* what :
       {"12  succeeded", "A[M_x, K] * B[K, N_x] -> C[M, N_x]  M=64 N=32 K=16 f32",
        "x=2 on ranks 0-1", "#1 #2 #3", "ring, 2 chunks a shard", "auto is ring",
        "0123456789abcdef", "cpu: oneDNN 3.1", "ucx tcp", "1.250 ms", "1.000 ms, the product alone",
        "0.750", "6.554e+04", "0.5 TFLOP/s", "4 KiB by memory, 1 MiB by network"}) {
    EXPECT_THAT(text, HasSubstr(what));
  }
  EXPECT_THAT(text, HasSubstr("    2  0.500  running\n"));
  EXPECT_LE(Widest(text), 100) << text;
}

TEST(JobReport, AResultOfAnotherDtypeIsNamed) {
  v1::ListJobsResponse list;
  v1::Job& job = *list.add_jobs();
  job = SomeJob();
  job.set_dtype(v1::DTYPE_BF16);
  EXPECT_THAT(JobText(job), HasSubstr("M=64 N=32 K=16 bf16 -> f32\n"));
  EXPECT_THAT(JobTable(list), HasSubstr("64x32x16 bf16 -> f32 "));
  job.clear_result_dtype();  // of an older daemon
  EXPECT_THAT(JobText(job), HasSubstr("M=64 N=32 K=16 bf16\n"));
}

TEST(JobReport, AJobThatMovesNothingIsAlwaysLocal) {
  v1::ListJobsResponse list;
  v1::Job& job = *list.add_jobs();
  job = SomeJob();
  job.set_schedule("local");
  EXPECT_THAT(JobText(job), AllOf(HasSubstr("\nalgorithm  local (nothing has to move)\n"),
                                  Not(HasSubstr("ring")), Not(HasSubstr("\nwhy"))));
  EXPECT_THAT(FigureLine(job), HasSubstr("local (nothing has to move): T "));
  EXPECT_THAT(JobTable(list), AllOf(HasSubstr("  local  "), Not(HasSubstr("ring"))));
}

TEST(JobReport, NamesThePathsBetweenGpus) {
  v1::Job job = SomeJob();
  EXPECT_THAT(JobText(job), Not(HasSubstr("\npaths")));
  job.add_device_paths("peer access");
  job.add_device_paths("staged to the network");
  EXPECT_THAT(JobText(job), HasSubstr("\npaths      peer access, staged to the network\n"));
}

TEST(JobReport, NamesTheKernelsOfGpus) {
  v1::Job job = SomeJob();
  EXPECT_THAT(JobText(job), Not(HasSubstr("\nproducts")));
  job.add_device_products("agmm_ring_bf16_bf16_128");
  job.add_device_products("cuBLASLt: products of f32");
  EXPECT_THAT(JobText(job),
              HasSubstr("\nproducts   agmm_ring_bf16_bf16_128; cuBLASLt: products of f32\n"));
}

TEST(JobReport, UnknownFiguresSayHowToMeasureThem) {
  v1::Job job = SomeJob();
  job.mutable_figures()->clear_gemm_us();
  job.mutable_figures()->clear_overlap();
  EXPECT_THAT(JobText(job),
              AllOf(HasSubstr("T_gemm     not known: run it with --algorithm serial --repeat 3"),
                    HasSubstr("R          not known: run it with --algorithm serial --repeat 3")));
  job.mutable_figures()->clear_moved();
  EXPECT_THAT(JobText(job), HasSubstr("nothing has to be gathered"));
  job.clear_figures();
  job.set_state(v1::Job::STATE_RUNNING);
  EXPECT_THAT(JobText(job),
              AllOf(HasSubstr("not known: the job is running"), Not(HasSubstr("R  "))));
}

TEST(JobReport, RAboveOneSaysThatAPartWasMeasuredTooSlow) {
  v1::Job job = SomeJob();
  EXPECT_THAT(JobText(job), HasSubstr("0.750 = max(T_gemm, T_ag) / T; 1 is perfect overlap\n"));
  job.mutable_figures()->set_overlap(1.25);
  EXPECT_THAT(JobText(job), HasSubstr("1.250 = max(T_gemm, T_ag) / T; above 1, because one of both "
                                      "was measured too slow\n"));
}

TEST(JobReport, AJobOfTransfersOnlyHasATimeAndBytes) {
  v1::Job job = SomeJob();
  job.mutable_options()->set_transfers_only(true);
  EXPECT_THAT(JobText(job), AllOf(HasSubstr(", transfers only"), HasSubstr("\nT          1.250 ms"),
                                  HasSubstr("\nmoved      4 KiB"), Not(HasSubstr("\nT_gemm")),
                                  Not(HasSubstr("\nR ")), Not(HasSubstr("\nFLOP"))));
}

TEST(JobReport, TheBaselineIsNamedWithItsAgeAndMarkedWhereItIsStale) {
  v1::Job job = SomeJob();
  job.mutable_figures()->set_baseline_job_id(job.job_id());
  EXPECT_THAT(JobText(job), AllOf(HasSubstr("ms, the product alone\n"), Not(HasSubstr("\nstale"))));
  job.mutable_figures()->set_baseline_job_id(3);
  *job.mutable_figures()->mutable_baseline_time() = job.end_time();
  job.mutable_figures()->mutable_baseline_time()->set_seconds(job.end_time().seconds() - 90);
  EXPECT_THAT(JobText(job), HasSubstr("ms, the product alone (job 3, 90 s before)\n"));
  job.mutable_figures()->set_baseline_stale("nodes have come or gone since");
  EXPECT_THAT(JobText(job),
              HasSubstr("\nstale      T_gemm, T_ag and R: nodes have come or gone since; "
                        "run it with"));
  EXPECT_THAT(FigureLine(job), HasSubstr(", R 0.750 (stale)"));
}

TEST(JobReport, ListsFitInAHundredColumns) {
  v1::ListJobsResponse list;
  *list.add_jobs() = SomeJob();
  v1::Job& large = *list.add_jobs();
  large = SomeJob();
  large.set_job_id(999'999);
  large.set_m(1 << 28);
  large.set_n(1 << 28);
  large.set_k(1 << 28);
  large.set_repeat_count(1'000'000);
  large.mutable_options()->set_algorithm("ring_bidirectional");
  large.mutable_figures()->set_time_us(86'400'000'000.0);
  large.mutable_mesh()->add_ranks(17);
  large.mutable_mesh()->add_ranks(19);
  large.mutable_mesh()->add_ranks(21);
  EXPECT_LE(Widest(JobTable(list)), 100) << JobTable(list);
  EXPECT_EQ(JobTable({}), "no jobs\n");
}

TEST(JobReport, ListsSayWhyAJobFailed) {
  v1::ListJobsResponse list;
  *list.add_jobs() = SomeJob();
  EXPECT_THAT(JobTable(list), Not(HasSubstr("n1")));
  v1::Job& failed = *list.add_jobs();
  failed = SomeJob();
  failed.set_state(v1::Job::STATE_FAILED);
  failed.mutable_error()->set_code(10);
  failed.mutable_error()->set_message("node n1 was lost\nsecond line");
  EXPECT_THAT(JobTable(list),
              AllOf(HasSubstr("\n    node n1 was lost\n"), Not(HasSubstr("second"))));
  std::string words;
  for (int i = 0; i < 50; ++i) absl::StrAppend(&words, "lost ");
  failed.mutable_error()->set_message(words);
  EXPECT_LE(Widest(JobTable(list)), 100) << JobTable(list);
  EXPECT_GT(Widest(JobTable(list)), 90) << JobTable(list);
}

TEST(Fields, WrapBelowThemselves) {
  Fields fields;
  fields.Add("why", std::string(60, 'a') + " " + std::string(60, 'b'));
  fields.Add("a name", "text");
  EXPECT_EQ(fields.ToString(), "why     " + std::string(60, 'a') + "\n        " +
                                   std::string(60, 'b') + "\na name  text\n");
}

TEST(Progress, ShowsTheRateAndTheTimeLeft) {
  EXPECT_EQ(ProgressText("W.npy", 256 << 20, 1 << 30, absl::Seconds(2), false),
            " 25 %  [######..................]  256 MiB of 1 GiB  128 MiB/s  6 s left  W.npy");
  EXPECT_THAT(ProgressText("W.npy", 1 << 20, 1 << 30, absl::Seconds(1), false),
              HasSubstr("17:03 min left"));
  // No time left is shown before a rate is known.
  EXPECT_THAT(ProgressText("W.npy", 1, 1 << 30, absl::Milliseconds(100), false),
              Not(HasSubstr("left")));
  EXPECT_THAT(ProgressText("W.npy", 0, 0, absl::Seconds(1), false), HasSubstr("100 %"));
}

TEST(Progress, ShowsAReconnect) {
  EXPECT_EQ(ProgressText("W.npy", 256 << 20, 1 << 30, absl::Seconds(2), true),
            " 25 %  [######..................]  256 MiB of 1 GiB  reconnecting  W.npy");
}

TEST(TensorReport, AGetReportsItsFile) {
  EXPECT_EQ(SavedLine(SomeTensor(), {"W.npy", false, DType::kF32}), "W.npy: 4096x512 f32, 8 MiB");
  EXPECT_EQ(SavedLine(SomeTensor(), {"W.raw", true, DType::kBF16}),
            "W.raw: 4096x512 bf16 without a header, 4 MiB");
}

// Returns the text on stderr, which is not a terminal, after the line has been evaluated.
std::string WrittenWithoutTerminal(absl::Duration once_after, bool asked_for) {
  absl::Notification asked;
  testing::internal::CaptureStderr();
  {
    const TerminalLine line(
        [&](absl::Duration) {
          asked.Notify();
          return "planning \x1b";
        },
        once_after);
    if (asked_for) {
      EXPECT_TRUE(asked.WaitForNotificationWithTimeout(absl::Seconds(60)));
    }
  }
  return testing::internal::GetCapturedStderr();
}

TEST(TerminalLine, IsWrittenOnceWithoutATerminalIfRequested) {
  EXPECT_EQ(WrittenWithoutTerminal(absl::Milliseconds(1), true), "planning \\x1b\n");
  EXPECT_EQ(WrittenWithoutTerminal(absl::Hours(1), false), "");
  EXPECT_EQ(WrittenWithoutTerminal(absl::InfiniteDuration(), false), "");
}

TEST(Wait, HasTheTimeAndItsBound) {
  EXPECT_EQ(WaitText("job 3", absl::Seconds(12.7), absl::Seconds(90)),
            "job 3  12 s of at most 1m30s");
}

}  // namespace
}  // namespace agmm
