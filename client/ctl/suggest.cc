#include "client/ctl/suggest.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

// A verb that does something, with the words that lead to it: "tensor list".
struct Verb {
  std::string path, last;
};

void Collect(const CLI::App& app, const std::string& prefix, std::vector<Verb>* verbs) {
  for (const CLI::App* child : app.get_subcommands([](const CLI::App*) { return true; })) {
    const std::string path = absl::StrCat(prefix, prefix.empty() ? "" : " ", child->get_name());
    verbs->push_back({path, child->get_name()});
    Collect(*child, path, verbs);
  }
}

bool IsNear(const std::string& word, const std::string& verb) {
  const int allowed = word.size() <= 3 ? 1 : 2;
  return EditDistance(word, verb) <= allowed || (word.size() >= 2 && absl::StartsWith(verb, word));
}

}  // namespace

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

std::string VerbMistake(const CLI::App& app) {
  const CLI::App* chosen = &app;
  std::string path = app.get_name();
  while (!chosen->get_subcommands().empty()) {
    chosen = chosen->get_subcommands().front();
    absl::StrAppend(&path, " ", chosen->get_name());
  }
  std::vector<Verb> verbs;
  Collect(*chosen, "", &verbs);
  if (verbs.empty()) return "";  // a verb that does something was there
  std::vector<std::string> own;
  for (const CLI::App* child : chosen->get_subcommands([](const CLI::App*) { return true; }))
    own.push_back(child->get_name());
  const std::vector<std::string> left = app.remaining(/*recurse=*/true);
  const auto word = std::find_if(left.begin(), left.end(), [](const std::string& text) {
    return !text.empty() && text[0] != '-';
  });
  if (word == left.end())
    return absl::StrFormat("a verb is missing behind %s: %s", path, absl::StrJoin(own, ", "));
  std::vector<std::string> near;
  for (const Verb& verb : verbs) {
    if (IsNear(*word, verb.last)) near.push_back(absl::StrCat("\"", verb.path, "\""));
  }
  return absl::StrFormat("\"%s\" is no verb of %s; %s", *word, path,
                         near.empty()
                             ? absl::StrCat("it has ", absl::StrJoin(own, ", "))
                             : absl::StrCat("did you mean ", absl::StrJoin(near, " or "), "?"));
}

}  // namespace agmm
