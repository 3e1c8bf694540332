#include "client/files/load_rules.h"

#include <fnmatch.h>

#include <algorithm>
#include <unordered_map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "kernels/base/status.h"
#include "kernels/base/tensor_name.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

PlannedTensor Plan(const FileTensor& stored, const std::vector<FileRule>& rules,
                   const std::vector<std::string>& transposed) {
  PlannedTensor planned{.stored = &stored};
  const auto rule = std::find_if(rules.begin(), rules.end(), [&](const FileRule& each) {
    return MatchesGlob(each.pattern, stored.name);
  });
  if (rule == rules.end()) return planned;
  planned.rule = static_cast<int>(rule - rules.begin());
  planned.taken = !rule->skip;
  if (rule->skip) return planned;
  planned.name =
      rule->name.empty() ? stored.name : absl::StrReplaceAll(rule->name, {{"*", stored.name}});
  planned.problem = stored.layout.status();
  if (!planned.problem.ok()) return planned;
  const bool transpose =
      rule->transpose || std::any_of(transposed.begin(), transposed.end(), [&](const auto& each) {
        return MatchesGlob(each, stored.name);
      });
  planned.layout = transpose ? Transposed(*stored.layout) : *stored.layout;
  planned.dtype = rule->dtype.value_or(planned.layout.dtype);
  return planned;
}

absl::Status CheckNames(const LoadPlan& plan) {
  std::unordered_map<std::string, const FileTensor*> taken;
  for (const PlannedTensor& tensor : plan.tensors) {
    if (!tensor.taken) continue;
    AGMM_RETURN_IF_ERROR(
        Annotate(CheckTensorName("its name on the devices", tensor.name),
                 absl::StrCat("tensor ", QuotedName(tensor.stored->name), " cannot be loaded")));
    const auto [other, is_new] = taken.emplace(tensor.name, tensor.stored);
    if (is_new) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "tensors %s and %s would both become %s; give a name with * for the name in the file",
        QuotedName(other->second->name), QuotedName(tensor.stored->name), QuotedName(tensor.name)));
  }
  return absl::OkStatus();
}

absl::Status CheckStrict(const std::vector<FileRule>& rules, const LoadPlan& plan) {
  if (!plan.unused_rules.empty()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the pattern %s matches none of %s; leave it out, or load without strict",
                        QuotedName(rules[plan.unused_rules.front()].pattern),
                        Counted(plan.tensors.size(), "tensor")));
  }
  std::vector<std::string> names;
  for (const PlannedTensor& tensor : plan.tensors)
    if (tensor.rule < 0) names.push_back(tensor.stored->name);
  if (names.empty()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("no rule matches %s; add one that loads or skips them, or load without "
                      "strict",
                      NamesText(names)));
}

// The plan takes no tensor.
absl::Status NoneTaken(const std::vector<FileRule>& rules, const LoadPlan& plan) {
  std::vector<std::string> patterns, names;
  for (const FileRule& rule : rules)
    if (!rule.skip) patterns.push_back(rule.pattern);
  for (const PlannedTensor& tensor : plan.tensors) names.push_back(tensor.stored->name);
  if (names.empty()) return absl::InvalidArgumentError("the file has no tensors");
  if (patterns.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "no rule loads a tensor; the file has %s: give a pattern of names", NamesText(names)));
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the rules for %s match no tensor, or only tensors that earlier rules take; "
                      "the file has %s",
                      NamesText(patterns, 3), NamesText(names)));
}

}  // namespace

int64_t LoadPlan::bytes() const {
  int64_t sum = 0;
  for (const PlannedTensor& tensor : tensors)
    if (tensor.taken) sum += tensor.bytes();
  return sum;
}

bool MatchesGlob(const std::string& pattern, const std::string& name) {
  // fnmatch would see only a part of a name with a null byte.
  return name.find('\0') == std::string::npos && fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
}

LoadPlan PlanLoad(const TensorFile& file, const std::vector<FileRule>& rules,
                  const std::vector<std::string>& transposed) {
  LoadPlan plan;
  for (const FileTensor& stored : file.tensors())
    plan.tensors.push_back(Plan(stored, rules, transposed));
  for (size_t i = 0; i < rules.size(); ++i) {
    const auto is_matched = [&](const FileTensor& stored) {
      return MatchesGlob(rules[i].pattern, stored.name);
    };
    if (std::none_of(file.tensors().begin(), file.tensors().end(), is_matched))
      plan.unused_rules.push_back(static_cast<int>(i));
  }
  return plan;
}

absl::Status CheckPlan(const TensorFile& file, const std::vector<FileRule>& rules,
                       const LoadPlan& plan, bool strict) {
  bool any = false;
  for (const PlannedTensor& tensor : plan.tensors) {
    any = any || tensor.taken;
    if (!tensor.problem.ok()) {
      return Annotate(
          Annotate(tensor.problem,
                   absl::StrCat("tensor ", QuotedName(tensor.stored->name), " cannot be loaded")),
          file.name());
    }
  }
  if (!any) return Annotate(NoneTaken(rules, plan), file.name());
  if (strict) AGMM_RETURN_IF_ERROR(Annotate(CheckStrict(rules, plan), file.name()));
  return Annotate(CheckNames(plan), file.name());
}

std::string NamesText(const std::vector<std::string>& names, size_t most) {
  std::vector<std::string> quoted;
  for (size_t i = 0; i < std::min(names.size(), most); ++i) quoted.push_back(QuotedName(names[i]));
  std::string text = absl::StrJoin(quoted, ", ");
  if (names.size() > most) absl::StrAppend(&text, " and ", names.size() - most, " more");
  return text;
}

}  // namespace agmm
