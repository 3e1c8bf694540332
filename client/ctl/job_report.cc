#include "client/ctl/job_report.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/messages.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

std::string Size(const v1::Job& job) {
  return absl::StrFormat("%dx%dx%d", job.m(), job.n(), job.k());
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.3f s", absl::ToDoubleSeconds(duration));
}

std::string How(const v1::Job& job) {
  const v1::PlanOptions& options = job.options();
  if (options.algorithm().empty()) return "not chosen yet";
  if (options.chunk_count() == 0) return options.algorithm();
  return absl::StrFormat("%s, %d chunk%s a shard", options.algorithm(), options.chunk_count(),
                         options.chunk_count() == 1 ? "" : "s");
}

// For a column of that unit: "12.345", "86400000", "-" where it is not known.
std::string Milliseconds(double us) {
  if (us <= 0) return "-";
  return us < 1e9 ? absl::StrFormat("%.3f", us / 1e3) : absl::StrFormat("%.0f", us / 1e3);
}

// Why there are no figures.
std::string NoFigures(const v1::Job& job) {
  if (!HasEnded(job)) return absl::StrFormat("not known: the job is %s", StateName(job.state()));
  return absl::StrFormat("not known: the job has %s",
                         job.state() == v1::Job::STATE_SUCCEEDED ? "no figures" : "not succeeded");
}

std::string Moved(const v1::JobFigures& figures) {
  std::vector<std::string> parts;
  for (const v1::PathBytes& path : figures.moved())
    parts.push_back(absl::StrFormat("%s by %s", FormatBytes(path.bytes()), path.path()));
  return parts.empty() ? "nothing" : absl::StrCat(absl::StrJoin(parts, ", "), " an epoch");
}

void AddFigures(const v1::Job& job, Fields* fields) {
  if (!job.has_figures()) {
    fields->Add("T", NoFigures(job));
    return;
  }
  const v1::JobFigures& figures = job.figures();
  const std::string serial = "not known: run it with --algorithm serial --repeat 3";
  auto time = [](double us) { return absl::StrFormat("%.3f ms", us / 1000); };
  fields->Add("T", figures.time_us() == 0
                       ? "not known: no rank reported its time"
                       : absl::StrCat(time(figures.time_us()), " an epoch, slowest rank",
                                      job.repeat_count() > 1 ? ", median after the first" : ""));
  fields->Add("T_gemm", figures.gemm_us() == 0
                            ? serial
                            : absl::StrCat(time(figures.gemm_us()), ", the product alone"));
  const bool moves = std::any_of(figures.moved().begin(), figures.moved().end(),
                                 [](const v1::PathBytes& path) { return path.bytes() > 0; });
  fields->Add("T_ag", figures.gather_us() != 0
                          ? absl::StrCat(time(figures.gather_us()), ", the gather alone")
                      : moves ? serial
                              : "nothing has to be gathered");
  fields->Add("R", figures.overlap() == 0
                       ? serial
                       : absl::StrFormat("%.3f = max(T_gemm, T_ag) / T; 1 is perfect overlap",
                                         figures.overlap()));
  fields->Add("FLOP", absl::StrFormat("%.4g an epoch, all ranks", figures.flop_count()));
  fields->Add("rate", figures.tflops() == 0 ? "not known"
                                            : absl::StrFormat("%.4g TFLOP/s", figures.tflops()));
  fields->Add("moved", Moved(figures));
}

std::string EventTable(const v1::Job& job) {
  Table table({{"event"}, {"after", "s"}, {"state", "", Column::kText}, {"", "", Column::kText}});
  for (const v1::JobEvent& event : job.events()) {
    const absl::Duration after = FromProto(event.time()) - FromProto(job.create_time());
    table.AddRow({absl::StrCat(event.number()),
                  absl::StrFormat("%.3f", absl::ToDoubleSeconds(after)), StateName(event.state()),
                  event.message()});
  }
  return table.ToString();
}

}  // namespace

