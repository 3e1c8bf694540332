// agmmctl job submit, watch: a product of tensors, and its events as they come.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <atomic>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/job_report.h"
#include "client/ctl/job_wait.h"
#include "client/ctl/messages.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

struct SubmitFlags {
  std::string spec = kDefaultSpec, bindings, timeout = "60s", request_id;
  PlanOptions options;
  int repeat = 1;
  bool wait = false;
};

// Prints events in the form that was asked for.
class EventPrinter {
 public:
  EventPrinter(const v1::Job& job, bool json) : job_(job), json_(json) {}

  int64_t printed() const { return printed_; }
  void operator()(const v1::JobEvent& event) {
    ++printed_;
    if (json_)
      std::cout << JsonLine(ToJson(job_.job_id(), event));
    else
      std::cout << EventLine(event, FromProto(event.time()) - FromProto(job_.create_time()))
                << "\n";
    std::cout.flush();  // also into a pipe: who reads it waits for it
  }

 private:
  const v1::Job& job_;
  const bool json_;
  int64_t printed_ = 0;
};

absl::StatusOr<v1::Job> Submit(Connection* connection, const SubmitFlags& flags,
                               absl::Duration timeout) {
  v1::SubmitJobRequest request;
  AGMM_ASSIGN_OR_RETURN(const std::vector<v1::TensorRef> refs,
                        ParseBindings(flags.spec, flags.bindings));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor a, connection->GetTensor(refs[kA]));
  AGMM_ASSIGN_OR_RETURN(const v1::Tensor b, connection->GetTensor(refs[kB]));
  // What means nothing is said here, where its column can be pointed at; what the tensors do not
  // fit is the sequencer's to say.
  AGMM_ASSIGN_OR_RETURN(const Mesh mesh, FromProto(a.spec().mesh()));
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(a.spec().dtype()));
  AGMM_RETURN_IF_ERROR(
      ParseProblem(flags.spec, mesh, {a.spec().rows(), b.spec().cols(), a.spec().cols()}, dtype)
          .status());
  request.set_request_id(flags.request_id.empty() ? absl::StrCat("agmmctl-", RandomHex(kIdBytes))
                                                  : flags.request_id);
  request.set_spec(flags.spec);
  *request.mutable_mesh() = a.spec().mesh();
  for (const v1::TensorRef& ref : refs) *request.add_tensors() = ref;
  *request.mutable_options() = ToProto(flags.options);
  request.set_repeat_count(flags.repeat);
  *request.mutable_timeout() = ToProto(timeout);
  return connection->SubmitJob(request, kPlacingCall, a.sequencer());
}

// The job as it ended; its events are printed as they come. Ctrl-C cancels it.
absl::StatusOr<v1::Job> WaitForSubmitted(Connection* connection, const v1::Job& job,
                                         absl::Duration timeout, bool json) {
  std::atomic<bool> interrupted = false;
  const Interrupt interrupt([&] {
    interrupted = true;
    connection->Interrupt();
  });
  std::function<void(const v1::JobEvent&)> on_event;
  if (!json) on_event = EventPrinter(job, json);
  absl::StatusOr<v1::Job> ended =
      AwaitJob(connection, IdOf(job), /*after_event=*/0, timeout, on_event);
  // Without its sequencer the job is gone.
  if (ended.ok() || ReasonOf(ended.status()) == kReasonPeerLost) return ended;
  // A daemon that stops says CANCELLED, too.
  if (!absl::IsCancelled(ended.status()) || !interrupted) {
    return Annotate(ended.status(),
                    absl::StrFormat("job %d may still run; see `agmmctl job show %d`", job.job_id(),
                                    job.job_id()));
  }
  const absl::StatusOr<v1::Job> cancelled = connection->CancelJob(IdOf(job));
  if (cancelled.ok())
    return absl::CancelledError(absl::StrFormat("job %d is cancelled", job.job_id()));
  if (ReasonOf(cancelled.status()) == kReasonPeerLost) return cancelled.status();
  return Annotate(cancelled.status(),
                  absl::StrFormat("job %d could not be cancelled and may still run", job.job_id()));
}

