#include "client/ctl/collective_bench.h"

#include <algorithm>
#include <iostream>
#include <memory>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/connect/tensor_transfer.h"
#include "client/ctl/json.h"
#include "client/ctl/matmul_figures.h"
#include "client/ctl/product.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/table.h"
#include "client/ctl/terminal_line.h"
#include "kernels/base/checksum.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

constexpr int64_t kMostBytes = int64_t{1} << 34;
constexpr int64_t kSizeStep = 4;
// The result of a larger collective is not fetched and compared.
constexpr int64_t kMostChecked = int64_t{1} << 24;
// An epoch of few bytes is short, so more of them are timed. A job reports its last 64.
constexpr int64_t kTimedBytes = int64_t{64} << 20;
constexpr int64_t kMostEpochs = 64;

double Scatters(int ranks) { return (ranks - 1.0) / ranks; }
double Reduces(int ranks) { return 2 * (ranks - 1.0) / ranks; }

struct Row {
  const CollectiveForm* form = nullptr;
  Problem problem;
  int64_t size = 0;
  std::string algorithm;  // asked for
  v1::Job job;
  std::vector<double> runs_ms;
  int64_t sent_bytes = 0;  // by the rank that sends most
  std::optional<bool> exact;

  double time_ms() const { return Median(runs_ms).value_or(0); }
  // GB/s.
  double bus_rate() const {
    return time_ms() == 0 ? 0
                          : static_cast<double>(size) * form->bus_factor(problem.mesh.size()) /
                                time_ms() * 1e-6;
  }
};

class Collectives {
 public:
  Collectives(Connection* connection, const CollectiveBench& bench)
      : connection_(connection), bench_(bench) {}

