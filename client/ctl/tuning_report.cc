#include "client/ctl/tuning_report.h"

#include <iterator>
#include <optional>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/ctl/matmul_figures.h"
#include "client/ctl/plan_json.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "kernels/base/utf8.h"
#include "kernels/predict/tuning.h"
#include "kernels/schedule/index.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

// "12.300", or "-" if it is not known.
std::string MillisecondsText(const std::optional<double>& ms) {
  return ms > 0 ? absl::StrFormat("%.3f", *ms) : "-";
}

// "ring, 4 chunks a shard, split N=x".
std::string OptionsText(const v1::PlanOptions& options) {
  const std::string split =
      options.split().empty() ? "" : absl::StrCat(", split ", options.split());
  return absl::StrCat(PlanText(options, ""), split);
}

// "bf16", or of operands that differ "bf16, bf16 -> f32".
template <typename DTypes>
std::string DTypesText(const DTypes& dtypes) {
  std::vector<std::string> names;
  for (const auto dtype : dtypes) names.push_back(EnumName(static_cast<v1::DType>(dtype)));
  if (names.empty()) return "-";
  if (absl::c_all_of(names, [&](const std::string& name) { return name == names.front(); }))
    return names.front();
  const std::string result = names.back();
  names.pop_back();
  return absl::StrCat(absl::StrJoin(names, ", "), " -> ", result);
}

const Contender& Winner(const TunedShape& one) { return one.race.contenders[one.outcome.winner]; }
const Contender& AutoOf(const TunedShape& one) { return one.race.contenders[one.race.predicted]; }

std::optional<double> SerialMs(const TunedShape& one) {
  return one.race.serial ? one.race.contenders[*one.race.serial].MeasuredMs() : std::nullopt;
}

std::string PlanOf(const TunedShape& one) {
  return absl::StrCat(OptionsText(ToProto(Winner(one).options)),
                      one.outcome.winner == one.race.predicted ? " (auto)" : "");
}

// The options with the name of the algorithm.
Json RecipeJson(const PlanOptions& options) {
  Json json = {{"algorithm", options.algorithm}};
  json.update(OptionsJson(options));
  return json;
}

Json ContenderJson(const Contender& contender) {
  Json json = RecipeJson(contender.options);
  json.update({{"predicted_ms", contender.predicted_ms},
               {"time_ms", contender.MeasuredMs()},
               {"spread", SpreadOf(contender.runs_ms)},
               {"epochs", contender.runs_ms.size()},
               {"rounds", contender.rounds},
               {"dropped", contender.dropped},
               {"refused", NullIfEmpty(contender.refused)}});
  return json;
}

// "8192x11008x4096", or of a collective "8192x4096".
std::string SizesOf(const v1::TunedPlan& plan) {
  return absl::StrCat(plan.m(), "x", plan.n(), plan.k() > 0 ? absl::StrCat("x", plan.k()) : "");
}

// Returns true if a plan that was tuned on links of the rate `tuned` applies to those of `now`.
bool ApplyTo(double tuned, double now) {
  TuningKey of_plan, of_world;
  of_plan.between_bytes_per_ns = tuned;
  of_world.between_bytes_per_ns = now;
  return DifferInShapeAlone(of_plan, of_world);
}

// The problem and the ranks of a plan, two lines: its spec, dtypes and mesh; its nodes and
// hardware.
std::string PlaceOf(const v1::TunedPlan& plan, const LinksNow& now) {
  const int nodes = plan.ranks_per_node_size();
  std::string hardware =
      absl::StrCat("on ", Counted(nodes, "node"), " with ",
                   absl::StrJoin(plan.ranks_per_node(), "+"), " ranks: ", plan.hardware());
  if (plan.between_gb_per_s() > 0)
    absl::StrAppendFormat(&hardware, ", %.3g GB/s between nodes", plan.between_gb_per_s());
  if (nodes == now.nodes && !ApplyTo(plan.between_gb_per_s(), now.between_gb_per_s))
    absl::StrAppendFormat(&hardware, "; not used, because it is %.3g GB/s now: tune again",
                          now.between_gb_per_s);
  return absl::StrCat(Wrap(Printable(absl::StrFormat("%s  %s  mesh %s", plan.spec(),
                                                     DTypesText(plan.dtypes()), plan.mesh()))),
                      "\n", Wrap(Printable(hardware)), "\n");
}

using Plans = google::protobuf::RepeatedPtrField<v1::TunedPlan>;

// A table for each problem, mesh and hardware.
std::string TablesOf(const Plans& plans, const LinksNow& now) {
  std::vector<std::pair<std::string, Table>> tables;
  for (const v1::TunedPlan& plan : plans) {
    const std::string place = PlaceOf(plan, now);
    auto table = absl::c_find_if(tables, [&](const auto& one) { return one.first == place; });
    if (table == tables.end()) {
      tables.emplace_back(place, Table({Words("shape"), Number("T", "ms"), Number("serial", "ms"),
                                        Words("date"), WrappedWords("plan")}));
      table = std::prev(tables.end());
    }
    table->second.AddRow({SizesOf(plan), MillisecondsText(plan.time_us() * 1e-3),
                          MillisecondsText(plan.serial_us() * 1e-3), plan.date(),
                          OptionsText(plan.options())});
  }
  return absl::StrJoin(tables, "\n", [](std::string* text, const auto& one) {
    absl::StrAppend(text, one.first, one.second.ToString());
  });
}

}  // namespace

