#include "tests/schedule/text_parse.h"

#include <limits>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

// A step takes some 400 bytes in memory and may take 15 of text; the bounds keep hostile text from
// taking much memory. What planners make takes over 100 bytes of text a step.
constexpr size_t kMaxTextBytes = size_t{16} << 20;
constexpr size_t kMaxSteps = size_t{1} << 18;

// Reads one line.
class Line {
 public:
  Line(const Problem& problem, absl::string_view text, size_t number)
      : problem_(problem), text_(text), number_(number) {}

  absl::Status Error(absl::string_view what) const { return ErrorAt(at_, what); }

  bool AtEnd() {
    SkipSpaces();
    return at_ == text_.size();
  }
  // Consumes `symbol` if it is next; a word only as a whole.
  bool Consume(absl::string_view symbol) {
    SkipSpaces();
    if (text_.substr(at_, symbol.size()) != symbol) return false;
    const size_t end = at_ + symbol.size();
    if (absl::ascii_isalpha(symbol.back()) && end < text_.size() && absl::ascii_isalnum(text_[end]))
      return false;
    at_ = end;
    return true;
  }
  absl::Status Expect(absl::string_view symbol) {
    if (Consume(symbol)) return absl::OkStatus();
    return Error(absl::StrFormat("expected \"%s\"", symbol));
  }

  template <typename Int>
  absl::Status Number(Int* value) {
    SkipSpaces();
    size_t end = at_;
    if (end < text_.size() && text_[end] == '-') ++end;
    while (end < text_.size() && absl::ascii_isdigit(text_[end])) ++end;
    if (!absl::SimpleAtoi(text_.substr(at_, end - at_), value)) {
      return Error(absl::StrFormat("expected a whole number of at most %d",
                                   std::numeric_limits<Int>::max()));
    }
    at_ = end;
    return absl::OkStatus();
  }

  absl::Status Algorithm(std::string* value) {
    SkipSpaces();
    size_t end = at_;
    if (!Consume("\"")) {
      while (end < text_.size() && text_[end] != ' ') ++end;
      if (end == at_) return Error("expected the name of the algorithm");
      *value = std::string(text_.substr(at_, end - at_));
      at_ = end;
      return absl::OkStatus();
    }
    end = at_;
    while (end < text_.size() && text_[end] != '"') end += text_[end] == '\\' ? 2 : 1;
    if (end >= text_.size() || !absl::CUnescape(text_.substr(at_, end - at_), value))
      return Error("expected the rest of a quoted name");
    at_ = end + 1;
    return absl::OkStatus();
  }

  absl::Status ReadOperand(int* value) {
    if (Consume("#")) return Number(value);
    const size_t begin = at_;
    const absl::string_view name = Word();
    if (name == kWorkspaceText) {
      *value = kWorkspace;
      return absl::OkStatus();
    }
    for (size_t i = 0; i < problem_.tensors.size(); ++i) {
      if (name != problem_.tensors[i].name || OperandText(problem_, i) != name) continue;
      *value = static_cast<int>(i);
      return absl::OkStatus();
    }
    return ErrorAt(begin, absl::StrFormat("\"%s\" is not an operand of the problem", name));
  }

  absl::Status ReadRange(Range* range) {
    AGMM_RETURN_IF_ERROR(Number(&range->begin));
    AGMM_RETURN_IF_ERROR(Expect(":"));
    return Number(&range->end);
  }

  absl::Status ReadBlock(Block* block) {
    AGMM_RETURN_IF_ERROR(ReadOperand(&block->operand));
    AGMM_RETURN_IF_ERROR(Expect("["));
    AGMM_RETURN_IF_ERROR(ReadRange(&block->rows));
    AGMM_RETURN_IF_ERROR(Expect(","));
    AGMM_RETURN_IF_ERROR(ReadRange(&block->cols));
    return Expect("]");
  }

