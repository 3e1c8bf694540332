#include "kernels/schedule/text.h"

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

void AppendRange(std::string* out, const Range& range) {
  absl::StrAppend(out, range.begin, ":", range.end);
}

std::string BlockText(const Problem& problem, const Block& block) {
  return absl::StrFormat("%s[%d:%d,%d:%d]", OperandText(problem, block.operand), block.rows.begin,
                         block.rows.end, block.cols.begin, block.cols.end);
}

std::string PlaceText(const Problem& problem, const Place& place) {
  return absl::StrFormat("%d:%s+%d/%d:%s", place.rank, OperandText(problem, place.buffer),
                         place.offset_bytes, place.pitch_bytes, Name(place.dtype));
}

// "A[0:4,0:8]@1:A+0/128:f32", or only the block if the place has the default value.
std::string BlockAt(const Problem& problem, const Block& block, const Place& place) {
  if (place == Place{}) return BlockText(problem, block);
  return absl::StrCat(BlockText(problem, block), "@", PlaceText(problem, place));
}

std::string OpText(const Problem& problem, const Transfer& op) {
  std::string text = absl::StrCat("transfer ", BlockAt(problem, op.block, op.from));
  for (size_t i = 0; i < op.to.size(); ++i)
    absl::StrAppend(&text, i == 0 ? " -> " : ", ", PlaceText(problem, op.to[i]));
  if (op.carrier != -1) absl::StrAppend(&text, "  carrier ", op.carrier);
  return text;
}

std::string OpText(const Problem& problem, const Multiply& op) {
  std::string text =
      absl::StrCat("multiply ", BlockAt(problem, op.a, op.a_place), " * ",
                   BlockAt(problem, op.b, op.b_place), " -> ", BlockAt(problem, op.c, op.out));
  if (op.acc) absl::StrAppend(&text, "  acc ", PlaceText(problem, *op.acc));
  if (op.accumulate) text += "  accumulate";
  if (op.finish) text += "  finish";
  return text;
}

std::string OpText(const Problem& problem, const Reduce& op) {
  std::string text = absl::StrCat("reduce ", BlockAt(problem, op.c, op.from));
  if (op.into != Place{}) absl::StrAppend(&text, " into ", PlaceText(problem, op.into));
  if (op.out != Place{}) absl::StrAppend(&text, " -> ", PlaceText(problem, op.out));
  if (op.finish) text += "  finish";
  return text;
}

std::string OpText(const Problem&, const Join&) { return "join"; }

void AppendSlots(std::string* out, const Step& step) {
  if (!step.waits.empty()) absl::StrAppend(out, "  wait");
  for (const Wait& wait : step.waits) {
    absl::StrAppend(out, " ", wait.slot.rank, ":", wait.slot.index);
    if (wait.lag != 0) absl::StrAppend(out, "-", wait.lag);
  }
  if (!step.signals.empty()) absl::StrAppend(out, "  signal");
  for (const Slot& slot : step.signals) absl::StrAppend(out, " ", slot.rank, ":", slot.index);
}

// Returns true if a name needs no quotes.
bool IsPlain(absl::string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return absl::ascii_isalnum(c) || c == '_' || c == '-';
  });
}

// "rows 0:4", with the columns unless the block has all of them.
std::string Part(const Problem& problem, const Block& block) {
  std::string text = "rows ";
  AppendRange(&text, block.rows);
  const bool known = block.operand >= 0 && block.operand < static_cast<int>(problem.tensors.size());
  if (!known || block.cols != Range{0, problem.tensors[block.operand].cols}) {
    text += " columns ";
    AppendRange(&text, block.cols);
  }
  return text;
}

std::string Phrase(const Problem& problem, const Transfer& op) {
  return absl::StrFormat("%s of %s from rank %d", Part(problem, op.block),
                         OperandText(problem, op.block.operand), op.from.rank);
}

std::string Phrase(const Problem& problem, const Multiply& op) {
  return absl::StrFormat("%s %s %s %s %s x %s", OperandText(problem, op.c.operand),
                         Part(problem, op.c), op.accumulate ? "+=" : "=",
                         OperandText(problem, op.a.operand), Part(problem, op.a),
                         OperandText(problem, op.b.operand));
}

std::string Phrase(const Problem& problem, const Reduce& op) {
  return absl::StrFormat("%s %s += the partial sum at rank %d", OperandText(problem, op.c.operand),
                         Part(problem, op.c), op.from.rank);
}

std::string Phrase(const Problem&, const Join&) { return "a join"; }

}  // namespace

std::string OperandText(const Problem& problem, int operand) {
  if (operand == kWorkspace) return kWorkspaceText;
  const auto& tensors = problem.tensors;
  if (operand >= 0 && operand < static_cast<int>(tensors.size())) {
    const std::string& name = tensors[operand].name;
    const auto same = std::count_if(tensors.begin(), tensors.end(),
                                    [&](const Tensor& tensor) { return tensor.name == name; });
    const bool word = !name.empty() && absl::ascii_isalpha(static_cast<unsigned char>(name[0])) &&
                      std::all_of(name.begin(), name.end(),
                                  [](unsigned char c) { return absl::ascii_isalnum(c); });
    if (same == 1 && word && name != kWorkspaceText) return name;
  }
  return absl::StrCat("#", operand);
}

std::string Print(const Problem& problem, const Schedule& schedule) {
  std::string text = absl::StrFormat(
      "agmm schedule 1 %s ranks=%d workspace=%d\n",
      IsPlain(schedule.algorithm) ? schedule.algorithm
                                  : absl::StrCat("\"", absl::CHexEscape(schedule.algorithm), "\""),
      schedule.ranks.size(), schedule.workspace_bytes);
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    absl::StrAppend(&text, "rank ", rank, "\n");
    for (size_t index = 0; index < schedule.ranks[rank].size(); ++index) {
      const Step& step = schedule.ranks[rank][index];
      absl::StrAppend(&text, "  ", index, " lane ", step.lane, " ",
                      std::visit([&](const auto& op) { return OpText(problem, op); }, step.op));
      AppendSlots(&text, step);
      text += '\n';
    }
  }
  return text;
}

std::string Describe(const Problem& problem, const Step& step) {
  return std::visit([&](const auto& op) { return Phrase(problem, op); }, step.op);
}

}  // namespace agmm
