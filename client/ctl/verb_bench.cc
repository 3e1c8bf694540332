// agmmctl bench: every algorithm against the unfused product, on the world as it is.
#include <CLI/App.hpp>
#include <CLI/Validators.hpp>
#include <algorithm>
#include <iostream>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/arguments.h"
#include "client/ctl/bench_report.h"
#include "client/ctl/bench_shapes.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/product.h"
#include "client/ctl/terminal_line.h"
#include "client/ctl/to_json.h"
#include "client/ctl/verbs.h"
#include "client/ctl/world.h"
#include "client/tensor_transfer.h"
#include "kernels/base/checksum.h"
#include "kernels/base/status.h"
#include "kernels/schedule/plan.h"

namespace agmm {
namespace {

constexpr char kAll[] = "all", kSerial[] = "serial";
constexpr int kRounds = 7, kQuickRounds = 3, kMaxRounds = 1000;
constexpr int kCpuScale = 8;
constexpr uint64_t kSeedA = 1, kSeedB = 2;
// No product of integers has this element, in any dtype.
constexpr double kPoison = 0.5;
// A larger C is not fetched to be compared.
constexpr int64_t kMostComparedBytes = int64_t{1} << 30;

struct BenchFlags {
  bool suite = false, quick = false;
  int scale = 0;   // 0: chosen by the kind of devices
  int rounds = 0;  // 0: kRounds or kQuickRounds
  std::vector<std::string> shapes, algorithms = {kAll};
  std::string dtype = "bf16", spec = kDefaultSpec, mesh, timeout = "60s";
};

// The flags, checked.
struct BenchPlan {
  std::vector<BenchShape> shapes;  // those that were written
  DType dtype;
  absl::Duration timeout;
  int rounds;
};

absl::StatusOr<BenchPlan> Check(const BenchFlags& flags) {
  BenchPlan plan;
  for (const std::string& text : flags.shapes) {
    AGMM_ASSIGN_OR_RETURN(BenchShape shape, ParseBenchShape(text));
    plan.shapes.push_back(std::move(shape));
  }
  if (flags.scale > 0 && !plan.shapes.empty() && !flags.suite) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--scale %d divides the suite and there are only shapes; leave it out, or add --suite",
        flags.scale));
  }
  AGMM_ASSIGN_OR_RETURN(plan.dtype, ParseDType(flags.dtype));
  AGMM_ASSIGN_OR_RETURN(plan.timeout, ParseTimeout(flags.timeout));
  plan.rounds = flags.rounds > 0 ? flags.rounds : flags.quick ? kQuickRounds : kRounds;
  for (const std::string& name : flags.algorithms) {
    const auto& known = Algorithms();
    if (name == kAll || std::find(known.begin(), known.end(), name) != known.end()) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "--algorithm \"%s\" is not known; use all, %s", name, absl::StrJoin(known, ", ")));
  }
  return plan;
}

// Those that were written, then the suite.
std::vector<BenchShape> ShapesOf(const BenchFlags& flags, const BenchPlan& plan, const Site& site) {
  std::vector<BenchShape> shapes = plan.shapes;
  if (!shapes.empty() && !flags.suite) return shapes;
  bool cpu = false;
  for (const v1::NodeStatus& node : site.status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) cpu |= device.kind() == "cpu";
  }
  const int scale = flags.scale > 0 ? flags.scale : cpu ? kCpuScale : 1;
  for (BenchShape& shape : (flags.suite ? Suite : SmallSuite)(site.mesh.size(), scale)) {
    if (scale > 1) absl::StrAppend(&shape.name, " / ", scale);
    shapes.push_back(std::move(shape));
  }
  return shapes;
}

// A plan, by the name that it was asked for.
struct Offer {
  std::string algorithm;
  Schedule schedule;
};

class Bench {
 public:
  Bench(Connection* connection, const BenchFlags& flags, const BenchPlan& plan, bool json)
      : connection_(connection), flags_(flags), plan_(plan), json_(json) {}

