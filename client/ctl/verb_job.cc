// agmmctl job: products of tensors that are on the devices.

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/connect/connection.h"
#include "client/connect/job_watch.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/job_progress.h"
#include "client/ctl/product.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/report.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/trace_file.h"
#include "client/ctl/verbs.h"
#include "client/files/npy.h"
#include "client/trace/job_trace.h"
#include "kernels/base/deadline.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "kernels/base/thread.h"
#include "kernels/base/units.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"
#include "proto/limits.h"

namespace agmm {
namespace {

struct SubmitFlags {
  std::string spec = kDefaultSpec, bindings, timeout = "60s", request_id;
  PlanOptions options;
  int repeat = 1;
  bool wait = false, no_tuning = false;
};

absl::StatusOr<v1::Job> Submit(Connection* connection, const SubmitFlags& flags,
                               absl::Duration timeout) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<NamedTensor> operands,
                        ParseBindings(flags.spec, flags.bindings));
  const auto find = [&](const NamedTensor& named) {
    return connection->GetTensor(named.ref, kShortCall, named.sequencer);
  };
  // Also the result of a handle, which may be of another sequencer than the operands.
  if (!operands.back().sequencer.empty()) AGMM_RETURN_IF_ERROR(find(operands.back()).status());
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor a, find(operands[kA]));
  Shape shape = {a.spec().rows(), a.spec().cols(), 0};
  if (operands.size() > kC) {
    AGMM_ASSIGN_OR_RETURN(const v1::Tensor b, find(operands[kB]));
    shape = {a.spec().rows(), b.spec().cols(), a.spec().cols()};
  }
  // An invalid spec is refused here, with the column of the mistake; the sequencer checks that the
  // tensors fit it.
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(a.spec().mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(a.spec().dtype()));
  AGMM_RETURN_IF_ERROR(ParseProblem(flags.spec, mesh, shape, dtype).status());
  v1::SubmitJobRequest request =
      RequestJob(flags.spec, flags.options, flags.repeat, timeout, flags.no_tuning);
  if (!flags.request_id.empty()) request.set_request_id(flags.request_id);
  *request.mutable_mesh() = a.spec().mesh();
  for (const NamedTensor& named : operands) *request.add_tensors() = named.ref;
  return connection->SubmitJob(request, kPlacingCall, a.sequencer());
}

// Prints an event as text or as JSON.
void PrintEvent(const v1::Job& job, const v1::JobEvent& event, const Options& options) {
  PrintResult(options, ToJson(job.job_id(), event),
              EventLine(event, FromProto(event.time()) - FromProto(job.create_time())) + "\n");
  std::cout.flush();  // because the reader of a pipe waits for it
}

// The line on the terminal about a wait for a job: the time, and where the job is.
class JobLine {
 public:
  // Asks for the job's progress about once a second, if the line is shown.
  JobLine(Connection* connection, const Id& job, absl::Duration limit)
      : line_([this, label = absl::StrCat("job ", job.number), limit](absl::Duration elapsed) {
          return absl::StrCat(WaitText(label, elapsed, limit), where_.empty() ? "" : "  ", where_);
        }) {
    if (!line_.IsShown()) return;
    asking_ = std::make_unique<Connection>(connection->endpoint());
    absl::StatusOr<std::thread> thread =
        StartThread("the progress of a job", [this, job] { Ask(job); });
    // Without a thread, the line shows the time alone.
    if (thread.ok()) thread_ = *std::move(thread);
  }
  ~JobLine() {
    stop_.request_stop();
    if (asking_ != nullptr) asking_->Interrupt();
    if (thread_.joinable()) thread_.join();
  }

  // Like TerminalLine::Print.
  void Print(const std::function<void()>& print) { line_.Print(print); }

