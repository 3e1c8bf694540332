// agmmctl job list, show, cancel, trace: what runs and what ran.
#include <unistd.h>

#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/job_report.h"
#include "client/ctl/messages.h"
#include "client/ctl/to_json.h"
#include "client/ctl/trace.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "client/npy.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr int kPageJobs = 1000;
constexpr int kMaxListed = 1'000'000;

absl::Status RunList(int limit, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  v1::ListJobsResponse all;
  v1::ListJobsRequest request;
  do {
    request.set_page_size(std::min(kPageJobs, limit - all.jobs_size()));
    AGMM_ASSIGN_OR_RETURN(const v1::ListJobsResponse page, connection->ListJobs(request));
    all.MergeFrom(page);
    request.set_before_job_id(page.next_before_job_id());
  } while (request.before_job_id() != 0 && all.jobs_size() < limit);
  if (options.json)
    std::cout << JsonLine(ToJson(all));
  else
    std::cout << JobTable(all);
  return absl::OkStatus();
}

absl::Status RunShow(uint64_t id, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->GetJob(id));
  if (options.json)
    std::cout << JsonLine(ToJson(job));
  else
    std::cout << JobText(job);
  return absl::OkStatus();
}

absl::Status RunCancel(uint64_t id, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  AGMM_ASSIGN_OR_RETURN(const v1::Job job, connection->CancelJob(id));
  if (options.json)
    std::cout << JsonLine(ToJson(job));
  else if (HasEnded(job) && job.state() != v1::Job::STATE_CANCELLED)
    std::cout << "job " << id << " had ended before: " << StateName(job.state()) << "\n";
  else
    std::cout << "job " << id << " is cancelled\n";
  return absl::OkStatus();
}

// Beside its place first, so that nobody reads half of it.
absl::Status WriteWhole(const std::string& given, const std::string& text) {
  AGMM_ASSIGN_OR_RETURN(const std::string path, WritableTarget(given));
  const std::string temporary = absl::StrCat(path, ".tmp-", getpid());
  std::ofstream file(temporary, std::ios::binary);
  file << text;
  file.close();
  if (file && std::rename(temporary.c_str(), path.c_str()) == 0) return absl::OkStatus();
  std::remove(temporary.c_str());
  return absl::InvalidArgumentError(absl::StrFormat("cannot write %s; name another --out", path));
}

struct TraceFlags {
  std::vector<uint64_t> ids;
  std::string out;
};

absl::Status RunTrace(const TraceFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  std::vector<v1::Job> jobs;
  for (uint64_t id : flags.ids) {
    // All of one sequencer's.
    const std::string sequencer = jobs.empty() ? "" : jobs.front().sequencer();
    AGMM_ASSIGN_OR_RETURN(jobs.emplace_back(), connection->GetJob({id, sequencer}));
  }
  AGMM_ASSIGN_OR_RETURN(const nlohmann::ordered_json trace, TraceOf(jobs));
  AGMM_RETURN_IF_ERROR(WriteWhole(flags.out, trace.dump() + "\n"));
  const auto& events = trace["traceEvents"];
  const auto steps = std::count_if(events.begin(), events.end(),
                                   [](const auto& event) { return event["ph"] == "X"; });
  if (options.json) {
    std::cout << JsonLine({{"schema", "agmm.trace_file.v1"},
                           {"out", flags.out},
                           {"job_ids", flags.ids},
                           {"step_count", steps}});
  } else {
    std::cout << flags.out << ": " << steps
              << " steps; open it in https://ui.perfetto.dev or chrome://tracing\n";
  }
  return absl::OkStatus();
}

void AddOne(CLI::App* group, const std::string& verb_name, const std::string& help,
            absl::Status (*run)(uint64_t, const Options&), const Options& options, Action* action) {
  auto id = std::make_shared<uint64_t>();
  CLI::App* verb = group->add_subcommand(verb_name, help);
  verb->add_option("ID", *id, "The job, as submit and list number it")->required();
  verb->callback(
      [id, run, &options, action] { *action = [id, run, &options] { return run(*id, options); }; });
}

}  // namespace

void AddJob(CLI::App& app, const Options& options, Action* action) {
  CLI::App* group = app.add_subcommand("job", "Products of tensors that lie on the devices");
  group->require_subcommand(1);
  AddJobSubmit(group, options, action);

  auto limit = std::make_shared<int>(100);
  CLI::App* list = group->add_subcommand("list", "Queued, running and ended jobs, newest first");
  list->add_option("--limit", *limit, "At most so many")
      ->check(CLI::Range(1, kMaxListed))
      ->capture_default_str();
  list->callback([limit, &options, action] {
    *action = [limit, &options] { return RunList(*limit, options); };
  });

  AddOne(group, "show", "One job: what ran and why, its times, its events", RunShow, options,
         action);
  AddJobWatch(group, options, action);
  AddOne(group, "cancel", "End a job; no error if it has already ended", RunCancel, options,
         action);

  auto flags = std::make_shared<TraceFlags>();
  CLI::App* trace = group->add_subcommand("trace", "Write when every step ran, for Perfetto");
  trace->add_option("ID", flags->ids, "The jobs")->required();
  trace->add_option("--out", flags->out, "The file, JSON")->required();
  trace->callback([flags, &options, action] {
    *action = [flags, &options] { return RunTrace(*flags, options); };
  });
}

}  // namespace agmm