  absl::Status Run() {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, flags_.mesh));
    const std::vector<BenchShape> shapes = ShapesOf(flags_, plan_, site);
    for (const BenchShape& shape : shapes) {
      // What means nothing, or nobody can plan, is refused before anything runs.
      AGMM_ASSIGN_OR_RETURN(const Problem problem,
                            ParseProblem(flags_.spec, site.mesh, shape.shape, plan_.dtype));
      AGMM_RETURN_IF_ERROR(Offers(problem, site.topology).status());
    }
    AGMM_ASSIGN_OR_RETURN(session_, connection_->OpenSession());
    std::vector<BenchCase> cases;
    for (const BenchShape& shape : shapes) {
      place_ = absl::StrFormat("%d of %d  %s", cases.size() + 1, shapes.size(), shape.name);
      AGMM_ASSIGN_OR_RETURN(BenchCase one, RunShape(shape));
      line_.Wipe();
      Print(one);
      cases.push_back(std::move(one));
    }
    if (!json_) std::cout << BenchSummary(cases);
    return OutcomeOf(cases);
  }

 private:
  // Serial first; of those that would run the same, the first, but `auto` always.
  absl::StatusOr<std::vector<Offer>> Offers(const Problem& problem,
                                            const Topology& topology) const {
    const auto asked = [&](const std::string& name) {
      const auto& list = flags_.algorithms;
      return std::find(list.begin(), list.end(), name) != list.end();
    };
    const bool all = asked(kAll);
    AGMM_ASSIGN_OR_RETURN(Schedule serial, Plan(problem, topology, {kSerial}));
    std::vector<Offer> offers = {{kSerial, std::move(serial)}};
    for (const std::string& name : Algorithms()) {
      if (name == kSerial || name == kAuto || !(all || asked(name))) continue;
      absl::StatusOr<Schedule> schedule = Plan(problem, topology, {name});
      if (!schedule.ok()) {
        if (asked(name)) return schedule.status();
        continue;
      }
      const bool again = std::any_of(offers.begin(), offers.end(), [&](const Offer& other) {
        return other.schedule == *schedule;
      });
      if (!again) offers.push_back({name, *std::move(schedule)});
    }
    if (all || asked(kAuto)) {
      AGMM_ASSIGN_OR_RETURN(Schedule chosen, Plan(problem, topology, {kAuto}));
      offers.push_back({kAuto, std::move(chosen)});
    }
    return offers;
  }

  absl::StatusOr<BenchCase> RunShape(const BenchShape& shape) {
    AGMM_ASSIGN_OR_RETURN(const Site site, FindSite(connection_, flags_.mesh));
    BenchCase one;
    one.name = shape.name;
    one.shared_host = SharesHost(site);
    AGMM_ASSIGN_OR_RETURN(one.problem,
                          ParseProblem(flags_.spec, site.mesh, shape.shape, plan_.dtype));
    AGMM_ASSIGN_OR_RETURN(const std::vector<Offer> offers, Offers(one.problem, site.topology));
    int64_t workspace_bytes = 0;
    for (const Offer& offer : offers) {
      workspace_bytes = std::max(workspace_bytes, offer.schedule.workspace_bytes);
      one.rows.push_back({offer.algorithm});
    }
    Product product(connection_, session_, flags_.spec, one.problem, site.topology, plan_.timeout);
    absl::Status status = CheckRoom(site, one.problem, workspace_bytes);
    if (status.ok()) status = Measure(&product, &one);
    if (absl::IsResourceExhausted(status)) {
      one.skipped = std::string(status.message());
      one.rows.clear();
      one.serial = {};
      status = absl::OkStatus();
    }
    AGMM_RETURN_IF_ERROR(status);
    AGMM_RETURN_IF_ERROR(product.Delete());
    return one;
  }

  absl::Status Measure(Product* product, BenchCase* one) {
    Show("making A and B");
    AGMM_RETURN_IF_ERROR(product->Create());
    AGMM_RETURN_IF_ERROR(Fill(product->tensor(kA), v1::Fill::KIND_INTEGERS, kSeedA));
    AGMM_RETURN_IF_ERROR(Fill(product->tensor(kB), v1::Fill::KIND_INTEGERS, kSeedB));
    AGMM_RETURN_IF_ERROR(WarmUp(product, one));
    const int count = static_cast<int>(one->rows.size());
    for (int round = 0; round < plan_.rounds; ++round) {
      // Each round begins with another, so that nobody always runs behind the same one.
      for (int turn = 0; turn < count; ++turn) {
        BenchRow& row = one->rows[(round + turn) % count];
        Show(absl::StrFormat("round %d of %d  %s", round + 1, plan_.rounds, row.algorithm));
        AGMM_ASSIGN_OR_RETURN(row.job, product->Run({row.algorithm}, 1));
        for (double ms : SlowestRankMs(row.job, one->problem.mesh)) row.runs_ms.push_back(ms);
        if (row.algorithm == kSerial) one->serial.Add(row.job, one->problem.mesh);
      }
    }
    return absl::OkStatus();
  }

  // One run of each, whose time does not count, into a poisoned C, which is compared with serial's.
  absl::Status WarmUp(Product* product, BenchCase* one) {
    const Problem& p = one->problem;
    const bool compared = p.m() * p.n() * SizeOf(p.tensors[kC].dtype) <= kMostComparedBytes;
    uint64_t serial = 0;
    for (BenchRow& row : one->rows) {
      Show(absl::StrCat("warm-up  ", row.algorithm));
      const v1::Tensor& c = product->tensor(kC);
      if (compared) AGMM_RETURN_IF_ERROR(Fill(c, v1::Fill::KIND_CONSTANT, 0));
      AGMM_RETURN_IF_ERROR(product->Run({row.algorithm}, 1).status());
      if (!compared) continue;
      AGMM_ASSIGN_OR_RETURN(const uint64_t checksum, ChecksumOf(c));
      if (row.algorithm == kSerial) serial = checksum;
      row.exact = checksum == serial;
    }
    return absl::OkStatus();
  }

  absl::Status Fill(const v1::Tensor& tensor, v1::Fill::Kind kind, uint64_t seed) {
    v1::FillTensorRequest request;
    request.set_tensor_id(tensor.tensor_id());
    request.mutable_fill()->set_kind(kind);
    request.mutable_fill()->set_seed(seed);
    request.mutable_fill()->set_value(kPoison);
    return TransferError(connection_->FillTensor(request).status(), "an operand is not filled");
  }

  absl::StatusOr<uint64_t> ChecksumOf(const v1::Tensor& tensor) {
    v1::TensorRef ref;
    ref.set_tensor_id(tensor.tensor_id());
    Checksum checksum;
    const WriteFn add = [&](const v1::Tensor&, int64_t, absl::string_view data) {
      checksum.Add(data);
      return absl::OkStatus();
    };
    const absl::StatusOr<v1::Tensor> got = Download(connection_, ref, add, {[](int64_t) {}},
                                                    absl::InfiniteFuture(), tensor.sequencer());
    AGMM_RETURN_IF_ERROR(TransferError(got.status(), "C could not be compared"));
    return checksum.value();
  }

  void Show(const std::string& what) { line_.Draw(absl::StrCat(place_, "  ", what)); }

  void Print(const BenchCase& one) const {
    if (json_) {
      for (const nlohmann::ordered_json& result : ToJson(one)) std::cout << JsonLine(result);
    } else {
      std::cout << BenchText(one) << "\n";
    }
    std::cout.flush();  // the next may take long, and who reads a pipe waits for it
  }

  Connection* const connection_;
  const BenchFlags& flags_;
  const BenchPlan& plan_;
  const bool json_;
  std::string session_, place_;
  TerminalLine line_;
};

