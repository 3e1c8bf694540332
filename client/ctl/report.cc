#include "client/ctl/report.h"

#include <google/protobuf/descriptor.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "client/connect/job_watch.h"
#include "client/ctl/arguments.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_line.h"
#include "kernels/base/host_port.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/wait_chain.h"

namespace agmm {
namespace {

// "1536.0", for a column in MiB.
std::string Mebibytes(int64_t bytes) { return absl::StrFormat("%.1f", bytes / 1048576.0); }

// "2026-11-21 12:05:39", in the local time zone.
std::string LocalTime(absl::Time time) {
  return absl::FormatTime("%Y-%m-%d %H:%M:%S", time, absl::LocalTimeZone());
}

std::string ShapeText(const v1::TensorSpec& spec) {
  return absl::StrCat(spec.rows(), "x", spec.cols());
}

// "rank 3" or "ranks 0-3".
std::string RanksText(const std::vector<int>& ranks) {
  return absl::StrCat(ranks.size() == 1 ? "rank " : "ranks ", FormatRanks(ranks));
}

// "[K, N_x] over mesh x=4 on ranks 0-3".
std::string SpreadText(const v1::TensorSpec& spec) {
  const Mesh mesh = MeshOf(spec.mesh());
  return absl::StrFormat("%s over mesh %s on %s", spec.sharding(), mesh.ToString(),
                         RanksText(mesh.ranks));
}

// "1 MiB (1048576 bytes)".
std::string Bytes(int64_t bytes) {
  return bytes < 1024 ? FormatBytes(bytes)
                      : absl::StrFormat("%s (%d bytes)", FormatBytes(bytes), bytes);
}

// Number of digits of the run in the ids of its jobs. If two runs share them, more digits are
// shown.
constexpr size_t kRunDigits = 4;

// False for a collective, which has no K.
bool Multiplies(const v1::Job& job) { return job.k() > 0; }

std::string Size(const v1::Job& job) {
  if (!Multiplies(job)) return absl::StrFormat("%dx%d", job.m(), job.n());
  return absl::StrFormat("%dx%dx%d", job.m(), job.n(), job.k());
}

// "bf16", or "bf16 -> f32" if the result has another dtype than the inputs. Older daemons do not
// report the result's.
std::string DTypeText(const v1::Job& job) {
  if (job.result_dtype() == job.dtype() || job.result_dtype() == v1::DTYPE_UNSPECIFIED)
    return EnumName(job.dtype());
  return absl::StrCat(EnumName(job.dtype()), " -> ", EnumName(job.result_dtype()));
}

std::string Seconds(absl::Duration duration) {
  return absl::StrFormat("%.3f s", absl::ToDoubleSeconds(duration));
}

std::string How(const v1::Job& job) {
  const v1::PlanOptions& options = job.options();
  if (options.algorithm().empty()) return "not chosen yet";
  if (options.chunk_count() == 0) return options.algorithm();
  return PlanText(options, "", job.schedule());
}

// "ring", "local", or "-" where it is not chosen yet.
std::string AlgorithmOf(const v1::Job& job) {
  if (!job.schedule().empty()) return job.schedule();
  return job.options().algorithm().empty() ? "-" : job.options().algorithm();
}

// "12.345", "86400000", or "-" where it is not known, for a column in ms.
std::string Milliseconds(double us) {
  if (us <= 0) return "-";
  return us < 1e9 ? absl::StrFormat("%.3f", us / 1e3) : absl::StrFormat("%.0f", us / 1e3);
}

// Returns the reason for missing figures.
std::string NoFigures(const v1::Job& job) {
  if (!HasEnded(job)) return absl::StrFormat("not known: the job is %s", EnumName(job.state()));
  return absl::StrFormat("not known: the job has %s",
                         job.state() == v1::Job::STATE_SUCCEEDED ? "no figures" : "not succeeded");
}

std::string Moved(const v1::JobFigures& figures) {
  std::vector<std::string> parts;
  for (const v1::PathBytes& path : figures.moved())
    parts.push_back(absl::StrFormat("%s by %s", FormatBytes(path.bytes()), path.path()));
  return parts.empty() ? "nothing" : absl::StrCat(absl::StrJoin(parts, ", "), " an epoch");
}

// The job that T_gemm comes from: " (job 7, 12.3 s before)"; empty if it is this job.
std::string BaselineText(const v1::Job& job) {
  const v1::JobFigures& figures = job.figures();
  if (figures.baseline_job_id() == 0 || figures.baseline_job_id() == job.job_id()) return "";
  const absl::Duration age = FromProto(job.end_time()) - FromProto(figures.baseline_time());
  return absl::StrFormat(
      " (job %d, %s before)", figures.baseline_job_id(),
      FormatMicros(absl::ToDoubleMicroseconds(std::max(absl::ZeroDuration(), age))));
}

void AddFigures(const v1::Job& job, Fields* fields) {
  if (!job.has_figures()) {
    fields->Add("T", NoFigures(job));
    return;
  }
  const v1::JobFigures& figures = job.figures();
  const std::string serial = "not known: run it with --algorithm serial --repeat 3";
  const auto add_time = [&](const char* name, double us, const std::string& what,
                            std::string unknown) {
    fields->Add(name, us == 0 ? unknown : absl::StrFormat("%.3f ms%s", us / 1000, what));
  };
  add_time("T", figures.time_us(),
           job.repeat_count() > 1 ? " an epoch, slowest rank, median after the first"
                                  : " an epoch, slowest rank",
           "not known: no rank reported its time");
  if (job.predicted_us() > 0)
    fields->Add("predicted", absl::StrFormat("%.3f ms", job.predicted_us() / 1000));
  if (job.options().transfers_only() || !Multiplies(job)) {
    fields->Add("moved", Moved(figures));
    return;
  }
  const std::string from = BaselineText(job);
  add_time("T_gemm", figures.gemm_us(), ", the product alone" + from, serial);
  add_time("T_ag", figures.gather_us(), ", the gather alone",
           figures.moved().empty() ? "nothing has to be gathered" : serial);
  if (!figures.baseline_stale().empty())
    fields->Add("stale", absl::StrFormat("T_gemm, T_ag and R: %s; run it with --algorithm serial "
                                         "--repeat 3 again, and with --transfers-only",
                                         figures.baseline_stale()));
  fields->Add("R", figures.overlap() == 0
                       ? serial
                       : absl::StrFormat("%.3f = max(T_gemm, T_ag) / T; %s", figures.overlap(),
                                         figures.overlap() > 1
                                             ? "above 1, because one of both was measured too slow"
                                             : "1 is perfect overlap"));
  fields->Add("FLOP", absl::StrFormat("%.4g an epoch, all ranks", figures.flop_count()));
  fields->Add("rate", figures.tflops() == 0 ? "not known"
                                            : absl::StrFormat("%.4g TFLOP/s", figures.tflops()));
  fields->Add("moved", Moved(figures));
}

// "0.15/s", "3200/s".
std::string RateText(double epoch_us) {
  return epoch_us < 1e4 ? absl::StrFormat("%.0f/s", 1e6 / epoch_us)
                        : absl::StrFormat("%.2g/s", 1e6 / epoch_us);
}

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

std::string EventTable(const v1::Job& job) {
  Table table({Number("event"), Number("after", "s"), Words("state"), WrappedWords("")});
  for (const v1::JobEvent& event : job.events()) {
    const absl::Duration after = FromProto(event.time()) - FromProto(job.create_time());
    table.AddRow({absl::StrCat(event.number()),
                  absl::StrFormat("%.3f", absl::ToDoubleSeconds(after)), EnumName(event.state()),
                  event.message()});
  }
  return table.ToString();
}

}  // namespace

std::string JobId(const v1::Job& job) {
  if (!job.earlier_run()) return absl::StrCat(job.job_id());
  return absl::StrCat(job.job_id(), "@", job.sequencer().substr(0, kRunDigits));
}

std::string EnumName(const google::protobuf::EnumDescriptor* type, int number) {
  const auto* value = number == 0 ? nullptr : type->FindValueByNumber(number);
  if (value == nullptr) return "unknown";
  return absl::AsciiStrToLower(value->name().substr(value->name().find('_') + 1));
}

Mesh MeshOf(const v1::Mesh& mesh) { return FromProto(mesh).value_or(Mesh()); }

std::string PlanText(const v1::PlanOptions& options, absl::string_view why,
                     absl::string_view schedule) {
  if (!schedule.empty() && schedule != options.algorithm())
    return absl::StrCat(schedule, " (nothing has to move)");
  std::string text =
      absl::StrCat(options.algorithm(), ", ", Counted(options.chunk_count(), "chunk"), " a shard");
  if (options.k_chunk_count() > 1)
    absl::StrAppend(&text, ", ", options.k_chunk_count(), " along K");
  if (options.workspace_shard_count() > 0)
    absl::StrAppend(&text, ", ", options.workspace_shard_count(), " shards at a time");
  if (options.partials() != v1::DTYPE_F32 && options.partials() != v1::DTYPE_UNSPECIFIED)
    absl::StrAppend(&text, ", terms as ", EnumName(options.partials()));
  if (options.carried()) absl::StrAppend(&text, ", carried");
  if (options.transfers_only()) absl::StrAppend(&text, ", transfers only");
  if (!why.empty()) absl::StrAppend(&text, " (", why, ")");
  return text;
}

int64_t Sum(const v1::GetStatusResponse& status, int64_t (v1::DeviceStatus::*bytes)() const) {
  int64_t sum = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) sum += (device.*bytes)();
  }
  return sum;
}