  absl::Status ReadPlace(Place* place) {
    AGMM_RETURN_IF_ERROR(Number(&place->rank));
    AGMM_RETURN_IF_ERROR(Expect(":"));
    AGMM_RETURN_IF_ERROR(ReadOperand(&place->buffer));
    AGMM_RETURN_IF_ERROR(Expect("+"));
    AGMM_RETURN_IF_ERROR(Number(&place->offset_bytes));
    AGMM_RETURN_IF_ERROR(Expect("/"));
    AGMM_RETURN_IF_ERROR(Number(&place->pitch_bytes));
    AGMM_RETURN_IF_ERROR(Expect(":"));
    SkipSpaces();
    const size_t begin = at_;
    const absl::StatusOr<DType> dtype = ParseDType(Word());
    if (!dtype.ok()) return ErrorAt(begin, dtype.status().message());
    place->dtype = *dtype;
    return absl::OkStatus();
  }

  // A block, and a place behind "@" where one is given.
  absl::Status ReadBlockAt(Block* block, Place* place) {
    AGMM_RETURN_IF_ERROR(ReadBlock(block));
    return Consume("@") ? ReadPlace(place) : absl::OkStatus();
  }

  absl::Status ReadSlot(Slot* slot) {
    AGMM_RETURN_IF_ERROR(Number(&slot->rank));
    AGMM_RETURN_IF_ERROR(Expect(":"));
    return Number(&slot->index);
  }

  // A lag stands right behind its slot; a "-" further off begins the next slot's rank.
  absl::Status ReadWait(Wait* wait) {
    AGMM_RETURN_IF_ERROR(ReadSlot(&wait->slot));
    if (at_ == text_.size() || text_[at_] != '-') return absl::OkStatus();
    ++at_;
    return Number(&wait->lag);
  }

  // True where a number is next.
  bool AtNumber() {
    SkipSpaces();
    return at_ < text_.size() && (text_[at_] == '-' || absl::ascii_isdigit(text_[at_]));
  }

 private:
  absl::Status ErrorAt(size_t at, absl::string_view what) const {
    return absl::InvalidArgumentError(
        absl::StrFormat("schedule line %d column %d: %s", number_, at + 1, what));
  }
  void SkipSpaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  absl::string_view Word() {
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isalnum(text_[at_])) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  const Problem& problem_;
  absl::string_view text_;
  size_t number_, at_ = 0;
};

absl::Status ReadOp(Line& line, Transfer* op) {
  AGMM_RETURN_IF_ERROR(line.ReadBlockAt(&op->block, &op->from));
  if (line.Consume("->")) {
    do {
      AGMM_RETURN_IF_ERROR(line.ReadPlace(&op->to.emplace_back()));
    } while (line.Consume(","));
  }
  return line.Consume("carrier") ? line.Number(&op->carrier) : absl::OkStatus();
}

absl::Status ReadOp(Line& line, Multiply* op) {
  AGMM_RETURN_IF_ERROR(line.ReadBlockAt(&op->a, &op->a_place));
  AGMM_RETURN_IF_ERROR(line.Expect("*"));
  AGMM_RETURN_IF_ERROR(line.ReadBlockAt(&op->b, &op->b_place));
  AGMM_RETURN_IF_ERROR(line.Expect("->"));
  AGMM_RETURN_IF_ERROR(line.ReadBlockAt(&op->c, &op->out));
  if (line.Consume("acc")) AGMM_RETURN_IF_ERROR(line.ReadPlace(&op->acc.emplace()));
  op->accumulate = line.Consume("accumulate");
  op->finish = line.Consume("finish");
  return absl::OkStatus();
}

absl::Status ReadOp(Line& line, Reduce* op) {
  AGMM_RETURN_IF_ERROR(line.ReadBlock(&op->c));
  if (line.Consume("@")) {
    do {
      AGMM_RETURN_IF_ERROR(line.ReadPlace(&op->from.emplace_back()));
    } while (line.Consume(","));
  }
  if (line.Consume("->")) AGMM_RETURN_IF_ERROR(line.ReadPlace(&op->out));
  if (line.Consume("acc")) AGMM_RETURN_IF_ERROR(line.ReadPlace(&op->acc.emplace()));
  op->accumulate = line.Consume("accumulate");
  op->finish = line.Consume("finish");
  return absl::OkStatus();
}