 private:
  void Ask(const Id& job) {
    // Longer than the sequencer waits for its nodes.
    constexpr absl::Duration kAnswerBound = absl::Seconds(2);
    const std::stop_token stop = stop_.get_token();
    std::mutex mutex;
    std::condition_variable_any none;  // the waits end by the time or the stop token
    std::unique_lock lock(mutex);
    NodeNameFn names;
    v1::Job before;
    while (true) {
      none.wait_for(lock, stop, std::chrono::seconds(1), [] { return false; });
      if (stop.stop_requested()) return;
      if (names == nullptr) {
        if (const auto status = asking_->GetStatus(kAnswerBound); status.ok())
          names = NamesOf(*status);
      }
      const absl::StatusOr<v1::Job> now =
          names == nullptr ? absl::UnavailableError("no status")
                           : asking_->GetJobProgress(job, /*step_times=*/false, kAnswerBound);
      const std::string where =
          now.ok() && !HasEnded(*now) ? ProgressLineText(before, *now, names) : "";
      line_.Update([&] { where_ = where; });
      if (now.ok()) before = *now;
    }
  }

  // A separate connection, because its calls are interrupted at the end of the wait. Null if
  // nothing is shown.
  std::unique_ptr<Connection> asking_;
  std::string where_;  // guarded by line_
  TerminalLine line_;
  std::stop_source stop_;
  std::thread thread_;  // last: it uses the others
};

// Returns the job once it has ended, even if it failed. Calls `on_event`, if given, with the events
// after number `after_event` as they happen; shows the time on a terminal. `timeout` is the job's.
// Errors: those of WatchJob.
absl::StatusOr<v1::Job> AwaitJob(Connection* connection, const Id& job, int64_t after_event,
                                 absl::Duration timeout,
                                 const std::function<void(const v1::JobEvent&)>& on_event) {
  JobLine line(connection, job, timeout);
  const Deadline deadline = Deadline::After(timeout + kDaemonGrace);
  if (!on_event) return connection->WaitJob(job, deadline);
  return WatchJob(connection, job, after_event, deadline, [&](const v1::JobEvent& event) {
    line.Print([&] { on_event(event); });
    return true;
  });
}

// Describes the job's state by the record in CancelJob's answer.
std::string CancelText(const v1::Job& job) {
  if (!HasEnded(job)) return absl::StrFormat("job %d is being cancelled", job.job_id());
  if (job.state() == v1::Job::STATE_CANCELLED)
    return absl::StrFormat("job %d is cancelled", job.job_id());
  return absl::StrFormat("job %d had already %s", job.job_id(), EnumName(job.state()));
}

// Prints the job's events as they happen and returns the ended job. Ctrl-C cancels it.
absl::StatusOr<v1::Job> WaitForSubmitted(Connection* connection, const v1::Job& job,
                                         absl::Duration timeout, const Options& options) {
  const Interrupt interrupt(connection);
  std::function<void(const v1::JobEvent&)> on_event;
  if (!options.json) on_event = [&](const v1::JobEvent& event) { PrintEvent(job, event, options); };
  absl::StatusOr<v1::Job> ended =
      AwaitJob(connection, IdOf(job), /*after_event=*/0, timeout, on_event);
  if (ended.ok()) return ended;
  // The job ended with its generation.
  if (ReasonOf(ended.status()) == kReasonPeerLost) return NamingJob(ended.status(), job.job_id());
  // A daemon that is stopping answers CANCELLED, too.
  if (!absl::IsCancelled(ended.status()) || !interrupt.happened()) {
    return Annotate(ended.status(),
                    absl::StrFormat("job %d may still be running; see `agmmctl job show %d`",
                                    job.job_id(), job.job_id()));
  }
  const absl::StatusOr<v1::Job> cancelled = connection->CancelJob(IdOf(job));
  if (cancelled.ok()) {
    const bool late = HasEnded(*cancelled) && cancelled->state() != v1::Job::STATE_CANCELLED;
    return late ? cancelled : absl::CancelledError(CancelText(*cancelled));
  }
  if (ReasonOf(cancelled.status()) == kReasonPeerLost)
    return NamingJob(cancelled.status(), job.job_id());
  return Annotate(
      cancelled.status(),
      absl::StrFormat("job %d could not be cancelled and may still be running", job.job_id()));
}