int64_t StagingBytes(const v1::GetStatusResponse& status) {
  int64_t sum = 0;
  for (const v1::NodeStatus& node : status.nodes()) sum += node.staging_bytes();
  return sum;
}

// The ranks whose devices run no jobs until their daemons are restarted.
std::vector<int> FailedRanks(const v1::GetStatusResponse& status) {
  std::vector<int> failed;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices())
      if (!device.failure().empty()) failed.push_back(device.rank());
  }
  return failed;
}

// "version 0.1.0 (1a2b3c4d5e6f)", or the nodes of each version if they differ.
std::string VersionText(const v1::GetStatusResponse& status) {
  std::map<std::string, std::vector<std::string>> nodes;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.state() != v1::NodeStatus::STATE_READY &&
        node.state() != v1::NodeStatus::STATE_JOINING)
      continue;
    nodes[node.version().empty() ? "not known" : node.version()].push_back(node.name());
  }
  if (nodes.size() < 2) return absl::StrCat("version ", status.version());
  std::vector<std::string> parts;
  for (const auto& [version, names] : nodes)
    parts.push_back(absl::StrCat(version, " on ", absl::StrJoin(names, ", ")));
  return absl::StrCat("versions differ: ", absl::StrJoin(parts, "; "));
}

std::string StatusText(const v1::GetStatusResponse& status) {
  std::string text = absl::StrCat("world ", status.cluster(), "  generation ", status.generation(),
                                  "  ", status.ready() ? "ready" : "not ready: " + status.reason());
  if (const std::vector<int> failed = FailedRanks(status); !failed.empty())
    absl::StrAppend(&text, status.ready() ? ", but " : "; ", RanksText(failed),
                    failed.size() == 1 ? " has failed" : " have failed");
  absl::StrAppend(&text, "\n", Wrap(Printable(VersionText(status))), "\n");
  if (status.insecure()) {
    text +=
        "insecure: the daemons listen on TCP without protection; anyone who can reach\n"
        "their ports can use them\n";
  }
  Table nodes({Number("node"), LongWords("name"), LongWords("address"), Words("state"),
               Words("incarnation"), Words("ranks"), Number("plans", "MiB"),
               Number("staging", "MiB")});
  Table devices({Number("rank"), LongWords("node"), Words("kind"), WrappedWords("description")});
  Table memory({Number("rank"), Number("heap", "MiB"), Number("free", "MiB"),
                Number("largest free", "MiB"), Number("tensors", "MiB"), Number("held", "MiB"),
                Number("workspaces", "MiB"), Number("packed", "MiB"), Number("scratch", "MiB")});
  for (const v1::NodeStatus& node : status.nodes()) {
    std::vector<int> ranks;
    for (const v1::DeviceStatus& device : node.devices()) {
      ranks.push_back(device.rank());
      const std::string rank = absl::StrCat(device.rank());
      devices.AddRow({rank, node.name(), device.kind(),
                      device.failure().empty() ? device.description()
                                               : absl::StrCat("failed: ", device.failure())});
      memory.AddRow({rank, Mebibytes(device.heap_bytes()), Mebibytes(device.heap_free_bytes()),
                     Mebibytes(device.heap_largest_free_bytes()), Mebibytes(device.tensor_bytes()),
                     Mebibytes(device.held_bytes()), Mebibytes(device.workspace_bytes()),
                     Mebibytes(device.packed_bytes()), Mebibytes(device.scratch_bytes())});
    }
    const std::string address =
        WithIps(node.address(), {node.ip_addresses().begin(), node.ip_addresses().end()});
    nodes.AddRow({absl::StrCat(node.index()), node.name(), node.address(), EnumName(node.state()),
                  node.incarnation().empty() ? "-" : node.incarnation().substr(0, 8),
                  ranks.empty() ? "-" : FormatRanks(ranks), Mebibytes(node.plan_bytes()),
                  Mebibytes(node.staging_bytes())},
                 address == node.address() ? "" : absl::StrCat("address ", address));
  }
  absl::StrAppend(&text, "\n", nodes.ToString());
  if (!devices.empty()) absl::StrAppend(&text, "\n", devices.ToString(), "\n", memory.ToString());
  return text;
}

