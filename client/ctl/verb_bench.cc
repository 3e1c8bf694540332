// agmmctl bench: times every algorithm against the unfused product.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/connect/tensor_transfer.h"
#include "client/ctl/arguments.h"
#include "client/ctl/bench_shapes.h"
#include "client/ctl/collective_bench.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/matmul_report.h"
#include "client/ctl/product.h"
#include "client/ctl/ready_world.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/verbs.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"

namespace agmm {
namespace {

constexpr char kAll[] = "all", kSerial[] = "serial";
constexpr char kDefaultBytes[] = "1KiB:64MiB";
constexpr int kQuickRounds = 3;
// A value that products of integers never contain, in any dtype.
constexpr double kPoison = 0.5;
// The largest C that is fetched and compared.
constexpr int64_t kMaxComparedBytes = int64_t{1} << 30;

struct BenchFlags {
  bool suite = false, quick = false, no_tuning = false;
  int scale = 0;                                // 0: chosen by the kind of device
  int rounds = 0;                               // 0: kRounds or kQuickRounds
  std::vector<std::string> shapes, algorithms;  // none: all, or auto for collectives
  std::string dtype = "bf16", spec = kDefaultSpec, mesh, timeout = "60s";
  std::vector<std::string> collectives;
  std::string bytes = kDefaultBytes;
};

// The checked flags.
struct BenchPlan {
  std::vector<BenchShape> shapes;  // from --shape
  DType dtype;
  absl::Duration timeout;
  int rounds;
};

absl::StatusOr<BenchPlan> Check(const BenchFlags& flags) {
  BenchPlan plan;
  if (flags.collectives.empty() && !absl::StrContains(flags.spec, '*') &&
      absl::StrContains(flags.spec, "->")) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--spec '%s' has no product; use --collective to time collectives", flags.spec));
  }
  if (flags.collectives.empty() && flags.bytes != kDefaultBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--bytes %s sets the size of collectives; add --collective, or give the sizes of a product "
        "with --shape",
        flags.bytes));
  }
  AGMM_ASSIGN_OR_RETURN(plan.shapes, ParseShapes(flags.shapes, flags.spec));
  if (flags.scale > 0 && !plan.shapes.empty() && !flags.suite) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--scale %d divides the suite, but only --shape is given; leave it out, or add --suite",
        flags.scale));
  }
  AGMM_ASSIGN_OR_RETURN(plan.dtype, ParseDType(flags.dtype));
  AGMM_ASSIGN_OR_RETURN(plan.timeout, ParseTimeout(flags.timeout));
  plan.rounds = flags.rounds > 0 ? flags.rounds : flags.quick ? kQuickRounds : kRounds;
  for (const std::string& name : flags.algorithms) {
    if (name == kAll || absl::c_linear_search(AlgorithmNames(), name)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("--algorithm \"%s\" is not known; use all, %s", name,
                        absl::StrJoin(AlgorithmNames(), ", ")));
  }
  return plan;
}

// The shapes of --shape, then the suite.
std::vector<BenchShape> ShapesOf(const BenchFlags& flags, const BenchPlan& plan, const Site& site) {
  std::vector<BenchShape> shapes = plan.shapes;
  if (!shapes.empty() && !flags.suite) return shapes;
  for (BenchShape& shape : SuiteOf(site.status, site.mesh.size(), flags.scale, /*all=*/flags.suite))
    shapes.push_back(std::move(shape));
  return shapes;
}

// Bytes that the busiest node sends to other nodes in an epoch.
int64_t LinkBytes(const Topology& topology, const Schedule& schedule) {
  std::map<int, int64_t> sent;  // by node
  const std::vector<Traffic> traffic = TrafficOf(topology, schedule);
  for (size_t rank = 0; rank < traffic.size(); ++rank)
    sent[topology.node_of_rank[rank]] += traffic[rank].other_nodes;
  int64_t most = 0;
  for (const auto& [node, bytes] : sent) most = std::max(most, bytes);
  return most;
}

class Bench {
 public:
  Bench(Connection* connection, const BenchFlags& flags, const BenchPlan& plan, bool json)
      : connection_(connection), flags_(flags), plan_(plan), json_(json) {}

