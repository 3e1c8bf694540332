#include "client/ctl/arguments.h"

#include <CLI/Validators.hpp>
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// Digits alone: no sign, no blanks.
template <typename T>
bool ParseCount(absl::string_view text, T* value) {
  return !text.empty() && std::all_of(text.begin(), text.end(), absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value);
}

// The names in front of the spec's brackets.
std::vector<std::string> OperandNames(absl::string_view spec) {
  std::vector<std::string> names;
  for (size_t bracket = spec.find('['); bracket != spec.npos;
       bracket = spec.find('[', bracket + 1)) {
    size_t begin = bracket;
    while (begin > 0 && (absl::ascii_isalnum(spec[begin - 1]) || spec[begin - 1] == '_')) --begin;
    names.emplace_back(spec.substr(begin, bracket - begin));
  }
  return names;
}

}  // namespace

absl::StatusOr<v1::TensorRef> ParseTensorRef(absl::string_view text) {
  v1::TensorRef ref;
  if (text.empty()) return absl::InvalidArgumentError("a tensor's name is empty; write W or #12");
  if (text[0] != '#') {
    ref.set_name(std::string(text));
    return ref;
  }
  uint64_t id = 0;
  if (!ParseCount(text.substr(1), &id) || id == 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\" is no tensor's id; ids are #1, #2, ...", text));
  }
  ref.set_tensor_id(id);
  return ref;
}

std::string ToString(const v1::TensorRef& ref) {
  return ref.has_tensor_id() ? absl::StrCat("#", ref.tensor_id()) : ref.name();
}

absl::StatusOr<std::vector<int>> ParseRanks(absl::string_view text) {
  std::vector<int> ranks;
  std::set<int> seen;
  for (absl::string_view part : absl::StrSplit(text, ',')) {
    const std::vector<absl::string_view> ends = absl::StrSplit(part, '-');
    int first = 0, last = 0;
    if (ends.size() > 2 || !ParseCount(ends.front(), &first) || !ParseCount(ends.back(), &last) ||
        last < first || last - first >= kMaxRanks) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--ranks \"%s\": \"%s\" is no rank and no range; write 0-3 or 0,2,4", text, part));
    }
    for (int rank = first; rank <= last; ++rank) {
      if (!seen.insert(rank).second) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--ranks \"%s\" names rank %d twice", text, rank));
      }
      ranks.push_back(rank);
    }
  }
  return ranks;
}

std::string FormatRanks(const std::vector<int>& ranks) {
  std::vector<std::string> parts;
  for (size_t begin = 0, end; begin < ranks.size(); begin = end) {
    end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    parts.push_back(end - begin == 1 ? absl::StrCat(ranks[begin])
                                     : absl::StrCat(ranks[begin], "-", ranks[end - 1]));
  }
  return absl::StrJoin(parts, ",");
}

absl::StatusOr<Dimensions> ParseDimensions(absl::string_view text) {
  const std::vector<absl::string_view> parts = absl::StrSplit(text, 'x');
  Dimensions dimensions;
  if (parts.size() != 2 || !ParseCount(parts[0], &dimensions.rows) ||
      !ParseCount(parts[1], &dimensions.cols) || dimensions.rows < 1 || dimensions.cols < 1 ||
      std::max(dimensions.rows, dimensions.cols) > kMaxDimension) {
    return absl::InvalidArgumentError(
        absl::StrFormat("--shape \"%s\" is not rows x columns, each from 1 to %d; write 4096x512",
                        text, kMaxDimension));
  }
  return dimensions;
}

absl::StatusOr<Mesh> MeshOfFlags(const std::string& mesh, const std::string& ranks,
                                 int world_ranks) {
  std::vector<int> list;
  if (!ranks.empty()) {
    AGMM_ASSIGN_OR_RETURN(list, ParseRanks(ranks));
  }
  const size_t size = ranks.empty() ? static_cast<size_t>(world_ranks) : list.size();
  return ParseMesh(mesh.empty() ? absl::StrCat("x=", size) : mesh, list);
}

absl::StatusOr<std::vector<v1::TensorRef>> ParseBindings(absl::string_view spec,
                                                         absl::string_view bindings) {
  const std::vector<std::string> names = OperandNames(spec);
  if (names.size() != 3) {
    return absl::InvalidArgumentError(
        absl::StrFormat("spec \"%s\" names %d operands and a product has 3, as in '%s'", spec,
                        names.size(), kDefaultSpec));
  }
  std::map<std::string, v1::TensorRef> bound;
  for (absl::string_view binding : absl::StrSplit(bindings, ',')) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(binding, absl::MaxSplits('=', 1));
    const std::string operand(absl::StripAsciiWhitespace(pair.first));
    const absl::string_view tensor = absl::StripAsciiWhitespace(pair.second);
    if (std::find(names.begin(), names.end(), operand) == names.end() || tensor.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--bind \"%s\": \"%s\" binds no operand of the spec; write %s=X,%s=W,%s=Y", bindings,
          binding, names[0], names[1], names[2]));
    }
    AGMM_ASSIGN_OR_RETURN(const v1::TensorRef ref, ParseTensorRef(tensor));
    if (!bound.emplace(operand, ref).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--bind \"%s\" binds %s twice", bindings, operand));
    }
  }
  std::vector<v1::TensorRef> refs;
  for (const std::string& name : names) {
    const auto it = bound.find(name);
    if (it == bound.end()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--bind \"%s\" does not say which tensor is %s; add %s=NAME", bindings, name, name));
    }
    refs.push_back(it->second);
  }
  return refs;
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration() &&
      timeout <= absl::Hours(24)) {
    return timeout;
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("--timeout \"%s\" is no time from above 0 to 24h; write 60s or 5m", text));
}

void AddPlanOptions(CLI::App* verb, PlanOptions* options) {
  verb->add_option("--algorithm", options->algorithm, "auto, serial, ring, direct or peer")
      ->capture_default_str();
  verb->add_option("--chunks", options->chunks,
                   "Pieces of a shard that travel on their own (default: chosen)")
      ->check(CLI::Range(1, kMaxChunks));
}

}  // namespace agmm