std::string TensorTable(const v1::ListTensorsResponse& list) {
  if (list.tensors().empty()) return "no tensors\n";
  Table table({Number("id"), LongWords("name"), Number("shape"), Words("dtype"),
               LongWords("sharding"), LongWords("mesh"), LongWords("ranks"), Words("state"),
               Number("version"), Number("a rank", "MiB")});
  for (const v1::Tensor& tensor : list.tensors()) {
    const v1::TensorSpec& spec = tensor.spec();
    const Mesh mesh = MeshOf(spec.mesh());
    table.AddRow({absl::StrCat(tensor.tensor_id()), tensor.name().empty() ? "-" : tensor.name(),
                  ShapeText(spec), EnumName(spec.dtype()), spec.sharding(), mesh.ToString(),
                  FormatRanks(mesh.ranks), EnumName(tensor.state()), absl::StrCat(tensor.version()),
                  Mebibytes(tensor.shard_bytes())});
  }
  return table.ToString();
}

std::string MemoryTable(const v1::GetStatusResponse& status) {
  Table table({Words("memory"), Number("tensors", "MiB"), Number("held", "MiB"),
               Number("workspaces", "MiB"), Number("packed", "MiB"), Number("scratch", "MiB"),
               Number("staging", "MiB"), Number("heaps", "MiB"), Number("free", "MiB")});
  using Device = v1::DeviceStatus;
  const auto sum = [&](auto bytes) { return Mebibytes(Sum(status, bytes)); };
  table.AddRow({"all ranks", sum(&Device::tensor_bytes), sum(&Device::held_bytes),
                sum(&Device::workspace_bytes), sum(&Device::packed_bytes),
                sum(&Device::scratch_bytes), Mebibytes(StagingBytes(status)),
                sum(&Device::heap_bytes), sum(&Device::heap_free_bytes)});
  return table.ToString();
}