  absl::Status Run() {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, flags_.mesh));
    std::vector<BenchCase> cases;
    for (const BenchShape& shape : ShapesOf(flags_, plan_, site)) {
      // A product that is invalid or cannot be planned is refused before anything runs.
      AGMM_ASSIGN_OR_RETURN(BenchCase one, CaseOf(shape, site));
      cases.push_back(std::move(one));
    }
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession("agmmctl bench"));
    for (size_t i = 0; i < cases.size(); ++i) {
      case_ = absl::StrFormat("%d of %d  %s", i + 1, cases.size(), cases[i].name);
      AGMM_RETURN_IF_ERROR(RunCase(&cases[i]));
      line_.Print([&] { Print(cases[i]); });
    }
    if (!json_) std::cout << BenchSummary(cases);
    return OutcomeOf(cases);
  }

 private:
  // Returns the algorithms to run as rows, serial first. Of algorithms with the same plan only the
  // first one runs, but `auto` always does.
  absl::StatusOr<BenchCase> CaseOf(const BenchShape& shape, const Site& site) const {
    BenchCase one;
    one.name = shape.name;
    one.shared_host = SharesHost(site);
    AGMM_ASSIGN_OR_RETURN(one.problem,
                          ParseProblem(flags_.spec, site.mesh, shape.shape, plan_.dtype));
    AGMM_RETURN_IF_ERROR(CheckClosed(one.problem, flags_.spec));
    std::vector<std::string> names = AlgorithmNames();
    std::erase_if(names, [](const std::string& name) { return name == kSerial || name == kAuto; });
    names.insert(names.begin(), kSerial);
    names.push_back(kAuto);
    AGMM_ASSIGN_OR_RETURN(const Schedule gather, Plan(one.problem, site.topology, GatherAlone()));
    one.workspace_bytes = gather.workspace_bytes;
    std::vector<Schedule> plans;
    std::vector<std::string> alike;
    for (const std::string& name : names) {
      const bool asked = absl::c_linear_search(flags_.algorithms, name);
      const bool all = flags_.algorithms.empty() || absl::c_linear_search(flags_.algorithms, kAll);
      if (!asked && !all && name != kSerial) continue;
      absl::StatusOr<Schedule> plan = Plan(one.problem, site.topology, {name});
      if (!plan.ok()) {
        if (asked || name == kSerial || name == kAuto) return plan.status();
        one.left_out.push_back(absl::StrCat(name, ": ", plan.status().message()));
        continue;
      }
      if (name != kAuto && absl::c_linear_search(plans, *plan)) {
        alike.push_back(name);  // plans are equal only if they move nothing
        continue;
      }
      one.workspace_bytes = std::max(one.workspace_bytes, plan->workspace_bytes);
      one.rows.push_back({name});
      one.rows.back().link_bytes = LinkBytes(site.topology, *plan);
      plans.push_back(*std::move(plan));
    }
    if (!alike.empty())
      one.left_out.push_back(absl::StrCat(absl::StrJoin(alike, ", "), ": nothing has to move"));
    return one;
  }

  absl::Status RunCase(BenchCase* one) {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, flags_.mesh));
    ProductRun product(connection_, session_, flags_.spec, one->problem, plan_.timeout,
                       flags_.no_tuning);
    absl::Status status = CheckRoom(site, one->problem, one->workspace_bytes);
    if (status.ok()) status = Measure(&product, one);
    if (absl::IsResourceExhausted(status)) {
      AGMM_RETURN_IF_ERROR(OutcomeOf({*one}));  // a wrong C is not skipped
      one->skipped = std::string(status.message());
      one->rows.clear();
      one->parts = {};
      status = absl::OkStatus();
    }
    AGMM_RETURN_IF_ERROR(status);
    return product.Delete();
  }

  absl::Status Measure(ProductRun* product, BenchCase* one) {
    Show("making A and B");
    AGMM_RETURN_IF_ERROR(product->Create());
    AGMM_RETURN_IF_ERROR(product->FillInputs());
    AGMM_RETURN_IF_ERROR(WarmUp(product, one));
    const int count = static_cast<int>(one->rows.size());
    for (int round = 0; round < plan_.rounds; ++round) {
      const std::string shown = absl::StrFormat("round %d of %d  ", round + 1, plan_.rounds);
      // Each round begins with another algorithm, so that none always runs after the same one.
      for (int turn = 0; turn < count; ++turn) {
        BenchRow& row = one->rows[(round + turn) % count];
        Show(shown + row.algorithm);
        AGMM_ASSIGN_OR_RETURN(row.job, product->Run({row.algorithm}, 1));
        for (double ms : SlowestRankMs(row.job, one->problem.mesh)) row.runs_ms.push_back(ms);
        if (row.algorithm != kSerial) continue;
        one->parts.AddSerial(row.job, one->problem.mesh);
        if (!HasTransfers(row.job)) continue;
        Show(shown + "gather");
        AGMM_ASSIGN_OR_RETURN(const v1::Job gather, product->Run(GatherAlone(), 1));
        one->parts.AddTransfers(gather, one->problem.mesh);
      }
    }
    return absl::OkStatus();
  }

  // Runs each algorithm once, untimed, into a poisoned C, and compares its C with serial's.
  absl::Status WarmUp(ProductRun* product, BenchCase* one) {
    const Problem& p = one->problem;
    const bool compared =
        ShapeOf(p).m * ShapeOf(p).n * SizeOf(p.tensors[kC].dtype) <= kMaxComparedBytes;
    v1::Fill poison;
    poison.set_kind(v1::Fill::KIND_CONSTANT);
    poison.set_value(kPoison);
    uint64_t serial = 0;
    for (BenchRow& row : one->rows) {
      Show(absl::StrCat("warm-up  ", row.algorithm));
      const v1::Tensor& c = product->tensor(kC);
      if (compared) AGMM_RETURN_IF_ERROR(FillOperand(connection_, c, poison));
      AGMM_RETURN_IF_ERROR(product->Run({row.algorithm}, 1).status());
      if (!compared) continue;
      AGMM_ASSIGN_OR_RETURN(const uint64_t checksum,
                            TensorChecksum(connection_, c, "C could not be compared"));
      if (row.algorithm == kSerial) serial = checksum;
      row.exact = checksum == serial;
    }
    Show("warm-up  gather");
    return product->Run(GatherAlone(), 1).status();
  }

  void Show(const std::string& what) {
    line_.Update([&] { shown_ = absl::StrCat(case_, "  ", what); });
  }

  void Print(const BenchCase& one) const {
    if (json_) {
      for (const Json& result : ToJson(one)) std::cout << JsonLine(result);
    } else {
      std::cout << BenchText(one) << "\n";
    }
    std::cout.flush();  // because the next case may take long, and the reader of a pipe waits
  }

  Connection* const connection_;
  const BenchFlags& flags_;
  const BenchPlan& plan_;
  const bool json_;
  std::string session_, case_, shown_;
  TerminalLine line_{[this](absl::Duration) { return shown_; }};  // last: its thread reads shown_
};