absl::Status RunSubmit(const SubmitFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(flags.timeout));
  AGMM_ASSIGN_OR_RETURN(v1::Job job, Submit(connection, flags, timeout));
  if (!flags.wait) {
    PrintResult(options, ToJson(job), absl::StrFormat("job %d\n", job.job_id()));
    return absl::OkStatus();
  }
  if (!options.json) std::cout << "job " << job.job_id() << std::endl;
  // A repeated request may be answered with a job that ended long ago, whose events are forgotten.
  if (!HasEnded(job)) {
    AGMM_ASSIGN_OR_RETURN(job, WaitForSubmitted(connection, job, timeout, options));
  }
  const bool succeeded = job.state() == v1::Job::STATE_SUCCEEDED;
  PrintResult(options, ToJson(job), succeeded ? FigureLine(job) + "\n" : "");
  return NamedOutcomeOf(job);
}

int64_t LastEvent(const v1::Job& job) {
  return job.events().empty() ? 0 : job.events(job.events_size() - 1).number();
}

struct WatchFlags {
  uint64_t id = 0;
  int64_t from = 1;
};

absl::Status RunWatch(const WatchFlags& flags, const Options& options, Connection* connection) {
  const Interrupt interrupt(connection);
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->GetJob(flags.id));
  const absl::Duration timeout = FromProto(job.timeout());
  int printed = 0;
  const absl::StatusOr<v1::Job> ended =
      AwaitJob(connection, IdOf(job), flags.from - 1, timeout, [&](const v1::JobEvent& event) {
        ++printed;
        PrintEvent(job, event, options);
      });
  if (absl::IsCancelled(ended.status()) && interrupt.happened()) {
    return absl::CancelledError(
        absl::StrFormat("stopped watching job %d, which goes on running", flags.id));
  }
  if (!ended.ok()) return NamingJob(ended.status(), flags.id);
  if (printed == 0 && !options.json) {
    std::cout << absl::StrFormat("job %d has no event %d: it ended with event %d, %s\n", flags.id,
                                 flags.from, LastEvent(*ended), EnumName(ended->state()));
  }
  return NamedOutcomeOf(*ended);
}

constexpr int kMaxListed = 1'000'000;

absl::Status RunList(const int& limit, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::ListJobsResponse all, connection->ListJobs(limit));
  PrintResult(options, ToJson(all), JobTable(all));
  return absl::OkStatus();
}

// Returns false for "-1" and "0x10", which a plain conversion would read as another job.
bool IsJobNumber(const std::string& text) {
  uint64_t number = 0;
  return absl::c_all_of(text, absl::ascii_isdigit) && absl::SimpleAtoi(text, &number) && number > 0;
}

// True for "7@0709".
bool IsEarlierJob(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits('@', 1));
  return IsJobNumber(parts.first) && !parts.second.empty() &&
         absl::c_all_of(parts.second, absl::ascii_isxdigit);
}

std::string CheckJobNumber(const std::string& text) {
  if (IsJobNumber(text)) return "";
  if (IsEarlierJob(text)) {
    return absl::StrFormat(
        "job %s is of an earlier run, of which only the records are left; see "
        "`agmmctl job show %s`",
        text, text);
  }
  return absl::StrFormat("\"%s\" is not the number of a job; give one that submit or list printed",
                         text);
}

std::string CheckJobId(const std::string& text) {
  if (IsJobNumber(text) || IsEarlierJob(text)) return "";
  return absl::StrFormat("\"%s\" is not the id of a job; give one that submit or list printed",
                         text);
}

// Returns the job "7" with its progress, or the record of "7@0709".
absl::StatusOr<v1::Job> FindJob(Connection* connection, const std::string& id) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(id, absl::MaxSplits('@', 1));
  uint64_t number = 0;
  if (!absl::SimpleAtoi(parts.first, &number)) return absl::InvalidArgumentError(CheckJobId(id));
  return parts.second.empty() ? connection->GetJobProgress(number)
                              : connection->GetEarlierJob(number, parts.second);
}