std::string JobTable(const v1::ListJobsResponse& list) {
  if (list.jobs().empty()) return "no jobs\n";
  Table table({{"id"},
               {"state", "", Column::kText},
               {"m x n x k", "", Column::kLong},
               {"dtype", "", Column::kText},
               {"algorithm", "", Column::kLong},
               {"ranks", "", Column::kLong},
               {"epochs"},
               {"T", "ms"},
               {"rate", "TFLOP/s"},
               {"created", "", Column::kText}});
  for (const v1::Job& job : list.jobs()) {
    const v1::JobFigures& figures = job.figures();
    const absl::Time created = FromProto(job.create_time());
    table.AddRow({absl::StrCat(job.job_id()), StateName(job.state()), Size(job),
                  DTypeName(job.dtype()),
                  job.options().algorithm().empty() ? "-" : job.options().algorithm(),
                  FormatRanks(RanksOf(job.mesh())), absl::StrCat(job.repeat_count()),
                  Milliseconds(figures.time_us()),
                  figures.tflops() > 0 ? absl::StrFormat("%.3f", figures.tflops()) : "-",
                  absl::FormatTime("%H:%M:%S", created, absl::LocalTimeZone())});
  }
  return table.ToString();
}

std::string JobText(const v1::Job& job) {
  Fields fields;
  fields.Add("job", absl::StrFormat("%d  %s", job.job_id(), StateName(job.state())));
  if (job.has_error()) {
    const absl::Status error = FromProto(job.error());
    fields.Add("error", absl::StrCat(absl::StatusCodeToString(error.code()), ": ",
                                     std::string(error.message())));
  }
  fields.Add("product", absl::StrFormat("%s  M=%d N=%d K=%d %s", job.spec(), job.m(), job.n(),
                                        job.k(), DTypeName(job.dtype())));
  fields.Add("mesh", absl::StrFormat("%s on ranks %s", AxesText(job.mesh()),
                                     FormatRanks(RanksOf(job.mesh()))));
  fields.Add("tensors", absl::StrCat("#", absl::StrJoin(job.tensor_ids(), " #")));
  fields.Add("algorithm", How(job));
  fields.Add("why", job.explanation().empty() ? "as asked" : job.explanation());
  fields.Add("plan", job.plan_hash().empty() ? "not made yet" : job.plan_hash());
  fields.Add("engine", job.engine().empty() ? "not known" : job.engine());
  fields.Add("transport", job.transport().empty() ? "none: one node" : job.transport());
  fields.Add("epochs", absl::StrCat(job.repeat_count()));
  fields.Add("owner",
             absl::StrFormat("%s, request %s, generation %d", job.owner(),
                             job.request_id().empty() ? "-" : job.request_id(), job.generation()));
  fields.Add("created", LocalTime(FromProto(job.create_time())));
  if (job.has_timeout())
    fields.Add("timeout", absl::FormatDuration(FromProto(job.timeout())) + " from then");
  if (job.has_start_time()) {
    const absl::Time start = FromProto(job.start_time());
    fields.Add("waited", Seconds(start - FromProto(job.create_time())));
    if (job.has_end_time()) fields.Add("ran", Seconds(FromProto(job.end_time()) - start));
  }
  AddFigures(job, &fields);
  return absl::StrCat(fields.ToString(), "\n", EventTable(job));
}

std::string EventLine(const v1::JobEvent& event, absl::Duration after) {
  return absl::StrFormat("%3d  %12s  %s%s%s", event.number(), Seconds(after),
                         StateName(event.state()), event.message().empty() ? "" : "  ",
                         event.message());
}

std::string FigureLine(const v1::Job& job) {
  const v1::JobFigures& figures = job.figures();
  std::string line = How(job);
  if (figures.time_us() > 0) {
    absl::StrAppendFormat(&line, ": T %s an epoch, %.4g TFLOP/s", FormatMicros(figures.time_us()),
                          figures.tflops());
  }
  if (figures.overlap() > 0) absl::StrAppendFormat(&line, ", R %.3f", figures.overlap());
  return line;
}

}  // namespace agmm