absl::Status TimeCollectives(const BenchFlags& flags, const BenchPlan& plan, bool json,
                             Connection* connection) {
  if (!flags.shapes.empty() || flags.suite || flags.scale > 0 || flags.spec != kDefaultSpec) {
    return absl::InvalidArgumentError(
        "--collective times collectives of the sizes that --bytes gives; leave out --shape, "
        "--suite, "
        "--scale and --spec");
  }
  CollectiveBench bench;
  AGMM_ASSIGN_OR_RETURN(bench.asked, ParseCollectives(flags.collectives, flags.bytes));
  bench.mesh = flags.mesh;
  bench.dtype = plan.dtype;
  bench.algorithms = flags.algorithms.empty() ? std::vector<std::string>{kAuto} : flags.algorithms;
  if (absl::c_linear_search(flags.algorithms, kAll)) bench.algorithms = AlgorithmNames();
  bench.epochs = plan.rounds + 1;  // the first one warms up
  bench.timeout = plan.timeout;
  bench.ignore_tuning = flags.no_tuning;
  bench.json = json;
  return RunCollectives(connection, bench);
}

absl::Status RunBench(const BenchFlags& flags, const Options& options, Connection* connection) {
  AGMM_ASSIGN_OR_RETURN(const BenchPlan plan, Check(flags));
  const Interrupt interrupt(connection);
  if (!flags.collectives.empty()) return TimeCollectives(flags, plan, options.json, connection);
  return Bench(connection, flags, plan, options.json).Run();
}

}  // namespace

void AddBench(CLI::App* app, Command* command) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* verb = app->add_subcommand("bench", "Time every algorithm, or collectives alone");
  verb->add_option("--shape", flags->shapes,
                   "Sizes of a product, such as M=8192,N=4096,K=4096; may be repeated")
      ->take_all();
  verb->add_flag("--suite", flags->suite,
                 "Run the layers of known models, and decoding (default without --shape: four of "
                 "them)");
  AddScale(verb, &flags->scale);
  verb->add_option("--algorithm", flags->algorithms,
                   "all, or a comma-separated list of algorithms (default: all; with --collective, "
                   "auto). For products, serial always runs")
      ->delimiter(',');
  verb->add_option("--dtype", flags->dtype, kDTypeHelp)->capture_default_str();
  verb->add_option("--spec", flags->spec, kSpecHelp)->capture_default_str();
  verb->add_option("--collective", flags->collectives,
                   "Time collectives in place of products: all, or a comma-separated list of "
                   "all_gather, reduce_scatter, all_reduce and all_to_all")
      ->delimiter(',');
  verb->add_option(
          "--bytes", flags->bytes,
          "With --collective, a size, or the smallest and the largest of a series in which "
          "each is four times the one before")
      ->capture_default_str();
  verb->add_option("--mesh", flags->mesh, kMeshHelp);
  const CLI::Option* rounds =
      verb->add_option("--rounds", flags->rounds,
                       "Timed runs of each algorithm (default: 7; with --quick, 3)")
          ->check(CLI::Range(1, kMaxRounds));
  const CLI::Option* quick = verb->add_flag("--quick", flags->quick, "Run 3 rounds instead of 7");
  command->conflicts.Add(rounds, {quick});
  AddNoTuning(verb, &flags->no_tuning);
  verb->add_option("--timeout", flags->timeout, kJobTimeoutHelp)->capture_default_str();
  verb->footer(
      "Operands are small integers generated on the devices, in a session that ends with the "
      "command. "
      "The C of each algorithm is compared with that of serial, bit by bit. With --json, prints "
      "one result a line.");
  OnVerb(verb, command, flags, RunBench);
}

}  // namespace agmm