std::string TunedLine(const TunedShape& one) {
  // The table below the lines has the reason.
  if (!one.skipped.empty()) return absl::StrCat(one.name, ": skipped");
  if (!one.is_stored()) return absl::StrCat(one.name, ": not stored: ", one.outcome.not_stored);
  return absl::StrFormat("%s: %s: %s ms, auto %s ms", one.name, PlanOf(one),
                         MillisecondsText(Winner(one).MeasuredMs()),
                         MillisecondsText(AutoOf(one).MeasuredMs()));
}

std::string TunedText(const std::vector<TunedShape>& shapes) {
  if (shapes.empty()) return "";
  Table table({LongWords("shape"), Number("T", "ms"), Number("auto", "ms"), Number("serial", "ms"),
               Number("predicted", "ms"), WrappedWords("plan")});
  for (const TunedShape& one : shapes) {
    if (!one.skipped.empty()) {
      table.AddRow({one.name, "", "", "", "", "skipped"}, one.skipped);
      continue;
    }
    table.AddRow(
        {one.name, MillisecondsText(Winner(one).MeasuredMs()),
         MillisecondsText(AutoOf(one).MeasuredMs()), MillisecondsText(SerialMs(one)),
         MillisecondsText(Winner(one).predicted_ms), one.is_stored() ? PlanOf(one) : "not stored"},
        one.outcome.not_stored);
  }
  const Problem& problem = shapes.front().problem;
  std::vector<v1::DType> dtypes;
  for (const Tensor& tensor : problem.tensors) dtypes.push_back(ToProto(tensor.dtype));
  return absl::StrCat(
      Wrap(absl::StrFormat("%s  %s  mesh %s", SpecText(problem), DTypesText(dtypes),
                           problem.mesh.ToString())),
      "\n", table.ToString(),
      Wrap("T is the median of the slowest rank's times with the fastest plan. auto is that of the "
           "plan that auto predicts to be the fastest; another one is stored only if it is faster "
           "by more than 3 %."),
      "\n");
}

Json ToJson(const TunedShape& one) {
  const Problem& problem = one.problem;
  const bool stored = one.is_stored();
  std::vector<std::string> dtypes;
  for (const Tensor& tensor : problem.tensors) dtypes.emplace_back(Name(tensor.dtype));
  Json json = {{"schema", "agmm.tune_result.v1"},
               {"name", one.name},
               {"spec", SpecText(problem)},
               {"m", ShapeOf(problem).m},
               {"n", ShapeOf(problem).n},
               {"k", ShapeOf(problem).k},
               {"dtypes", dtypes},
               {"mesh", problem.mesh.ToString()},
               {"ranks", problem.mesh.ranks},
               {"skipped", NullIfEmpty(one.skipped)},
               {"not_stored", NullIfEmpty(one.outcome.not_stored)}};
  Json plan = RecipeJson(stored ? Winner(one).options : PlanOptions());
  plan.update({{"time_ms", stored ? Json(Winner(one).MeasuredMs()) : Json(nullptr)},
               {"spread", stored ? Json(SpreadOf(Winner(one).runs_ms)) : Json(nullptr)},
               {"predicted_ms", stored ? Json(Winner(one).predicted_ms) : Json(nullptr)},
               {"auto_ms", stored ? Json(AutoOf(one).MeasuredMs()) : Json(nullptr)},
               {"serial_ms", stored ? Json(SerialMs(one)) : Json(nullptr)},
               {"is_auto", stored ? Json(one.outcome.winner == one.race.predicted) : Json(nullptr)},
               {"hardware", NullIfEmpty(one.stored.hardware())},
               {"date", NullIfEmpty(one.stored.date())}});
  if (!stored) {
    for (auto& item : plan.items()) item.value() = nullptr;
  }
  json.update(plan);
  json["plans"] = Json::array();
  for (const Contender& contender : one.race.contenders)
    json["plans"].push_back(ContenderJson(contender));
  return json;
}

std::string TuningStatusText(const v1::TuningStatus& status, const LinksNow& now) {
  std::vector<std::string> parts;
  if (!status.plans().empty()) parts.push_back(TablesOf(status.plans(), now));
  if (!status.shipped().empty())
    parts.push_back(absl::StrCat("shipped with the program:\n\n", TablesOf(status.shipped(), now)));
  if (parts.empty()) parts.push_back("no tuned plans; `agmmctl tune` measures some\n");
  parts.push_back(absl::StrCat(
      Wrap(status.file().empty() ? "the plans are kept until the daemon of node 0 ends"
                                 : absl::StrCat("the plans are in ", Printable(status.file()))),
      "\n"));
  for (const std::string& entry : status.skipped())
    absl::StrAppend(&parts.back(), Wrap(absl::StrCat("not used: ", Printable(entry))), "\n");
  return absl::StrJoin(parts, "\n");
}

}  // namespace agmm