  absl::Status Run() {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, bench_.mesh));
    AGMM_ASSIGN_OR_RETURN(std::vector<Row> rows, RowsOn(site));
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession("agmmctl bench"));
    for (size_t i = 0; i < rows.size(); ++i) {
      line_.Update([&] {
        shown_ = absl::StrFormat("%d of %d  %s  %s", i + 1, rows.size(), rows[i].form->name,
                                 FormatBytes(rows[i].size));
      });
      AGMM_RETURN_IF_ERROR(Measure(site, &rows[i]));
    }
    line_.Print([&] { Print(rows); });
    for (const Row& row : rows) {
      if (row.exact == false) {
        return absl::InternalError(
            absl::StrFormat("the result of %s, %s by %s, is wrong; this is a bug, please report it",
                            row.form->name, FormatBytes(row.size), row.algorithm));
      }
    }
    return absl::OkStatus();
  }

 private:
  // Plans everything before anything runs.
  absl::StatusOr<std::vector<Row>> RowsOn(const Site& site) {
    if (site.mesh.axes.size() != 1) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "collectives are timed over one axis, and mesh %s has %d; give --mesh x=%d",
          site.mesh.ToString(), site.mesh.axes.size(), site.mesh.size()));
    }
    Mesh mesh = site.mesh;
    mesh.axes[0].name = "x";
    std::vector<Row> rows;
    for (const CollectiveForm* form : bench_.asked.forms) {
      for (const int64_t size : bench_.asked.sizes) {
        for (const std::string& algorithm : bench_.algorithms) {
          Row row;
          row.form = form;
          row.algorithm = algorithm;
          AGMM_ASSIGN_OR_RETURN(row.problem, CollectiveOf(*form, mesh, size, bench_.dtype));
          const Tensor& whole = row.problem.tensors[0];
          row.size = whole.rows * whole.cols * SizeOf(whole.dtype) /
                     (form->size_of_shard ? mesh.size() : 1);
          const absl::StatusOr<Schedule> plan = Plan(row.problem, site.topology, {algorithm});
          absl::Status status = plan.status();
          if (plan.ok()) status = CheckRoom(site, row.problem, plan->workspace_bytes);
          if (!status.ok() && bench_.algorithms.size() * bench_.asked.sizes.size() > 1) {
            left_out_.push_back(absl::StrFormat("%s, %s by %s: %s", form->name,
                                                FormatBytes(row.size), algorithm,
                                                status.message()));
            continue;
          }
          AGMM_RETURN_IF_ERROR(status);
          for (const Traffic& traffic : TrafficOf(site.topology, *plan))
            row.sent_bytes = std::max(row.sent_bytes, traffic.own_node() + traffic.other_nodes);
          rows.push_back(std::move(row));
        }
      }
    }
    return rows;
  }

  absl::Status Measure(const Site& site, Row* row) {
    ProductRun moved(connection_, session_, SpecText(row->problem), row->problem, bench_.timeout,
                     bench_.ignore_tuning);
    AGMM_RETURN_IF_ERROR(moved.Create());
    AGMM_RETURN_IF_ERROR(moved.FillInputs());
    AGMM_ASSIGN_OR_RETURN(const std::optional<uint64_t> expected,
                          ExpectedOf(moved.tensor(0), row->problem));
    AGMM_RETURN_IF_ERROR(moved.Run({row->algorithm}, 2).status());
    if (expected.has_value()) {
      AGMM_ASSIGN_OR_RETURN(const uint64_t got, ChecksumOf(moved.tensor(1)));
      row->exact = got == expected;
    }
    const int64_t epochs =
        std::max<int64_t>(bench_.epochs, std::min<int64_t>(kMostEpochs, kTimedBytes / row->size));
    AGMM_ASSIGN_OR_RETURN(row->job, moved.Run({row->algorithm}, static_cast<int>(epochs)));
    row->runs_ms = AfterWarmUp(SlowestRankMs(row->job, site.mesh));
    return moved.Delete();
  }

  // Returns the checksum of the values of the source, which are the sums of its parts if it has
  // any; nothing if they are too many.
  absl::StatusOr<std::optional<uint64_t>> ExpectedOf(const v1::Tensor& source,
                                                     const Problem& problem) {
    const Tensor& tensor = problem.tensors[0];
    if (tensor.rows * tensor.cols * SizeOf(tensor.dtype) > kMostChecked) return std::nullopt;
    if (tensor.sharding.open.empty()) return ChecksumOf(source);
    // The same product as that of ProductRun::FillInputs, with a closed sum.
    const std::string spec = "P[M, J_x] * Q[J_x, K] -> R[M, K_x]";
    AGMM_ASSIGN_OR_RETURN(
        Problem product,
        ParseProblem(spec, problem.mesh, {tensor.rows, tensor.cols, problem.mesh.size()},
                     tensor.dtype));
    ProductRun run(connection_, session_, spec, std::move(product), bench_.timeout,
                   bench_.ignore_tuning);
    AGMM_RETURN_IF_ERROR(run.Create());
    AGMM_RETURN_IF_ERROR(run.FillInputs());
    AGMM_RETURN_IF_ERROR(run.Run({}, 1).status());
    AGMM_ASSIGN_OR_RETURN(const uint64_t sum, ChecksumOf(run.tensor(kC)));
    AGMM_RETURN_IF_ERROR(run.Delete());
    return sum;
  }

  absl::StatusOr<uint64_t> ChecksumOf(const v1::Tensor& tensor) {
    return TensorChecksum(connection_, tensor, "the result could not be compared");
  }

  void Print(const std::vector<Row>& rows) const {
    double best = 0;
    for (const Row& row : rows) best = std::max(best, row.bus_rate());
    Table table({Words("collective"), Number("size"), Words("algorithm"), Number("T", "us"),
                 Number("sent by a rank"), Number("bus", "GB/s"), Number("T_lb", "us"),
                 Number("T_lb / T"), Words("result")});
    for (const Row& row : rows) {
      const double bound_ms = best == 0 ? 0 : row.time_ms() * row.bus_rate() / best;
      if (bench_.json) {
        std::cout << JsonLine(ToJson(row, bound_ms));
        continue;
      }
      const std::string& ran = row.job.options().algorithm();
      table.AddRow({row.form->name, FormatBytes(row.size),
                    ran == row.algorithm ? ran : absl::StrCat(row.algorithm, " (", ran, ")"),
                    absl::StrFormat("%.1f", row.time_ms() * 1e3), FormatBytes(row.sent_bytes),
                    absl::StrFormat("%.3f", row.bus_rate()),
                    absl::StrFormat("%.1f", bound_ms * 1e3),
                    absl::StrFormat("%.3f", bound_ms / std::max(row.time_ms(), 1e-9)),
                    !row.exact.has_value() ? "not compared"
                    : *row.exact           ? "exact"
                                           : "WRONG"});
    }
    if (bench_.json) return;
    std::cout
        << table.ToString() << (left_out_.empty() ? "" : "left out: ")
        << absl::StrJoin(left_out_, "\nleft out: ") << (left_out_.empty() ? "" : "\n")
        << Wrap(
               "T is the median of the slowest rank's times. size and bus are defined as in "
               "nccl-tests: size is the larger of a rank's two buffers, and bus is the fewest "
               "bytes that a rank must send, divided by T. T_lb is the time at the best bus "
               "rate of this run. Matrices of up to 16 MiB are compared with the correct "
               "result, bit by bit.")
        << "\n";
  }

  Json ToJson(const Row& row, double bound_ms) const {
    return {{"schema", "agmm.collective_result.v1"},
            {"collective", row.form->name},
            {"spec", SpecText(row.problem)},
            {"mesh", row.problem.mesh.ToString()},
            {"dtype", std::string(Name(bench_.dtype))},
            {"size_bytes", row.size},
            {"algorithm", row.algorithm},
            {"chosen", row.job.options().algorithm()},
            {"plan_hash", row.job.plan_hash()},
            {"runs_ms", row.runs_ms},
            {"time_ms", row.time_ms()},
            {"spread", SpreadOf(row.runs_ms)},
            {"sent_bytes", row.sent_bytes},
            {"bus_gb_per_s", row.bus_rate()},
            {"lower_bound_ms", bound_ms},
            {"exact", row.exact}};
  }

  Connection* const connection_;
  const CollectiveBench& bench_;
  std::string session_, shown_;
  std::vector<std::string> left_out_;                             // rows that cannot run, and why
  TerminalLine line_{[this](absl::Duration) { return shown_; }};  // last: its thread reads shown_
};

}  // namespace