absl::Status RunSubmit(const SubmitFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const absl::Duration timeout, ParseTimeout(flags.timeout));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(v1::Job job, Submit(connection.get(), flags, timeout));
  if (!flags.wait) {
    if (options.json)
      std::cout << JsonLine(ToJson(job));
    else
      std::cout << "job " << job.job_id() << "\n";
    return absl::OkStatus();
  }
  if (!options.json) std::cout << "job " << job.job_id() << std::endl;
  AGMM_ASSIGN_OR_RETURN(job, WaitForSubmitted(connection.get(), job, timeout, options.json));
  if (options.json)
    std::cout << JsonLine(ToJson(job));
  else if (job.state() == v1::Job::STATE_SUCCEEDED)
    std::cout << FigureLine(job) << "\n";
  return OutcomeOf(job, timeout);
}

int64_t LastEvent(const v1::Job& job) {
  return job.events().empty() ? 0 : job.events(job.events_size() - 1).number();
}

struct WatchFlags {
  uint64_t id = 0;
  int64_t from = 0;
};

absl::Status RunWatch(const WatchFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  std::atomic<bool> interrupted = false;
  const Interrupt interrupt([&] {
    interrupted = true;
    connection->Interrupt();
  });
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->GetJob(flags.id));
  const absl::Duration timeout = FromProto(job.timeout());
  EventPrinter print(job, options.json);
  const absl::StatusOr<v1::Job> ended = AwaitJob(
      connection.get(), IdOf(job), flags.from > 0 ? flags.from - 1 : 0, timeout, std::ref(print));
  if (absl::IsCancelled(ended.status()) && interrupted) {
    return absl::CancelledError(
        absl::StrFormat("stopped watching job %d, which goes on", flags.id));
  }
  AGMM_RETURN_IF_ERROR(ended.status());
  if (print.printed() == 0 && !options.json) {
    std::cout << absl::StrFormat("job %d has no event %d: it ended with event %d, %s\n", flags.id,
                                 flags.from, LastEvent(*ended), StateName(ended->state()));
  }
  return OutcomeOf(*ended, timeout);
}

}  // namespace

void AddJobSubmit(CLI::App* group, const Options& options, Action* action) {
  auto flags = std::make_shared<SubmitFlags>();
  CLI::App* verb =
      group->add_subcommand("submit", "Multiply tensors; the product stays on the devices, too");
  verb->add_option(
          "--bind", flags->bindings,
          "The tensors: A=X,B=W,C=Y by name, or #12 for an id. A name for C that no tensor "
          "has is given to a new one")
      ->required();
  verb->add_option("--spec", flags->spec,
                   "The product and its shardings, over the mesh of A's tensor")
      ->capture_default_str();
  AddPlanOptions(verb, &flags->options);
  verb->add_option("--repeat", flags->repeat, "Epochs of this job")
      ->check(CLI::Range(1, kMaxRepeat))
      ->capture_default_str();
  verb->add_option("--timeout", flags->timeout, "From its admission to its end, at most 24h")
      ->capture_default_str();
  verb->add_option("--request-id", flags->request_id,
                   "Makes it safe to submit again: the same id and flags are the same job");
  verb->add_flag("--wait", flags->wait,
                 "Print its events until it has ended, and exit as it ended; Ctrl-C cancels it");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunSubmit(*flags, options); };
  });
}

void AddJobWatch(CLI::App* group, const Options& options, Action* action) {
  auto flags = std::make_shared<WatchFlags>();
  CLI::App* verb = group->add_subcommand("watch", "Print a job's events until it has ended");
  verb->add_option("ID", flags->id, "The job, as submit and list number it")->required();
  verb->add_option("--from", flags->from, "The first event to print (default: all)")
      ->check(CLI::Range(int64_t{1}, std::numeric_limits<int64_t>::max()));
  verb->footer(
      "Exits as the job ended. Ctrl-C ends the watch, not the job. With --json, one event a line.");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunWatch(*flags, options); };
  });
}

}  // namespace agmm