std::string TensorLine(const v1::Tensor& tensor) {
  return absl::StrFormat("%s#%d: %s %s, %s, version %d",
                         tensor.name().empty() ? "" : tensor.name() + " ", tensor.tensor_id(),
                         ShapeText(tensor.spec()), EnumName(tensor.spec().dtype()),
                         SpreadText(tensor.spec()), tensor.version());
}

std::string NonFiniteText(int64_t non_finite, int64_t elements) {
  if (non_finite == 0) return "";
  return absl::StrFormat("%d of %s %s not finite (inf or NaN)", non_finite,
                         Counted(elements, "element"), non_finite == 1 ? "is" : "are");
}

std::string SavedLine(const v1::Tensor& tensor, const SavedFile& saved) {
  const v1::TensorSpec& spec = tensor.spec();
  const int64_t elements = spec.rows() * spec.cols();
  return absl::StrFormat(
      "%s: %s %s%s, %s%s%s", saved.path, ShapeText(spec), Name(saved.dtype),
      saved.raw ? " without a header" : "", FormatBytes(elements * SizeOf(saved.dtype)),
      saved.non_finite > 0 ? "; " : "", NonFiniteText(saved.non_finite, elements));
}

std::string TensorText(const v1::Tensor& tensor) {
  const v1::TensorSpec& spec = tensor.spec();
  Fields fields;
  fields.Add("name", tensor.name().empty() ? "-" : tensor.name());
  fields.Add("id", absl::StrCat("#", tensor.tensor_id()));
  fields.Add("shape", absl::StrCat(ShapeText(spec), " ", EnumName(spec.dtype())));
  fields.Add("sharding", SpreadText(spec));
  fields.Add("state",
             absl::StrFormat("%s, version %d", EnumName(tensor.state()), tensor.version()));
  fields.Add("a rank", Bytes(tensor.shard_bytes()));
  fields.Add("all ranks", Bytes(tensor.shard_bytes() * MeshOf(spec.mesh()).size()));
  fields.Add("place",
             absl::StrFormat("%d bytes into the heap of each rank", tensor.offset_bytes()));
  fields.Add("owner", tensor.owner().empty() ? "-" : tensor.owner());
  fields.Add("lives", tensor.session_id().empty()
                          ? "until it is deleted"
                          : absl::StrCat("until the end of session ", tensor.session_id()));
  if (tensor.has_create_time()) fields.Add("created", LocalTime(FromProto(tensor.create_time())));
  return fields.ToString();
}

