#include "client/ctl/arguments.h"

#include <CLI/Validators.hpp>
#include <algorithm>
#include <map>
#include <set>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/ctl/bench_shapes.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// Takes digits only: no sign, no blanks.
template <typename T>
bool ParseCount(absl::string_view text, T* value) {
  return !text.empty() && absl::c_all_of(text, absl::ascii_isdigit) &&
         absl::SimpleAtoi(text, value);
}

// Returns the names before the brackets of `spec`.
std::vector<std::string> OperandNames(absl::string_view spec) {
  std::vector<std::string> names = absl::StrSplit(spec, '[');
  names.pop_back();
  for (std::string& name : names) name.erase(0, name.find_last_of(" *>") + 1);
  return names;
}

std::vector<const CLI::App*> VerbsOf(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// Finds the verbs below `app` that `word` may mean, with their full paths: "tensor list".
void FindNear(const CLI::App& app, const std::string& prefix, const std::string& word,
              std::vector<std::string>* near) {
  for (const CLI::App* verb : VerbsOf(app)) {
    const std::string& name = verb->get_name();
    if (EditDistance(word, name) <= (word.size() <= 3 ? 1 : 2) ||
        (word.size() >= 2 && absl::StartsWith(name, word)))
      near->push_back(absl::StrCat("\"", prefix, name, "\""));
    FindNear(*verb, absl::StrCat(prefix, name, " "), word, near);
  }
}

// Suggests the flags of `verb`, and of the commands above it, that `word` may stand for, or --help.
std::string FlagMistake(const CLI::App& verb, const std::string& path, const std::string& word) {
  std::vector<std::string> near;
  for (const CLI::App* app = &verb; app != nullptr; app = app->get_parent()) {
    for (const CLI::Option* option : app->get_options()) {
      for (const std::string& name : option->get_lnames()) {
        if (EditDistance(word, name) <= 2 || (word.size() >= 2 && absl::StartsWith(name, word)))
          near.push_back(absl::StrCat("\"--", name, "\""));
      }
    }
  }
  if (near.empty()) return absl::StrCat("see ", path, " --help");
  return absl::StrCat("did you mean ", absl::StrJoin(near, " or "), "?");
}

}  // namespace

absl::StatusOr<NamedTensor> ParseTensorRef(absl::string_view text) {
  if (text.empty()) return absl::InvalidArgumentError("a tensor's name is empty; write W or #12");
  if (text[0] != '#' || absl::StrContains(text, '@')) return ParseTensor(std::string(text));
  NamedTensor numbered;
  uint64_t id = 0;
  if (!ParseCount(text.substr(1), &id) || id == 0) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "\"%s\" is neither a tensor's id, such as #12, nor its handle in a program", text));
  }
  numbered.ref.set_tensor_id(id);
  return numbered;
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
          "--ranks \"%s\": \"%s\" is not a rank or a range of ranks; write 0-3 or 0,2,4", text,
          part));
    }
    for (int rank = first; rank <= last; ++rank) {
      if (!seen.insert(rank).second) {
        return absl::InvalidArgumentError(
            absl::StrFormat("--ranks \"%s\" lists rank %d twice", text, rank));
      }
      ranks.push_back(rank);
    }
  }
  return ranks;
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
                                 const std::vector<int>& others) {
  std::vector<int> list;
  if (!ranks.empty()) {
    AGMM_ASSIGN_OR_RETURN(list, ParseRanks(ranks));
  }
  const size_t size = ranks.empty() ? others.size() : list.size();
  AGMM_ASSIGN_OR_RETURN(Mesh made, ParseMesh(mesh.empty() ? absl::StrCat("x=", size) : mesh, list));
  // A mesh that is too large keeps its ranks, which the world then refuses.
  if (ranks.empty() && made.ranks.size() <= others.size())
    std::copy_n(others.begin(), made.ranks.size(), made.ranks.begin());
  return made;
}

absl::StatusOr<std::vector<NamedTensor>> ParseBindings(absl::string_view spec,
                                                       absl::string_view bindings) {
  const std::vector<std::string> names = OperandNames(spec);
  if (names.size() != (absl::StrContains(spec, '*') ? 3 : 2)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "spec \"%s\" has %s, but a product has 3, as in '%s', and a collective 2, as in '%s'", spec,
        Counted(names.size(), "operand"), kDefaultSpec, kDefaultCollective));
  }
  std::map<std::string, NamedTensor> bound;
  for (absl::string_view binding : absl::StrSplit(bindings, ',')) {
    const std::pair<std::string, std::string> pair =
        absl::StrSplit(binding, absl::MaxSplits('=', 1));
    const std::string operand(absl::StripAsciiWhitespace(pair.first));
    const absl::string_view tensor = absl::StripAsciiWhitespace(pair.second);
    if (!absl::c_linear_search(names, operand) || tensor.empty()) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--bind \"%s\": \"%s\" does not bind an operand of the spec; write %s=TENSOR", bindings,
          binding, absl::StrJoin(names, "=TENSOR,")));
    }
    AGMM_ASSIGN_OR_RETURN(const NamedTensor named, ParseTensorRef(tensor));
    if (!bound.emplace(operand, named).second) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--bind \"%s\" binds %s twice", bindings, operand));
    }
  }
  std::vector<NamedTensor> tensors;
  for (const std::string& name : names) {
    const auto it = bound.find(name);
    if (it == bound.end()) {
      return absl::InvalidArgumentError(
          absl::StrFormat("--bind \"%s\" has no tensor for %s; add %s=NAME", bindings, name, name));
    }
    tensors.push_back(it->second);
  }
  return tensors;
}

