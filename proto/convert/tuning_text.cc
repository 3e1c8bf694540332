#include "proto/convert/tuning_text.h"

#include <google/protobuf/io/tokenizer.h>
#include <google/protobuf/io/zero_copy_stream_impl_lite.h>
#include <google/protobuf/text_format.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"
#include "proto/convert/shipped_text.h"
#include "proto/convert/text_message.h"
#include "proto/convert/tuning_messages.h"

namespace agmm {
namespace {

using google::protobuf::TextFormat;
using google::protobuf::io::Tokenizer;

constexpr char kField[] = "plans";
constexpr int kTabColumns = 8;  // of protobuf's tokenizer

// A place in the text; line and column count from 0.
struct Place {
  int line = 0, column = 0;
  size_t byte = 0;
};

// A part of the text that begins with `plans`, or that cannot be one.
struct Part {
  Place begin, body;  // of an entry's body, behind its brace
  size_t body_end = 0, end = 0;
  std::string wrong;  // empty: the body is whole
};

class NoErrors : public google::protobuf::io::ErrorCollector {
 public:
  void AddError(int, google::protobuf::io::ColumnNumber, const std::string&) override {}
};

// Finds the parts of a table's text. The parser of messages ends at the first fault.
class Splitter {
 public:
  explicit Splitter(absl::string_view text)
      : text_(text),
        stream_(text.data(), static_cast<int>(text.size())),
        tokenizer_(&stream_, &no_errors_) {
    tokenizer_.set_comment_style(Tokenizer::SH_COMMENT_STYLE);
    lines_.push_back(0);
    for (size_t at = 0; at < text.size(); ++at)
      if (text[at] == '\n') lines_.push_back(at + 1);
  }

  std::vector<Part> Run() {
    while (tokenizer_.Next()) Take(tokenizer_.current());
    if (state_ != State::kOutside) EndTorn(text_.size());
    return std::move(parts_);
  }

 private:
  enum class State {
    kOutside,  // of all parts
    kBegun,    // after `plans`
    kBody,
    kStray,  // in other text
  };

  // Goes on from the token before it, because a line may have all of the text.
  Place PlaceOf(const Tokenizer::Token& token) {
    if (token.line != last_.line) last_ = {token.line, 0, lines_[token.line]};
    for (; last_.column < token.column; ++last_.byte)
      last_.column += text_[last_.byte] == '\t' ? kTabColumns - last_.column % kTabColumns : 1;
    return last_;
  }

  void Take(const Tokenizer::Token& token) {
    const Place at = PlaceOf(token);
    if (token.type == Tokenizer::TYPE_IDENTIFIER && token.text == kField) {
      if (state_ != State::kOutside) EndTorn(at.byte);
      return Begin(State::kBegun, at);
    }
    const std::string& symbol = token.text;
    switch (state_) {
      case State::kOutside:
        if (symbol != "," && symbol != ";") Begin(State::kStray, at);
        return;
      case State::kStray: return;
      case State::kBegun:
        if (symbol == ":") return;
        if (symbol != "{") {
          state_ = State::kStray;
          return;
        }
        state_ = State::kBody;
        depth_ = 1;
        parts_.back().body = {at.line, at.column + 1, at.byte + 1};
        return;
      case State::kBody:
        depth_ += symbol == "{" ? 1 : symbol == "}" ? -1 : 0;
        if (depth_ > 0) return;
        parts_.back().body_end = at.byte;
        parts_.back().end = at.byte + 1;
        state_ = State::kOutside;
        return;
    }
  }

  void Begin(State state, const Place& at) {
    state_ = state;
    parts_.emplace_back().begin = at;
  }
  void EndTorn(size_t end) {
    parts_.back().wrong =
        state_ == State::kBody
            ? "this entry has no closing brace; add it, or remove the entry"
            : "this is not an entry; remove it, or write one such as plans { ... }";
    parts_.back().end = end;
    state_ = State::kOutside;
  }

