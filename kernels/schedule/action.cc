#include "kernels/schedule/action.h"

#include <variant>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

std::string Text(const Range& range) { return absl::StrCat(range.begin, ":", range.end); }

// "A", "A[0:512]" for rows, "B[:, 0:64]" for columns.
std::string Text(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  const bool rows = block.rows == Range{0, tensor.rows}, cols = block.cols == Range{0, tensor.cols};
  if (rows && cols) return tensor.name;
  return absl::StrCat(tensor.name, "[", rows ? ":" : Text(block.rows),
                      cols ? "" : absl::StrCat(", ", Text(block.cols)), "]");
}

// "rows 0:512 of A", with columns unless the block has all of them.
std::string Part(const Problem& problem, const Block& block) {
  const Tensor& tensor = problem.tensors[block.operand];
  const bool cols = block.cols == Range{0, tensor.cols};
  return absl::StrCat("rows ", Text(block.rows),
                      cols ? "" : absl::StrCat(", columns ", Text(block.cols)), " of ",
                      tensor.name);
}

int64_t BytesOf(const Block& block, const Place& place) {
  return block.rows.size() * RowBytes(block, place);
}

Action OpAction(const Problem& problem, const Transfer& op) {
  std::vector<std::string> others;
  for (const Place& place : op.to) {
    if (place.rank != op.from.rank)
      others.push_back(absl::StrCat("rank ", problem.mesh.ranks[place.rank]));
  }
  const std::string part = Part(problem, op.block);
  return {others.empty() ? absl::StrCat("copy ", part)
                         : absl::StrFormat("send %s to %s", part, absl::StrJoin(others, ", ")),
          Transfer::kName, "bytes",
          BytesOf(op.block, op.from) * static_cast<int64_t>(op.to.size())};
}

Action OpAction(const Problem& problem, const Multiply& op) {
  return {absl::StrFormat("multiply %s x %s", Text(problem, op.a), Text(problem, op.b)),
          Multiply::kName, "flop", 2 * op.a.rows.size() * op.b.cols.size() * op.a.cols.size()};
}

Action OpAction(const Problem& problem, const Reduce& op) {
  return {
      absl::StrFormat("add %s from rank %d", Part(problem, op.c), problem.mesh.ranks[op.from.rank]),
      Reduce::kName, "bytes", BytesOf(op.c, op.from)};
}

Action OpAction(const Problem&, const Join&) { return {"join", Join::kName, "bytes", 0}; }

}  // namespace

Action ActionOf(const Problem& problem, const Step& step) {
  return std::visit([&](const auto& op) { return OpAction(problem, op); }, step.op);
}

}  // namespace agmm
