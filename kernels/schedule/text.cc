#include "kernels/schedule/text.h"

#include <algorithm>
#include <iterator>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

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
  std::string text = absl::StrCat("reduce ", BlockText(problem, op.c));
  for (size_t i = 0; i < op.from.size(); ++i)
    absl::StrAppend(&text, i == 0 ? "@" : ", ", PlaceText(problem, op.from[i]));
  if (op.out != Place{}) absl::StrAppend(&text, " -> ", PlaceText(problem, op.out));
  if (op.acc) absl::StrAppend(&text, "  acc ", PlaceText(problem, *op.acc));
  if (op.accumulate) text += "  accumulate";
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

std::string RangeText(const Range& range) { return absl::StrCat(range.begin, ":", range.end); }

// The dimensions in which a block is all of its operand.
struct Whole {
  bool rows = false, cols = false;
};
Whole WholeOf(const Problem& problem, const Block& block) {
  if (block.operand < 0 || block.operand >= static_cast<int>(problem.tensors.size())) return {};
  const Tensor& tensor = problem.tensors[block.operand];
  return {block.rows == Range{0, tensor.rows}, block.cols == Range{0, tensor.cols}};
}

// "A", "A[0:512]" for rows, "B[:, 0:64]" for columns.
std::string FactorText(const Problem& problem, const Block& block) {
  const std::string name = OperandText(problem, block.operand);
  const Whole whole = WholeOf(problem, block);
  if (whole.rows && whole.cols) return name;
  return absl::StrCat(name, "[", whole.rows ? ":" : RangeText(block.rows),
                      whole.cols ? "" : absl::StrCat(", ", RangeText(block.cols)), "]");
}

// "rank 3", by its number in the world.
std::string RankText(const Problem& problem, Rank rank) {
  const bool known = rank >= 0 && rank < problem.mesh.size();
  return absl::StrCat("rank ", known ? problem.mesh.ranks[rank] : rank);
}

std::string Phrase(const Problem& problem, const Transfer& op) {
  std::vector<std::string> others;
  for (const Place& place : op.to)
    if (place.rank != op.from.rank) others.push_back(RankText(problem, place.rank));
  const std::string part = PartText(problem, op.block);
  return others.empty() ? absl::StrCat("copy ", part)
                        : absl::StrFormat("send %s to %s", part, absl::StrJoin(others, ", "));
}

std::string Phrase(const Problem& problem, const Multiply& op) {
  return absl::StrFormat("multiply %s x %s", FactorText(problem, op.a), FactorText(problem, op.b));
}

std::string Phrase(const Problem& problem, const Reduce& op) {
  std::vector<std::string> ranks;
  for (const Place& from : op.from) ranks.push_back(RankText(problem, from.rank));
  return absl::StrFormat("add %s from %s", PartText(problem, op.c), absl::StrJoin(ranks, ", "));
}

std::string Phrase(const Problem&, const Join&) { return Join::kName; }

int64_t BytesOf(const Block& block, const Place& place) {
  return block.rows.size() * RowBytes(block, place);
}

Amount OpAmount(const Transfer& op) {
  return {"bytes", BytesOf(op.block, op.from) * static_cast<int64_t>(op.to.size())};
}
Amount OpAmount(const Multiply& op) {
  return {"flop", 2 * op.a.rows.size() * op.b.cols.size() * op.a.cols.size()};
}
Amount OpAmount(const Reduce& op) {
  int64_t bytes = 0;
  for (const Place& from : op.from) bytes += BytesOf(op.c, from);
  return {"bytes", bytes};
}
Amount OpAmount(const Join&) { return {"bytes", 0}; }

// The axes that cut a dimension, without those of one rank.
std::vector<int> Cutting(const Mesh& mesh, const std::vector<int>& axes) {
  std::vector<int> cutting;
  absl::c_copy_if(axes, std::back_inserter(cutting),
                  [&](int axis) { return mesh.axes[axis].size > 1; });
  return cutting;
}

bool IsPrefix(const std::vector<int>& first, const std::vector<int>& whole) {
  return first.size() <= whole.size() && std::equal(first.begin(), first.end(), whole.begin());
}

bool IsSubset(const std::vector<int>& part, const std::vector<int>& whole) {
  return absl::c_all_of(part, [&](int axis) { return absl::c_linear_search(whole, axis); });
}

}  // namespace

std::string CollectiveName(const Problem& problem) {
  const Mesh& mesh = problem.mesh;
  const Sharding &from = problem.tensors[TheCollective(problem).from].sharding,
                 &to = problem.tensors[TheCollective(problem).to].sharding;
  const std::vector<int> from_rows = Cutting(mesh, from.rows), from_cols = Cutting(mesh, from.cols),
                         to_rows = Cutting(mesh, to.rows), to_cols = Cutting(mesh, to.cols);
  const bool same = from_rows == to_rows && from_cols == to_cols;
  const size_t from_axes = from_rows.size() + from_cols.size(),
               to_axes = to_rows.size() + to_cols.size();
  const bool extends = IsPrefix(from_rows, to_rows) && IsPrefix(from_cols, to_cols);
  std::vector<int> summed = Cutting(mesh, from.open);
  std::erase_if(summed, [&](int axis) { return absl::c_linear_search(to.open, axis); });
  if (!summed.empty()) {
    if (same) return "all-reduce";
    std::vector<int> cut = to_rows;
    cut.insert(cut.end(), to_cols.begin(), to_cols.end());
    const bool scatters = extends && to_axes == from_axes + summed.size() && IsSubset(summed, cut);
    return scatters ? "reduce-scatter" : "reduce and reshard";
  }
  if (same) return "copy";
  if (extends) return "slice";
  if (to_axes < from_axes && IsSubset(to_rows, from_rows) && IsSubset(to_cols, from_cols))
    return "all-gather";
  std::vector<int> before = from_rows, after = to_rows;
  before.insert(before.end(), from_cols.begin(), from_cols.end());
  after.insert(after.end(), to_cols.begin(), to_cols.end());
  const bool moves = !IsSubset(from_rows, to_rows) || !IsSubset(from_cols, to_cols);
  return moves && to_axes == from_axes && IsSubset(before, after) ? "all-to-all" : "reshard";
}

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

std::string BlockName(const Problem& problem, const Block& block) {
  return absl::StrFormat("%s[%d:%d, %d:%d]", OperandText(problem, block.operand), block.rows.begin,
                         block.rows.end, block.cols.begin, block.cols.end);
}

std::string BufferName(const Problem& problem, Rank rank, Buffer buffer) {
  return absl::StrFormat("rank %d's %s", rank, OperandText(problem, buffer));
}

std::string PlacedName(const Problem& problem, const Block& block, const Place& place) {
  return absl::StrFormat("%s at byte %d of %s", BlockName(problem, block), place.offset_bytes,
                         BufferName(problem, place.rank, place.buffer));
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

std::string PartText(const Problem& problem, const Block& block) {
  std::string text = absl::StrCat("rows ", RangeText(block.rows));
  if (!WholeOf(problem, block).cols) absl::StrAppend(&text, ", columns ", RangeText(block.cols));
  return absl::StrCat(text, " of ", OperandText(problem, block.operand));
}

std::string Describe(const Problem& problem, const Step& step) {
  return std::visit([&](const auto& op) { return Phrase(problem, op); }, step.op);
}

Amount AmountOf(const Step& step) {
  return std::visit([](const auto& op) { return OpAmount(op); }, step.op);
}

}  // namespace agmm
