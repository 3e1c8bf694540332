// The journal of jobs on disk.
#include "daemon/sequencer/journal.h"

#include <fcntl.h>
#include <spdlog/sinks/base_sink.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "tests/daemon/sequencer/scheduler_harness.h"
#include "tests/support/logged.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using scheduler::Journal;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Bounds the files that this process writes, during its lifetime.
class FileLimit {
 public:
  explicit FileLimit(rlim_t bytes) {
    EXPECT_EQ(getrlimit(RLIMIT_FSIZE, &before_), 0);
    rlimit limit = before_;
    limit.rlim_cur = bytes;
    EXPECT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  }
  ~FileLimit() {
    Lift();
    signal(SIGXFSZ, signal_before_);
  }
  void Lift() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  const sighandler_t signal_before_ = signal(SIGXFSZ, SIG_IGN);
  rlimit before_{};
};

class JournalTest : public SchedulerTest {
 protected:
  std::unique_ptr<Journal> Open(const Journal::Bounds& bounds = {}) {
    absl::StatusOr<std::unique_ptr<Journal>> journal = Journal::Open(Path(""), &metrics_, bounds);
    EXPECT_TRUE(journal.ok()) << journal.status();
    return journal.ok() ? *std::move(journal) : nullptr;
  }
  std::string Path(const std::string& end) const { return absl::StrCat(folder_ / "jobs", end); }
  static v1::Job JobOf(uint64_t id, size_t bytes = 0) {
    v1::Job job;
    job.set_job_id(id);
    job.set_sequencer("0709d49cfe97cc4d1392f7f657d02862");
    job.set_spec(std::string(bytes, 'x'));
    return job;
  }
  // Adds the jobs in a separate run.
  void Write(uint64_t first, uint64_t last, const Journal::Bounds& bounds = {}, size_t bytes = 0) {
    const auto journal = Open(bounds);
    for (uint64_t id = first; id <= last; ++id) journal->Add(JobOf(id, bytes));
  }
  std::vector<uint64_t> Earlier(const Journal::Bounds& bounds = {}) {
    std::vector<uint64_t> ids;
    const auto journal = Open(bounds);
    for (const v1::Job& job : journal->earlier()) {
      EXPECT_TRUE(job.earlier_run());
      ids.push_back(job.job_id());
    }
    return ids;
  }
  v1::ListJobsResponse List(bool earlier_runs) {
    Answer<v1::ListJobsResponse> answer;
    v1::ListJobsRequest request;
    request.set_earlier_runs(earlier_runs);
    Do([&] { answer.reply()(scheduler_->history().List(request)); });
    return *answer.Get();
  }
  const TempFolder folder_{"journal"};
};

TEST_F(JournalTest, ARunReadsTheJobsOfTheRunsBeforeIt) {
  EXPECT_THAT(Earlier(), IsEmpty());
  Write(1, 2);
  Write(1, 1);
  EXPECT_THAT(Earlier(), ElementsAre(1, 2, 1));
  EXPECT_THAT(Earlier({.jobs = 2}), ElementsAre(2, 1));
  struct stat info {};
  ASSERT_EQ(stat(Path(".0").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0600u);
}

TEST_F(JournalTest, JobsReachTheDiskWhileTheDaemonRuns) {
  const auto journal = Open();
  for (const bool fails : {false, true, false}) {
    const auto before = std::filesystem::file_size(Path(".0"));
    v1::Job job = JobOf(1);
    if (fails) job.mutable_error()->set_code(1);
    journal->Add(std::move(job));
    EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(Path(".0")) > before; }))
        << fails;
  }
}