absl::Status RunBench(const BenchFlags& flags, const Options& options) {
  AGMM_ASSIGN_OR_RETURN(const BenchPlan plan, Check(flags));
  AGMM_ASSIGN_OR_RETURN(const std::unique_ptr<Connection> connection, Connect(options));
  const Interrupt interrupt([&] { connection->Interrupt(); });
  return Bench(connection.get(), flags, plan, options.json).Run();
}

}  // namespace

void AddBench(CLI::App& app, const Options& options, Action* action) {
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* verb = app.add_subcommand("bench", "Time every algorithm against the unfused product");
  verb->add_option("--shape", flags->shapes, "Sizes, such as M=8192,N=4096,K=4096; may be repeated")
      ->take_all();
  verb->add_flag(
      "--suite", flags->suite,
      "The layers of known models, and rows of decoding (default without --shape: four of them)");
  verb->add_option("--scale", flags->scale,
                   "Divides each dimension of the suite (default: 8 with CPU devices, else 1)")
      ->check(CLI::Range(1, kMaxScale));
  verb->add_option("--algorithm", flags->algorithms,
                   "all, or names with commas; serial always runs")
      ->delimiter(',')
      ->capture_default_str();
  verb->add_option("--dtype", flags->dtype, "f32, bf16 or f16")->capture_default_str();
  verb->add_option("--spec", flags->spec, "The product and its shardings")->capture_default_str();
  verb->add_option("--mesh", flags->mesh,
                   "Axes over the ranks, such as x=4 (default: x=<all ranks>)");
  verb->add_option("--rounds", flags->rounds,
                   "Runs of each that count (default: 7; with --quick 3)")
      ->check(CLI::Range(1, kMaxRounds));
  verb->add_flag("--quick", flags->quick, "Fewer rounds");
  verb->add_option("--timeout", flags->timeout, "For each job, from admission to its end")
      ->capture_default_str();
  verb->footer(
      "Operands are small integers made on the devices, in a session that ends with the command. "
      "Each "
      "algorithm's C is compared with that of serial, bit by bit. With --json, one result a line.");
  verb->callback([flags, &options, action] {
    *action = [flags, &options] { return RunBench(*flags, options); };
  });
}

}  // namespace agmm