absl::Status RunJobShow(const std::string& id, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, FindJob(connection, id));
  std::string text = JobText(job);
  if (!options.json && !HasEnded(job)) {
    AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
    if (const std::string ranks = ProgressTable(job, NamesOf(status)); !ranks.empty())
      absl::StrAppend(&text, "\n", ranks);
    if (const uint64_t before = job.waits_for().job_id(); before > 0) {
      AGMM_ASSIGN_OR_RETURN(const v1::Job other,
                            connection->GetJobProgress({before, job.sequencer()}));
      absl::StrAppend(&text, "\njob ", before, ": ", EnumName(other.state()), ", ",
                      EpochsText(other), "\n");
    }
  }
  PrintResult(options, ToJson(job), text);
  return absl::OkStatus();
}

// More than a queue has in practice. Each one costs a call.
constexpr size_t kMaxFollowed = 16;
// The time over which the throughput of a path is measured.
constexpr absl::Duration kRateTime = absl::Milliseconds(500);

absl::Status RunWhy(const std::string& id, const Options& options, Connection* connection) {
  std::vector<v1::Job> jobs;
  AGMM_ASSIGN_OR_RETURN(jobs.emplace_back(), FindJob(connection, id));
  while (jobs.back().waits_for().job_id() > 0 && jobs.size() < kMaxFollowed) {
    const Id next(jobs.back().waits_for().job_id(), jobs.back().sequencer());
    AGMM_ASSIGN_OR_RETURN(jobs.emplace_back(), connection->GetJobProgress(next));
  }
  PathRates rates;
  if (!HasEnded(jobs.back()) && HangsOnPath(jobs.back())) {
    absl::SleepFor(kRateTime);
    const v1::Job before = jobs.back();
    AGMM_ASSIGN_OR_RETURN(jobs.back(), connection->GetJobProgress(IdOf(before)));
    rates = RatesOf(before, jobs.back());
  }
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  PrintResult(options, WhyJson(jobs, rates, status), WhyText(jobs, rates, status));
  return absl::OkStatus();
}

absl::Status RunCancel(const uint64_t& id, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->CancelJob(id));
  PrintResult(options, ToJson(job), CancelText(job) + "\n");
  return absl::OkStatus();
}

struct TraceFlags {
  std::vector<uint64_t> ids;
  std::string out;
};

absl::Status RunTrace(const TraceFlags& flags, const Options& options, Connection* connection) {
  std::vector<v1::Job> jobs;
  for (uint64_t id : flags.ids) {
    // All jobs must be of one sequencer.
    const std::string sequencer = jobs.empty() ? "" : jobs.front().sequencer();
    AGMM_ASSIGN_OR_RETURN(jobs.emplace_back(),
                          connection->GetJobProgress({id, sequencer}, /*step_times=*/true));
  }
  AGMM_ASSIGN_OR_RETURN(const v1::GetStatusResponse status, connection->GetStatus());
  AGMM_ASSIGN_OR_RETURN(const Json trace, TraceOf(jobs, status));
  AGMM_ASSIGN_OR_RETURN(const int64_t steps, WriteTrace(flags.out, trace));
  PrintResult(options,
              {{"schema", "agmm.trace_file.v1"},
               {"out", flags.out},
               {"job_ids", flags.ids},
               {"step_count", steps}},
              TraceFileText(flags.out, steps), flags.out);
  return absl::OkStatus();
}

// Adds the argument ID: one job, or several.
template <typename T>
void AddJobId(CLI::App* verb, T* id, const std::string& help) {
  verb->add_option("ID", *id, help)->required()->check(CheckJobNumber);
}