TEST_F(JournalTest, ATornOrDamagedTailIsDroppedWithOneLogLineAndOverwritten) {
  Write(1, 3);
  const auto size = std::filesystem::file_size(Path(".0"));
  std::filesystem::resize_file(Path(".0"), size - 3);
  {
    const Logged logged;
    EXPECT_THAT(Earlier(), ElementsAre(1, 2));
    EXPECT_THAT(logged.text(), HasSubstr("jobs.0 is torn or damaged from byte "));
    const std::string text = logged.text();
    EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  }
  Write(4, 4);
  EXPECT_THAT(Earlier(), ElementsAre(1, 2, 4));
  // A byte of the second record.
  std::fstream file(Path(".0"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(size / 2 + 8));
  file.put('\x7f');
  file.close();
  EXPECT_THAT(Earlier(), ElementsAre(1));
  std::ofstream(Path(".0"), std::ios::binary) << "no journal at all, but long enough for a header";
  EXPECT_THAT(Earlier(), IsEmpty());
  Write(5, 5);
  EXPECT_THAT(Earlier(), ElementsAre(5));
}

TEST_F(JournalTest, TwoFilesTakeTurnsAndBoundTheSize) {
  const Journal::Bounds bounds{.file_bytes = 8192};
  for (uint64_t run = 0; run < 5; ++run) Write(10 * run, 10 * run + 9, bounds, 500);
  std::uintmax_t bytes = 0;
  for (const char* end : {".0", ".1"}) {
    EXPECT_LE(std::filesystem::file_size(Path(end)), 8192u);
    bytes += std::filesystem::file_size(Path(end));
  }
  EXPECT_GT(bytes, 8192u) << "both are used";
  const std::vector<uint64_t> ids = Earlier(bounds);
  EXPECT_GE(ids.size(), 14u);
  EXPECT_TRUE(std::is_sorted(ids.begin(), ids.end()));
  EXPECT_EQ(ids.back(), 49u);
}

TEST_F(JournalTest, AFileInUseOrOfAnotherKindIsRefused) {
  const auto error = [&] {
    const Journal::Bounds bounds{.patience = absl::ZeroDuration()};
    return std::string(Journal::Open(Path(""), &metrics_, bounds).status().message());
  };
  std::filesystem::create_symlink("/etc/hostname", Path(".1"));
  EXPECT_THAT(error(), HasSubstr("jobs.1 is a symbolic link"));
  std::filesystem::remove(Path(".1"));
  ASSERT_EQ(mkfifo(Path(".1").c_str(), 0600), 0);
  EXPECT_THAT(error(), HasSubstr("jobs.1 is not a file"));
  std::filesystem::remove(Path(".1"));
  const auto holder = Open();
  EXPECT_THAT(error(), HasSubstr("jobs.0 is in use by another daemon"));
  EXPECT_THAT(std::string(Journal::Open("/nowhere/jobs", &metrics_, {}).status().message()),
              HasSubstr("/nowhere/jobs.0 cannot be opened"));
}

// During its lifetime, runs `action` while a line with `text` is being logged.
class OnLine {
 public:
  OnLine(std::string text, std::function<void()> action) {
    spdlog::set_default_logger(std::make_shared<spdlog::logger>(
        "test", std::make_shared<Sink>(std::move(text), std::move(action))));
  }
  ~OnLine() { spdlog::set_default_logger(before_); }

 private:
  class Sink final : public spdlog::sinks::base_sink<std::mutex> {
   public:
    Sink(std::string text, std::function<void()> action)
        : text_(std::move(text)), action_(std::move(action)) {}

   private:
    void sink_it_(const spdlog::details::log_msg& line) override {
      if (absl::StrContains({line.payload.data(), line.payload.size()}, text_)) action_();
    }
    void flush_() override {}

    const std::string text_;
    const std::function<void()> action_;
  };
  const std::shared_ptr<spdlog::logger> before_ = spdlog::default_logger();
};

TEST_F(JournalTest, AStartWaitsForTheDaemonThatHoldsTheFilesToEnd) {
  Write(1, 1);
  auto holder = Open();
  const OnLine waiting("waiting up to", [&] { holder = nullptr; });
  EXPECT_THAT(Earlier({.patience = kPatience}), ElementsAre(1));
}

TEST_F(JournalTest, ATurnThatCannotBeginKeepsTheRecordsAndIsTriedAgain) {
  const Journal::Bounds bounds{.file_bytes = 8192, .retry = absl::ZeroDuration()};
  // Two to a file, so that job 7 begins the fourth turn.
  Write(1, 6, bounds, 3000);
  {
    FileLimit limit(10);
    const OnLine failed("cannot write the journal", [&] { limit.Lift(); });
    const auto journal = Open(bounds);
    for (uint64_t id : {7, 8}) journal->Add(JobOf(id, 3000));
  }
  EXPECT_THAT(Earlier(bounds), ElementsAre(5, 6, 8));
  Write(9, 10, bounds, 3000);
  EXPECT_THAT(Earlier(bounds), ElementsAre(8, 9, 10));
}

TEST_F(JournalTest, ARecordThatIsTooLargeIsShortenedOrLeftOut) {
  {
    const auto journal = Open();
    v1::Job failed = JobOf(2);
    *failed.mutable_error()->mutable_message() = "x";
    for (int i = 0; i < 50'000; ++i) *failed.mutable_error()->mutable_message() += "\u00e9";
    for (const v1::Job& job : {JobOf(1), failed, JobOf(3, 100'000), JobOf(4)}) journal->Add(job);
  }
  EXPECT_THAT(Earlier(), ElementsAre(1, 2, 4));
  EXPECT_EQ(Metric("job_journal_left_out_total"), 1);
}

TEST_F(JournalTest, AFullDiskLogsOneLineAndLeavesNoTornRecord) {
  Write(1, 1);
  const Logged logged;
  {
    const FileLimit limit(static_cast<rlim_t>(std::filesystem::file_size(Path(".0")) + 10));
    const auto journal = Open();
    for (uint64_t id = 2; id < 5; ++id) journal->Add(JobOf(id, 100));
  }
  const std::string text = logged.text();
  EXPECT_THAT(text, HasSubstr("cannot write the journal of jobs"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1);
  EXPECT_THAT(Earlier(), ElementsAre(1));
}

TEST_F(JournalTest, JobsBeyondABurstAreLeftOutAndCounted) {
  const auto journal = Open({.succeeded = 2, .failed = 1});
  for (const bool taken : {true, true, false})
    EXPECT_EQ(journal->HasRoom(true, 1'000'000'000), taken);
  EXPECT_TRUE(journal->HasRoom(false, 1'000'000'000)) << "failed jobs have a share of their own";
  EXPECT_FALSE(journal->HasRoom(false, 1'000'000'000));
  EXPECT_TRUE(journal->HasRoom(true, 1'100'000'000));
  EXPECT_EQ(Metric("job_journal_left_out_total"), 2);
}

TEST_F(JournalTest, AListOfLargeEarlierJobsFitsIntoAMessage) {
  Write(1, 100, {.file_bytes = 16 << 20}, 60'000);
  const auto journal = Open({.file_bytes = 16 << 20});
  Scheduler::Parts parts = Parts();
  parts.journal = journal.get();
  Do([&] { scheduler_ = std::make_unique<Scheduler>(parts); });
  const v1::ListJobsResponse list = List(/*earlier_runs=*/true);
  EXPECT_LT(list.ByteSizeLong(), 5u << 20);
  EXPECT_GT(list.earlier_jobs_size(), 50);
  EXPECT_EQ(list.earlier_jobs(0).job_id(), 100u);
  Do([&] { scheduler_ = nullptr; });
}

TEST_F(JournalTest, JobsOfAnEarlierRunAreMarkedAsSuch) {
  const auto get = [&](uint64_t id, const std::string& run) {
    Answer<v1::Job> job;
    v1::GetJobRequest request;
    request.set_job_id(id);
    request.set_sequencer(run);
    Do([&] { scheduler_->GetJob({}, request, job.reply()); });
    return job.Get();
  };
  auto journal = Open();
  Scheduler::Parts parts = Parts();
  parts.journal = journal.get();
  Do([&] { scheduler_ = std::make_unique<Scheduler>(parts); });
  Warm(Request(MakeOperands()));
  Do([&] { scheduler_ = nullptr; });
  journal = nullptr;
  journal = Open();
  const std::string run = std::exchange(members_.incarnation_value, "another");
  parts.journal = journal.get();
  Do([&] { scheduler_ = std::make_unique<Scheduler>(parts); });

  EXPECT_EQ(List(false).earlier_jobs_size(), 0) << "older clients take ids for those of this run";
  ASSERT_EQ(List(true).earlier_jobs_size(), 1);
  EXPECT_EQ(List(true).jobs_size(), 0);
  EXPECT_EQ(List(true).earlier_jobs(0).events_size(), 0);
  const absl::StatusOr<v1::Job> job = get(1, run.substr(0, 6));
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_TRUE(job->earlier_run());
  EXPECT_EQ(job->state(), v1::Job::STATE_SUCCEEDED);
  EXPECT_EQ(job->owner(), "uid:7");
  EXPECT_EQ(job->events_size(), 3);
  EXPECT_EQ(get(1, "").status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(get(2, run).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(get(1, "0").status().code(), absl::StatusCode::kNotFound);
  Do([&] { scheduler_ = nullptr; });
}

}  // namespace
}  // namespace agmm