const std::vector<CollectiveForm>& CollectiveForms() {
  static const auto* const forms = new std::vector<CollectiveForm>{
      {"all_gather", "A[M_x, K] -> B[M, K]", Scatters},
      {"reduce_scatter", "A[M, K]{U_x} -> B[M_x, K]", Scatters},
      {"all_reduce", "A[M, K]{U_x} -> B[M, K]", Reduces},
      {"all_to_all", "A[M_x, K] -> B[M, K_x]", Scatters, /*size_of_shard=*/true},
  };
  return *forms;
}

absl::StatusOr<CollectiveSizes> ParseCollectives(const std::vector<std::string>& names,
                                                 const std::string& bytes) {
  CollectiveSizes asked;
  for (const CollectiveForm& form : CollectiveForms()) {
    if (absl::c_linear_search(names, form.name) || absl::c_linear_search(names, "all"))
      asked.forms.push_back(&form);
  }
  for (const std::string& name : names) {
    const auto is_it = [&](const CollectiveForm& form) { return name == form.name; };
    if (name == "all" || absl::c_any_of(CollectiveForms(), is_it)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--collective \"%s\" is not known; use all, all_gather, reduce_scatter, "
                        "all_reduce or all_to_all",
                        name));
  }
  const std::vector<std::string> ends = absl::StrSplit(bytes, ':');
  int64_t limits[2] = {0, 0};
  for (size_t i = 0; i < ends.size() && i < 2; ++i) {
    const absl::StatusOr<int64_t> size = ParseBytes(ends[i]);
    limits[i] = size.ok() ? *size : 0;
  }
  if (ends.size() == 1) limits[1] = limits[0];
  if (ends.size() > 2 || limits[0] < 1 || limits[1] < limits[0] || limits[1] > kMostBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--bytes \"%s\" is not a size or a range of sizes between 1 byte and %s; write 64KiB or "
        "1KiB:256MiB",
        bytes, FormatBytes(kMostBytes)));
  }
  for (int64_t size = limits[0]; size <= limits[1]; size *= kSizeStep) asked.sizes.push_back(size);
  return asked;
}

absl::StatusOr<Problem> CollectiveOf(const CollectiveForm& form, const Mesh& mesh, int64_t size,
                                     DType dtype) {
  const int64_t ranks = mesh.size();
  const int64_t elements =
      std::max<int64_t>(1, size * (form.size_of_shard ? ranks : 1) / SizeOf(dtype));
  // Rows of whole pages for large matrices; every rank gets as many rows and columns as the others.
  int64_t cols = 32;
  while (cols < 4096 && cols * cols < elements) cols *= 2;
  cols = RoundUp(cols, ranks);
  const int64_t rows = RoundUp(CeilDiv(elements, cols), ranks);
  return ParseProblem(form.spec, mesh, {rows, cols, 0}, dtype);
}

absl::Status RunCollectives(Connection* connection, const CollectiveBench& bench) {
  return Collectives(connection, bench).Run();
}

}  // namespace agmm