// Adds a verb for one job, which may be of an earlier run.
void AddRead(CLI::App* group, const std::string& name, const std::string& help,
             absl::Status (*run)(const std::string&, const Options&, Connection*),
             Command* command) {
  auto id = std::make_shared<std::string>();
  CLI::App* verb = group->add_subcommand(name, help);
  verb->add_option("ID", *id,
                   "The job: its number in submit and list, or 7@0709 for a job of an earlier "
                   "run of node 0's daemon")
      ->required()
      ->check(CheckJobId);
  OnVerb(verb, command, id, run);
}

void AddJobSubmit(CLI::App* group, Command* command) {
  auto flags = std::make_shared<SubmitFlags>();
  CLI::App* verb = group->add_subcommand("submit", "Multiply tensors into a tensor");
  verb->add_option("--bind", flags->bindings,
                   "The tensor of each operand, by its name, or by its ID as #12: A=X,B=W,C=Y. A "
                   "new name for C makes a new tensor")
      ->required();
  verb->add_option("--spec", flags->spec,
                   absl::StrCat(kAnySpecHelp, "; over the mesh of A's tensor"))
      ->capture_default_str();
  AddPlanOptions(verb, &flags->options);
  AddNoTuning(verb, &flags->no_tuning);
  verb->add_flag(
      "--transfers-only", flags->options.transfers_only,
      "Leave out the multiplies, to time the plan's transfers; C is left without contents. With "
      "--algorithm hierarchical_peer, the time is T_ag");
  verb->add_option("--repeat", flags->repeat, "Number of epochs: how often the product runs")
      ->check(CLI::Range(1, kMaxRepeat))
      ->capture_default_str();
  verb->add_option("--timeout", flags->timeout,
                   "Time from the job's admission to its end, such as 60s or 5m, at most 24h")
      ->capture_default_str();
  verb->add_option("--request-id", flags->request_id,
                   "Makes it safe to submit again: the same ID and flags return the same job "
                   "(default: random)");
  verb->add_flag("--wait", flags->wait,
                 "Print the job's events until it ends; exit with the code of its error if it "
                 "fails; Ctrl-C cancels it");
  OnVerb(verb, command, flags, RunSubmit);
}

void AddJobWatch(CLI::App* group, Command* command) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* verb = group->add_subcommand("watch", "Print a job's events until it ends");
  AddJobId(verb, &flags->id, "The job: its number in submit and list");
  verb->add_option("--from", flags->from, "Number of the first event to print (default: 1)")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
  verb->footer(
      "If the job fails, the command exits with the code of its error. Ctrl-C ends the watch, not "
      "the job. With --json, prints one event a line.");
  OnVerb(verb, command, flags, RunWatch);
}

}  // namespace

void AddJob(CLI::App* app, Command* command) {
  CLI::App* group = app->add_subcommand("job", "Products of tensors that are on the devices");
  group->require_subcommand(1);
  AddJobSubmit(group, command);

  auto limit = std::make_shared<int>(100);
  CLI::App* list =
      group->add_subcommand("list", "List queued, running and ended jobs, newest first");
  list->add_option("--limit", *limit, "Show at most this many jobs")
      ->check(CLI::Range(1, kMaxListed))
      ->capture_default_str();
  OnVerb(list, command, limit, RunList);

  AddRead(group, "show", "Show one job: what ran and why, its times, its events", RunJobShow,
          command);
  AddRead(group, "why", "Explain what a job is waiting for, or why it failed", RunWhy, command);
  AddJobWatch(group, command);

  auto id = std::make_shared<uint64_t>();
  CLI::App* cancel =
      group->add_subcommand("cancel", "Cancel a job; no error if it has already ended");
  AddJobId(cancel, id.get(), "The job: its number in submit and list");
  OnVerb(cancel, command, id, RunCancel);

  auto flags = std::make_shared<TraceFlags>();
  CLI::App* trace =
      group->add_subcommand("trace", "Write the step times of jobs to a file, for Perfetto");
  AddJobId(trace, &flags->ids, "The jobs: their numbers in submit and list");
  trace->add_option("--out", flags->out, "The JSON file to write")->required();
  OnVerb(trace, command, flags, RunTrace);
}

}  // namespace agmm