absl::StatusOr<absl::Duration> ParseTimeout(absl::string_view text, absl::string_view flag) {
  absl::Duration timeout;
  if (absl::ParseDuration(text, &timeout) && timeout > absl::ZeroDuration() &&
      timeout <= absl::Hours(24)) {
    return timeout;
  }
  return absl::InvalidArgumentError(absl::StrFormat(
      "%s \"%s\" is not a time above 0 and up to 24h; write 60s or 5m", flag, text));
}

void AddPlanOptions(CLI::App* verb, PlanOptions* options) {
  verb->add_option("--algorithm", options->algorithm,
                   "How shards travel: auto, serial (unfused), ring, bidirectional_ring, "
                   "split_ring, direct, hierarchical, hierarchical_peer, torus or peer; plan "
                   "--help explains each")
      ->capture_default_str();
  verb->add_option(
          "--chunks", options->chunks,
          "Number of pieces in which each shard is sent and multiplied, 1 to 256 (default: chosen "
          "by the planner)")
      ->check(CLI::Range(1, kMaxChunks));
  verb->add_option("--k-chunks", options->k_chunks,
                   "Number of pieces along K, 1 to 256 (default: chosen by the planner)")
      ->check(CLI::Range(1, kMaxChunks));
  verb->add_option("--split", options->split,
                   "Mesh axes that cut M, N and K of the product, such as M=x,N=y, or none "
                   "(default: chosen by predicted time; plan --explain compares)");
  verb->add_option("--workspace-shards", options->workspace_shards,
                   "Number of shards, gathered or of partial sums, that a rank has room for at a "
                   "time, 2 to 256; some routes need room for more (default: all)")
      ->check(CLI::Range(2, kMaxChunks));
  verb->add_option_function<std::string>(
          "--partials",
          [options](const std::string& dtype) {
            const absl::StatusOr<DType> parsed = ParseDType(dtype);
            if (parsed.ok()) options->partials = *parsed;
          },
          "Type in which terms of a sum travel: f32, bf16 or f16; a narrower one rounds them each "
          "time that they leave a rank (default: f32)")
      ->check(CLI::IsMember({"f32", "bf16", "f16"}));
  verb->add_option_function<std::string>(
          "--send", [options](const std::string& how) { options->carried = how == "carried"; },
          "How shards are sent: copied, or carried by the multiply that reads the same tiles "
          "(default: copied)")
      ->check(CLI::IsMember({"copied", "carried"}));
}

void AddNoTuning(CLI::App* verb, bool* no_tuning) {
  verb->add_flag("--no-tuning", *no_tuning,
                 "Choose by prediction alone, without the plans that tune has stored");
}

void AddScale(CLI::App* verb, int* scale) {
  verb->add_option(
          "--scale", *scale,
          "Divide each dimension of the suite by this (default: 8 with CPU devices, else 1)")
      ->check(CLI::Range(1, kMaxScale));
}

int EditDistance(const std::string& a, const std::string& b) {
  std::vector<int> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (size_t i = 1; i <= a.size(); ++i) {
    int diagonal = row[0];
    row[0] = static_cast<int>(i);
    for (size_t j = 1; j <= b.size(); ++j) {
      const int replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({replaced, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

std::string MistakeOf(const CLI::App& app, const std::string& error) {
  const CLI::App* chosen = &app;
  std::string path = app.get_name();
  for (; !chosen->get_subcommands().empty(); absl::StrAppend(&path, " ", chosen->get_name()))
    chosen = chosen->get_subcommands().front();
  const std::string verbs =
      absl::StrJoin(VerbsOf(*chosen), ", ",
                    [](std::string* out, const CLI::App* verb) { out->append(verb->get_name()); });
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  const auto flag = absl::c_find_if(left, [](const std::string& text) {
    return absl::StartsWith(text, "--") && text.size() > 2;
  });
  if (flag != left.end()) {
    const std::string name = flag->substr(2, flag->find('=') - 2);
    return absl::StrFormat("\"%s\" has no flag --%s; %s", path, name,
                           FlagMistake(*chosen, path, name));
  }
  if (verbs.empty()) return absl::StrCat(error, "; see ", path, " --help");  // the verb is complete
  const auto word = absl::c_find_if(
      left, [](const std::string& text) { return !text.empty() && text[0] != '-'; });
  if (word == left.end())
    return absl::StrFormat("a command is missing after \"%s\"; use one of %s", path, verbs);
  std::vector<std::string> near;
  FindNear(*chosen, "", *word, &near);
  const std::string unknown =
      chosen == &app ? absl::StrFormat("unknown command \"%s\"", *word)
                     : absl::StrFormat("unknown command \"%s\" of \"%s\"", *word, path);
  if (near.empty()) return absl::StrCat(unknown, "; use one of ", verbs);
  return absl::StrCat(unknown, "; did you mean ", absl::StrJoin(near, " or "), "?");
}

}  // namespace agmm
