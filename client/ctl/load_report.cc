#include "client/ctl/load_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/report.h"
#include "client/ctl/table.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

std::string MatrixText(const PlannedTensor& tensor) {
  return absl::StrFormat("%dx%d %s", tensor.layout.rows, tensor.layout.cols, Name(tensor.dtype));
}

// The rule that matches, as it was given.
std::string RuleText(const RuleFlags& flags, int rule) {
  if (rule < 0) return "-";
  const std::string& pattern = flags.rules[rule].pattern;
  return flags.rules[rule].skip ? absl::StrCat("skip ", pattern)
                                : absl::StrCat(pattern, "=", flags.shardings[rule]);
}

}  // namespace

absl::StatusOr<RuleFlags> ParseRules(const std::vector<std::string>& rules,
                                     const std::vector<std::string>& skipped,
                                     const std::vector<std::string>& transposed,
                                     const std::string& prefix, const std::string& dtype) {
  RuleFlags flags;
  flags.transposed = transposed;
  for (const std::string& pattern : skipped) {
    flags.rules.push_back({.pattern = pattern, .skip = true});
    flags.shardings.emplace_back();
  }
  for (const std::string& rule : rules) {
    // A pattern may have brackets and "=", but a sharding has no "=".
    const size_t equals = rule.rfind("=[");
    if (equals == std::string::npos || equals == 0) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--rule %s is not PATTERN=SHARDING; write a rule such as '*.up_proj.weight=[K, N_x]'",
          QuotedName(rule)));
    }
    FileRule& made = flags.rules.emplace_back();
    made.pattern = rule.substr(0, equals);
    if (!prefix.empty()) made.name = absl::StrCat(prefix, "*");
    if (!dtype.empty()) {
      AGMM_ASSIGN_OR_RETURN(made.dtype, ParseDType(dtype));
    }
    flags.shardings.push_back(rule.substr(equals + 1));
  }
  return flags;
}

Json ToJson(const LoadReport& report) {
  Json json = {{"schema", "agmm.load.v1"},
               {"file", report.file},
               {"loaded", Json::array()},
               {"skipped", report.skipped},
               {"unused_patterns", report.unused_patterns}};
  for (const LoadReport::Loaded& each : report.loaded) {
    json["loaded"].push_back({{"name_in_file", each.name_in_file},
                              {"bytes", each.bytes},
                              {"seconds", each.seconds},
                              {"tensor", ToJson(each.tensor)}});
  }
  return json;
}

std::string LoadText(const LoadReport& report) {
  Table table({LongWords("name"), Number("id"), Number("shape"), Words("dtype"),
               LongWords("sharding"), Number("bytes"), Number("time")});
  int64_t bytes = 0;
  double seconds = 0;
  for (const LoadReport::Loaded& each : report.loaded) {
    const v1::TensorSpec& spec = each.tensor.spec();
    table.AddRow({each.tensor.name(), absl::StrCat(each.tensor.tensor_id()),
                  absl::StrCat(spec.rows(), "x", spec.cols()), EnumName(spec.dtype()),
                  spec.sharding(), FormatBytes(each.bytes), FormatMicros(each.seconds * 1e6)});
    bytes += each.bytes;
    seconds += each.seconds;
  }
  std::string text = absl::StrFormat("%s%s: %s, %s in %s\n", table.ToString(), report.file,
                                     Counted(static_cast<int64_t>(report.loaded.size()), "tensor"),
                                     FormatBytes(bytes), FormatMicros(seconds * 1e6));
  if (!report.skipped.empty()) absl::StrAppend(&text, "skipped: ", NamesText(report.skipped), "\n");
  if (!report.unused_patterns.empty()) {
    absl::StrAppend(&text, "patterns that match no tensor: ", NamesText(report.unused_patterns),
                    "\n");
  }
  return text;
}

Json PlanJson(const TensorFile& file, const RuleFlags& flags, const LoadPlan& plan) {
  Json json = {
      {"schema", "agmm.tensor_file.v1"}, {"file", file.name()}, {"tensors", Json::array()}};
  for (const PlannedTensor& each : plan.tensors) {
    const bool has_form = each.taken && each.problem.ok();
    Json& made = json["tensors"].emplace_back();
    made = {{"name_in_file", each.stored->name},
            {"dtype_in_file", each.stored->dtype},
            {"shape_in_file", each.stored->shape},
            {"bytes_in_file", each.stored->bytes},
            {"rule", each.rule < 0 ? Json(nullptr) : Json(RuleText(flags, each.rule))},
            {"loaded", each.taken},
            {"problem", NullIfEmpty(std::string(each.problem.message()))},
            {"name", each.taken ? Json(each.name) : Json(nullptr)}};
    made["rows"] = has_form ? Json(each.layout.rows) : Json(nullptr);
    made["cols"] = has_form ? Json(each.layout.cols) : Json(nullptr);
    made["dtype"] = has_form ? Json(std::string(Name(each.dtype))) : Json(nullptr);
  }
  return json;
}

std::string PlanTable(const TensorFile& file, const RuleFlags& flags, const LoadPlan& plan) {
  if (plan.tensors.empty()) return absl::StrCat(file.name(), ": no tensors\n");
  Table table({LongWords("name in file"), Words("dtype"), Words("shape"), Number("bytes"),
               LongWords("rule"), LongWords("becomes"), Words("as")});
  for (const PlannedTensor& each : plan.tensors) {
    const bool has_form = each.taken && each.problem.ok();
    table.AddRow({each.stored->name, each.stored->dtype, StoredShapeText(each.stored->shape),
                  FormatBytes(each.stored->bytes), RuleText(flags, each.rule),
                  each.taken ? each.name : "-", has_form ? MatrixText(each) : "-"},
                 std::string(each.problem.message()));
  }
  return table.ToString();
}

}  // namespace agmm