  const absl::string_view text_;
  google::protobuf::io::ArrayInputStream stream_;
  NoErrors no_errors_;
  Tokenizer tokenizer_;
  std::vector<size_t> lines_;  // their first bytes
  Place last_;                 // of the last token
  std::vector<Part> parts_;
  State state_ = State::kOutside;
  int depth_ = 0;  // of braces
};

absl::StatusOr<TunedPlan> ReadPart(absl::string_view text, const std::string& file,
                                   const Part& part) {
  if (!part.wrong.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat("%s:%d:%d: %s", file, part.begin.line + 1,
                                                      part.begin.column + 1, part.wrong));
  }
  // Spaces keep the columns to which tabs of the first line lead.
  const int spaces = part.body.column % kTabColumns, column = part.body.column - spaces;
  const std::string body = absl::StrCat(
      std::string(spaces, ' '), text.substr(part.body.byte, part.body_end - part.body.byte));
  v1::TunedPlan message;
  TextFormat::ParseInfoTree places;
  AGMM_RETURN_IF_ERROR(ParseTextMessage(body, file, &message, &places, part.body.line, column));
  absl::StatusOr<TunedPlan> plan = FromProto(message);
  absl::Status wrong = plan.status();
  if (plan.ok() && plan->key.hardware.empty())
    wrong = absl::InvalidArgumentError("hardware is missing; give that of the measurement");
  if (wrong.ok()) return plan;
  wrong = AtField(wrong, file, message, places, part.body.line, column);
  // A field that is missing has no place.
  if (!absl::StartsWith(wrong.message(), absl::StrCat(file, ": "))) return wrong;
  return absl::InvalidArgumentError(absl::StrFormat("%s:%d:%d%s", file, part.begin.line + 1,
                                                    part.begin.column + 1,
                                                    wrong.message().substr(file.size())));
}

bool Replaces(const TunedPlan& plan, const TunedPlan& old) {
  return HaveOneShape(plan.key, old.key) && DifferInShapeAlone(old.key, plan.key);
}

}  // namespace

TuningText ReadTuning(absl::string_view text, const std::string& file) {
  TuningText read;
  for (const Part& part : Splitter(text).Run()) {
    if (read.entries.size() == kMaxTunedPlans) {
      read.full = true;
      read.skipped.push_back(absl::StrFormat(
          "%s:%d:%d: a table has at most %d plans; this one and all behind it are left out, so "
          "remove some",
          file, part.begin.line + 1, part.begin.column + 1, kMaxTunedPlans));
      break;
    }
    absl::StatusOr<TunedPlan> plan = ReadPart(text, file, part);
    if (plan.ok()) {
      read.entries.push_back({*std::move(plan), part.begin.byte, part.end});
    } else if (read.skipped.size() < kMaxSkipped) {
      // A message that repeats bytes of the text can be sent all the same.
      read.skipped.push_back(Printable(plan.status().message()));
    }
  }
  return read;
}

absl::StatusOr<std::string> AddTuning(absl::string_view text, const std::string& file,
                                      const std::vector<TunedPlan>& plans) {
  const TuningText old = ReadTuning(text, file);
  v1::TuningTable added;
  for (size_t i = 0; i < plans.size(); ++i) {
    const auto replaces = [&](const TunedPlan& later) { return Replaces(later, plans[i]); };
    if (std::none_of(plans.begin() + static_cast<int64_t>(i) + 1, plans.end(), replaces))
      *added.add_plans() = ToProto(plans[i]);
  }
  std::string result;
  size_t from = 0;
  int64_t kept = 0;
  for (const TuningText::Entry& entry : old.entries) {
    if (absl::c_none_of(plans, [&](const TunedPlan& plan) { return Replaces(plan, entry.plan); })) {
      ++kept;
      continue;
    }
    absl::StrAppend(&result, text.substr(from, entry.begin - from));
    from = entry.end;
    if (from < text.size() && text[from] == '\n') ++from;
  }
  if (old.full || kept + added.plans_size() > kMaxTunedPlans) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%s would have more than %d plans, with %d that are new; remove some of its entries", file,
        kMaxTunedPlans, added.plans_size()));
  }
  absl::StrAppend(&result, text.substr(from));
  if (!result.empty() && result.back() != '\n') result += '\n';
  std::string texts;
  TextFormat::PrintToString(added, &texts);
  return absl::StrCat(result, texts);
}

const TuningText& ShippedTuning() {
  static const TuningText* const all = [] {
    auto* const read = new TuningText();
    for (const ShippedText& table : TuningTexts()) {
      TuningText one = ReadTuning(table.text, absl::StrCat(table.name, ".textproto"));
      absl::c_move(one.entries, std::back_inserter(read->entries));
      absl::c_move(one.skipped, std::back_inserter(read->skipped));
    }
    return read;
  }();
  return *all;
}

}  // namespace agmm