std::string JobTable(const v1::ListJobsResponse& list) {
  if (list.jobs().empty() && list.earlier_jobs().empty()) return "no jobs\n";
  // In a narrow terminal the figures are in a table of their own.
  Table table({Number("id"), Words("state"), Words("created"), Words("m x n x k, dtype"),
               Words("algorithm"), LongWords("ranks"), Number("epochs"), Number("T", "ms"),
               Number("rate", "TFLOP/s")});
  const auto add = [&table](const v1::Job& job) {
    const v1::JobFigures& figures = job.figures();
    const absl::Time created = FromProto(job.create_time());
    table.AddRow({JobId(job), EnumName(job.state()),
                  absl::FormatTime(absl::Now() - created < absl::Hours(24) ? "%H:%M:%S" : "%d %b",
                                   created, absl::LocalTimeZone()),
                  absl::StrCat(Size(job), " ", DTypeText(job)), AlgorithmOf(job),
                  FormatRanks(MeshOf(job.mesh()).ranks), absl::StrCat(job.repeat_count()),
                  Milliseconds(figures.time_us()),
                  figures.tflops() > 0 ? absl::StrFormat("%.3f", figures.tflops()) : "-"},
                 FirstLine(job.error().message()));
  };
  absl::c_for_each(list.jobs(), add);
  absl::c_for_each(list.earlier_jobs(), add);
  return absl::StrCat(
      table.ToString(),
      list.earlier_jobs().empty() ? "" : "jobs with @ are of earlier runs of node 0's daemon\n");
}

EpochCount CountEpochs(const v1::Job& job) {
  EpochCount count;
  count.total = std::max(job.repeat_count(), 1);
  count.done = count.total;
  int ranks = 1, reported = 0;
  for (const v1::MeshAxis& axis : job.mesh().axes()) ranks *= axis.size();
  for (const v1::RankReport& rank : job.ranks()) {
    if (!rank.has_progress()) continue;
    ++reported;
    count.done = std::min(count.done, rank.progress().epochs_done());
    count.epoch_us = std::max(count.epoch_us, MedianEpochUs(rank));
    count.current_us = std::max(count.current_us, rank.progress().for_us());
  }
  if (reported == 0) count.done = 0;
  count.partial = reported > 0 && reported < ranks;
  return count;
}