absl::Status ReadStep(Line& line, size_t expected_index, Step* step) {
  size_t index = 0;
  AGMM_RETURN_IF_ERROR(line.Number(&index));
  if (index != expected_index)
    return line.Error(
        absl::StrFormat("this is step %d; the next one is %d", index, expected_index));
  AGMM_RETURN_IF_ERROR(line.Expect("lane"));
  AGMM_RETURN_IF_ERROR(line.Number(&step->lane));
  if (line.Consume("transfer")) {
    AGMM_RETURN_IF_ERROR(ReadOp(line, &step->op.emplace<Transfer>()));
  } else if (line.Consume("multiply")) {
    AGMM_RETURN_IF_ERROR(ReadOp(line, &step->op.emplace<Multiply>()));
  } else if (line.Consume("reduce")) {
    AGMM_RETURN_IF_ERROR(ReadOp(line, &step->op.emplace<Reduce>()));
  } else if (!line.Consume("join")) {
    return line.Error("expected transfer, multiply, reduce or join");
  }
  if (line.Consume("wait")) {
    do {
      AGMM_RETURN_IF_ERROR(line.ReadWait(&step->waits.emplace_back()));
    } while (line.AtNumber());
  }
  if (line.Consume("signal")) {
    do {
      AGMM_RETURN_IF_ERROR(line.ReadSlot(&step->signals.emplace_back()));
    } while (line.AtNumber());
  }
  return absl::OkStatus();
}

absl::Status ReadHeader(Line& line, size_t* ranks, Schedule* schedule) {
  for (absl::string_view word : {"agmm", "schedule"}) AGMM_RETURN_IF_ERROR(line.Expect(word));
  int version = 0;
  AGMM_RETURN_IF_ERROR(line.Number(&version));
  if (version != 1)
    return line.Error(absl::StrFormat("format %d is not known; this release reads 1", version));
  AGMM_RETURN_IF_ERROR(line.Algorithm(&schedule->algorithm));
  AGMM_RETURN_IF_ERROR(line.Expect("ranks"));
  AGMM_RETURN_IF_ERROR(line.Expect("="));
  AGMM_RETURN_IF_ERROR(line.Number(ranks));
  if (*ranks > kMaxRanks) {
    return line.Error(absl::StrFormat("%d ranks; a schedule has at most %d", *ranks, kMaxRanks));
  }
  AGMM_RETURN_IF_ERROR(line.Expect("workspace"));
  AGMM_RETURN_IF_ERROR(line.Expect("="));
  return line.Number(&schedule->workspace_bytes);
}

}  // namespace

absl::StatusOr<Schedule> Parse(const Problem& problem, absl::string_view text) {
  if (text.size() > kMaxTextBytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the schedule has %d bytes; at most %d are read", text.size(), kMaxTextBytes));
  }
  Schedule schedule;
  size_t number = 0, ranks = 0, steps = 0;
  bool begun = false;
  for (absl::string_view content : absl::StrSplit(text, '\n')) {
    Line line(problem, content, ++number);
    if (line.AtEnd() || content[0] == '#') continue;
    if (!begun) {
      AGMM_RETURN_IF_ERROR(ReadHeader(line, &ranks, &schedule));
      begun = true;
    } else if (line.Consume("rank")) {
      size_t rank = 0;
      AGMM_RETURN_IF_ERROR(line.Number(&rank));
      if (rank != schedule.ranks.size() || rank >= ranks) {
        return line.Error(absl::StrFormat("this is rank %d; %d of %d ranks were read", rank,
                                          schedule.ranks.size(), ranks));
      }
      schedule.ranks.emplace_back();
    } else {
      if (schedule.ranks.empty()) return line.Error("expected \"rank 0\"");
      if (++steps > kMaxSteps) return line.Error(absl::StrFormat("over %d steps", kMaxSteps));
      auto& list = schedule.ranks.back();
      list.emplace_back();
      AGMM_RETURN_IF_ERROR(ReadStep(line, list.size() - 1, &list.back()));
    }
    if (!line.AtEnd()) return line.Error("the rest of the line is left over");
  }
  if (!begun) return absl::InvalidArgumentError("the schedule is empty");
  if (schedule.ranks.size() != ranks) {
    return absl::InvalidArgumentError(
        absl::StrFormat("schedule line %d column 1: the text ends after %d of %d ranks", number,
                        schedule.ranks.size(), ranks));
  }
  return schedule;
}

}  // namespace agmm