std::string EpochsText(const v1::Job& job) {
  const EpochCount count = CountEpochs(job);
  std::string text = absl::StrFormat("%d of %d %s done%s", count.done, count.total,
                                     count.total == 1 ? "epoch" : "epochs",
                                     count.partial ? " on the ranks that reported" : "");
  if (count.epoch_us > 0 && count.done < count.total) {
    absl::StrAppendFormat(
        &text, ", %s, %s", RateText(count.epoch_us),
        TimeLeft(std::max(0.0, (count.total - count.done) * count.epoch_us - count.current_us) *
                 1e-6));
  }
  // An epoch is mentioned if it takes more than twice the median, and more than 1 s.
  if (count.current_us > std::max(2 * count.epoch_us, 1e6)) {
    absl::StrAppendFormat(&text, ", %s for %s", count.done == 0 ? "the first one" : "the next one",
                          TimeText(count.current_us));
  }
  return text;
}

std::string JobText(const v1::Job& job) {
  Fields fields;
  fields.Add("job",
             absl::StrFormat("%s  %s%s", JobId(job), EnumName(job.state()),
                             job.earlier_run() ? ", in an earlier run of node 0's daemon" : ""));
  if (job.has_error()) {
    const absl::Status error = FromProto(job.error());
    fields.Add("error", absl::StrCat(absl::StatusCodeToString(error.code()), ": ",
                                     std::string(error.message())));
  }
  if (Multiplies(job)) {
    fields.Add("product", absl::StrFormat("%s  M=%d N=%d K=%d %s", job.spec(), job.m(), job.n(),
                                          job.k(), DTypeText(job)));
  } else {
    fields.Add("collective",
               absl::StrFormat("%s  %d x %d %s", job.spec(), job.m(), job.n(), DTypeText(job)));
  }
  const Mesh mesh = MeshOf(job.mesh());
  fields.Add("mesh", absl::StrFormat("%s on %s", mesh.ToString(), RanksText(mesh.ranks)));
  fields.Add("tensors", absl::StrCat("#", absl::StrJoin(job.tensor_ids(), " #")));
  fields.Add("algorithm", How(job));
  if (!job.options().split().empty() && Multiplies(job)) fields.Add("split", job.options().split());
  // A local schedule is explained by the algorithm.
  if (job.schedule().empty() || job.schedule() == job.options().algorithm())
    fields.Add("why", job.explanation().empty() ? "as asked" : job.explanation());
  fields.Add("plan", job.plan_hash().empty() ? "not made yet" : job.plan_hash());
  fields.Add("engine", job.engine().empty() ? "not known" : job.engine());
  fields.Add("transport", job.transport().empty() ? "none: one node" : job.transport());
  if (!job.device_paths().empty()) fields.Add("paths", absl::StrJoin(job.device_paths(), ", "));
  if (!job.device_products().empty())
    fields.Add("products", absl::StrJoin(job.device_products(), "; "));
  fields.Add("epochs", HasEnded(job) || job.state() == v1::Job::STATE_QUEUED
                           ? absl::StrCat(job.repeat_count())
                           : EpochsText(job));
  if (!job.waits_for().reason().empty()) fields.Add("waits for", job.waits_for().reason());
  if (!job.silent_nodes().empty())
    fields.Add("silent", absl::StrCat("node ", absl::StrJoin(job.silent_nodes(), ", node "),
                                      " sent no progress report within 1 s"));
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
                         EnumName(event.state()), event.message().empty() ? "" : "  ",
                         event.message());
}

std::string FigureLine(const v1::Job& job) {
  const v1::JobFigures& figures = job.figures();
  std::string line = How(job);
  if (figures.time_us() > 0) {
    absl::StrAppendFormat(&line, ": T %s an epoch", FormatMicros(figures.time_us()));
    if (figures.tflops() > 0) absl::StrAppendFormat(&line, ", %.4g TFLOP/s", figures.tflops());
  }
  if (figures.overlap() > 0) {
    absl::StrAppendFormat(&line, ", R %.3f%s", figures.overlap(),
                          figures.baseline_stale().empty() ? "" : " (stale)");
  }
  return line;
}

}  // namespace agmm
