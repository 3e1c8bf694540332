#include "kernels/schedule/problem.h"

#include <algorithm>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

// "M_xy", or "M" without axes.
std::string Subscripted(const Mesh& mesh, const std::string& name, const std::vector<int>& axes) {
  return axes.empty() ? name : absl::StrCat(name, "_", AxesText(mesh, axes));
}

// The operands of an operation, in the order of the notation.
std::vector<Operand> OperandsOf(const Operation& operation) {
  if (const auto* product = std::get_if<Product>(&operation))
    return {product->a, product->b, product->c};
  const auto& collective = std::get<Collective>(operation);
  return {collective.from, collective.to};
}

// The operands that no operation uses.
std::vector<Operand> UnusedOf(const Problem& problem) {
  std::vector<Operand> unused;
  for (Operand operand = 0; operand < static_cast<Operand>(problem.tensors.size()); ++operand) {
    const bool used = absl::c_any_of(problem.operations, [&](const Operation& operation) {
      return absl::c_linear_search(OperandsOf(operation), operand);
    });
    if (!used) unused.push_back(operand);
  }
  return unused;
}

}  // namespace

bool Problem::Writes(Operand operand) const {
  return absl::c_any_of(operations, [&](const Operation& operation) {
    const auto* product = std::get_if<Product>(&operation);
    return operand == (product != nullptr ? product->c : std::get<Collective>(operation).to);
  });
}

std::vector<Operand> Problem::Inputs() const {
  std::vector<Operand> inputs;
  for (Operand operand = 0; operand < static_cast<Operand>(tensors.size()); ++operand)
    if (!Writes(operand)) inputs.push_back(operand);
  return inputs;
}

Range Intersect(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

Block Intersect(const Block& a, const Block& b) {
  return {a.operand, Intersect(a.rows, b.rows), Intersect(a.cols, b.cols)};
}

int Mesh::Coordinate(Rank rank, int axis) const {
  int stride = 1;
  for (size_t i = axis + 1; i < axes.size(); ++i) stride *= axes[i].size;
  return rank / stride % axes[axis].size;
}

std::string Mesh::ToString() const {
  return absl::StrJoin(axes, ",", [](std::string* out, const Axis& axis) {
    absl::StrAppend(out, axis.name, "=", axis.size);
  });
}

std::string AxesText(const Mesh& mesh, const std::vector<int>& axes) {
  return absl::StrJoin(axes, "",
                       [&](std::string* out, int axis) { out->append(mesh.axes[axis].name); });
}

Position PositionAlong(const Mesh& mesh, const std::vector<int>& axes, Rank rank) {
  Position position;
  for (int axis : axes) {
    position.part = position.part * mesh.axes[axis].size + mesh.Coordinate(rank, axis);
    position.parts *= mesh.axes[axis].size;
  }
  return position;
}

int PartsAlong(const Mesh& mesh, const std::vector<int>& axes) {
  return PositionAlong(mesh, axes, 0).parts;
}

Range SplitRange(int64_t total, int parts, int part) {
  const int64_t size = total / parts, larger = total % parts;
  const int64_t begin = part * size + std::min<int64_t>(part, larger);
  return {begin, begin + size + (part < larger ? 1 : 0)};
}

Block ShardBlock(const Mesh& mesh, const Tensor& tensor, Operand operand, Rank rank) {
  const Position row = PositionAlong(mesh, tensor.sharding.rows, rank);
  const Position col = PositionAlong(mesh, tensor.sharding.cols, rank);
  return {operand, SplitRange(tensor.rows, row.parts, row.part),
          SplitRange(tensor.cols, col.parts, col.part)};
}

int64_t ShardPitchBytes(const Mesh& mesh, const Tensor& tensor) {
  const Block largest = ShardBlock(mesh, tensor, 0, 0);
  return RoundUp(largest.cols.size() * SizeOf(tensor.dtype), kRowAlignBytes);
}

int64_t ShardBytes(const Mesh& mesh, const Tensor& tensor) {
  return ShardBlock(mesh, tensor, 0, 0).rows.size() * ShardPitchBytes(mesh, tensor);
}

std::string ToString(const Mesh& mesh, const Tensor& tensor) {
  const Sharding& sharding = tensor.sharding;
  std::string text =
      absl::StrFormat("%s[%s, %s]", tensor.name, Subscripted(mesh, tensor.row_dim, sharding.rows),
                      Subscripted(mesh, tensor.col_dim, sharding.cols));
  if (!sharding.open.empty())
    absl::StrAppend(&text, "{", Subscripted(mesh, "U", sharding.open), "}");
  return text;
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

std::string SpecText(const Problem& problem) {
  const auto text = [&](Operand operand) {
    const Tensor& tensor = problem.tensors[operand];
    std::string text = ToString(problem.mesh, tensor);
    if (tensor.dtype != problem.tensors.front().dtype)
      absl::StrAppend(&text, ":", Name(tensor.dtype));
    return text;
  };
  std::vector<std::string> parts;
  for (const Operation& operation : problem.operations) {
    const auto* product = std::get_if<Product>(&operation);
    const auto* collective = std::get_if<Collective>(&operation);
    parts.push_back(
        product != nullptr
            ? absl::StrCat(text(product->a), " * ", text(product->b), " -> ", text(product->c))
            : absl::StrCat(text(collective->from), " -> ", text(collective->to)));
  }
  for (Operand operand : UnusedOf(problem)) parts.push_back(text(operand));
  return absl::StrJoin(parts, ", ");
}

std::string SizesText(const Problem& problem) {
  std::vector<std::string> parts;
  for (const Operation& operation : problem.operations) {
    const auto* product = std::get_if<Product>(&operation);
    if (product == nullptr) {
      const auto& [from, to] = std::get<Collective>(operation);
      const Tensor &source = problem.tensors[from], &result = problem.tensors[to];
      parts.push_back(absl::StrFormat("%s=%d %s=%d %s", source.row_dim, source.rows, source.col_dim,
                                      source.cols, Name(source.dtype)));
      if (result.dtype != source.dtype) absl::StrAppend(&parts.back(), " -> ", Name(result.dtype));
      continue;
    }
    const Tensor &a = problem.tensors[product->a], &b = problem.tensors[product->b],
                 &c = problem.tensors[product->c];
    parts.push_back(absl::StrFormat("M=%d N=%d K=%d %s", a.rows, b.cols, a.cols, Name(a.dtype)));
    if (c.dtype != a.dtype) absl::StrAppend(&parts.back(), " -> ", Name(c.dtype));
  }
  for (Operand operand : UnusedOf(problem)) {
    const Tensor& tensor = problem.tensors[operand];
    parts.push_back(
        absl::StrFormat("%s %dx%d %s", tensor.name, tensor.rows, tensor.cols, Name(tensor.dtype)));
  }
  return absl::StrCat(absl::StrJoin(parts, ", "), "  mesh ", problem.mesh.ToString());
}

double FlopCount(const Problem& problem) {
  double flops = 0;
  for (const Operation& operation : problem.operations) {
    const auto* product = std::get_if<Product>(&operation);
    if (product == nullptr) continue;
    const Tensor &a = problem.tensors[product->a], &b = problem.tensors[product->b];
    flops += 2.0 * static_cast<double>(a.rows) * static_cast<double>(b.cols) *
             static_cast<double>(a.cols);
  }
  return flops;
}

std::string ToString(const Problem& problem) {
  return absl::StrCat(SpecText(problem), "  ", SizesText(problem));
}

absl::Status Validate(const Mesh& mesh, const Tensor& tensor) {
  for (auto [dim, size] : {std::pair{tensor.row_dim, tensor.rows}, {tensor.col_dim, tensor.cols}}) {
    if (size < 1 || size > kMaxDimension) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "%s of %s is %d; it must be between 1 and %d", dim, tensor.name, size, kMaxDimension));
    }
  }
  std::vector<bool> used(mesh.axes.size(), false);
  for (const auto* axes : {&tensor.sharding.rows, &tensor.sharding.cols, &tensor.sharding.open}) {
    for (int axis : *axes) {
      if (axis < 0 || axis >= static_cast<int>(mesh.axes.size())) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s is sharded over axis %d; mesh %s has %d axes", tensor.name, axis,
                            mesh.ToString(), mesh.axes.size()));
      }
      if (used[axis]) {
        return absl::InvalidArgumentError(
            absl::StrFormat("%s is sharded over axis %s twice; an axis can split an operand, or "
                            "leave its sum open, once",
                            tensor.name, mesh.axes[axis].name));
      }
      used[axis] = true;
    }
  }
  return absl::OkStatus();
}

absl::Status Validate(const Mesh& mesh) {
  int64_t size = 1;
  for (const Axis& axis : mesh.axes) {
    if (axis.size < 1 || axis.size > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrFormat("mesh axis %s has size %d; it must be between 1 and %d", axis.name,
                          axis.size, kMaxRanks));
    }
    size *= axis.size;
    if (size > kMaxRanks) {
      return absl::InvalidArgumentError(
          absl::StrFormat("mesh %s has over %d ranks", mesh.ToString(), kMaxRanks));
    }
  }
  if (mesh.axes.empty() || size != mesh.size()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mesh %s has %s, but %d were listed (%s); list one for each", mesh.ToString(),
        Counted(size, "rank"), mesh.size(), absl::StrJoin(mesh.ranks, ",")));
  }
  std::vector<int> ranks = mesh.ranks;
  std::sort(ranks.begin(), ranks.end());
  const auto twice = std::adjacent_find(ranks.begin(), ranks.end());
  const bool below = ranks.front() < 0;
  if (below || twice != ranks.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "mesh ranks %s name rank %d %s; name each once, from 0", absl::StrJoin(mesh.ranks, ","),
        below ? ranks.front() : *twice, below ? "below 0" : "twice"));
  }
  return absl::OkStatus();
}

namespace {

absl::Status CheckOperands(const Problem& problem, const Operation& operation) {
  const int count = static_cast<int>(problem.tensors.size());
  std::vector<Operand> operands = OperandsOf(operation);
  absl::c_sort(operands);
  if (operands.front() >= 0 && operands.back() < count &&
      std::adjacent_find(operands.begin(), operands.end()) == operands.end())
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("an operation has operands %s; they must differ and be from 0 to %d",
                      absl::StrJoin(operands, ", "), count - 1));
}

absl::Status CheckOperation(const Problem& problem, const Collective& collective) {
  const Tensor &from = problem.tensors[collective.from], &to = problem.tensors[collective.to];
  if (from.row_dim != to.row_dim || from.col_dim != to.col_dim) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s gives the matrix other dimensions; without a product, rows stay rows "
                        "and columns stay columns",
                        SpecText(problem)));
  }
  if (from.row_dim == from.col_dim) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s names a dimension twice; give rows and columns two names", SpecText(problem)));
  }
  if (from.rows != to.rows || from.cols != to.cols) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is %d x %d and %s is %d x %d; both need "
                        "the same size",
                        from.name, from.rows, from.cols, to.name, to.rows, to.cols));
  }
  for (const int axis : to.sharding.open) {
    if (absl::c_linear_search(from.sharding.open, axis)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s leaves the sum of %s open over axis %s, but the sum of %s is closed "
                        "there; only a product "
                        "opens a sum",
                        SpecText(problem), to.name, problem.mesh.axes[axis].name, from.name));
  }
  if (from.dtype != to.dtype && OpenParts(problem.mesh, from) == OpenParts(problem.mesh, to)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %s and %s is %s; only a sum or a product converts elements, so give both the same",
        from.name, Name(from.dtype), to.name, Name(to.dtype)));
  }
  return absl::OkStatus();
}

absl::Status CheckOperation(const Problem& problem, const Product& product) {
  const Tensor &a = problem.tensors[product.a], &b = problem.tensors[product.b],
               &c = problem.tensors[product.c];
  const std::string &m = a.row_dim, &n = b.col_dim, &k = a.col_dim;
  if (b.row_dim != k || c.row_dim != m || c.col_dim != n) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s does not make a product: the columns of %s and the rows of %s share a "
                        "dimension, and %s has the "
                        "rows of %s and the columns of %s",
                        SpecText(problem), a.name, b.name, c.name, a.name, b.name));
  }
  if (m == n || n == k || k == m) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s names a dimension twice; the rows, the columns and the inner dimension need three "
        "names",
        SpecText(problem)));
  }
  if (a.cols != b.rows) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s has %s and %s has %s; the inner dimension must agree", a.name,
                        Counted(a.cols, "column"), b.name, Counted(b.rows, "row")));
  }
  if (c.rows != a.rows || c.cols != b.cols) {
    return absl::InvalidArgumentError(absl::StrFormat("%s is %d x %d; %s * %s is %d x %d", c.name,
                                                      c.rows, c.cols, a.name, b.name, a.rows,
                                                      b.cols));
  }
  if (a.dtype != b.dtype) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s is %s and %s is %s; a product multiplies matrices of one dtype, so give both the same "
        "(only %s may have another)",
        a.name, Name(a.dtype), b.name, Name(b.dtype), c.name));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const Problem& problem) {
  AGMM_RETURN_IF_ERROR(Validate(problem.mesh));
  for (const Tensor& tensor : problem.tensors) AGMM_RETURN_IF_ERROR(Validate(problem.mesh, tensor));
  for (const Operation& operation : problem.operations)
    AGMM_RETURN_IF_ERROR(CheckOperands(problem, operation));
  for (const Operation& operation : problem.operations) {
    AGMM_RETURN_IF_ERROR(
        std::visit([&](const auto& one) { return CheckOperation(problem, one); }, operation));
  }
  if (problem.operations.size() == 1) return absl::OkStatus();
  if (problem.operations.empty())
    return absl::InvalidArgumentError("the problem has no operation; give it a product");
  return absl::UnimplementedError(
      absl::StrFormat("the problem has %s, and only one can be planned; submit one job for each",
                      Counted(problem.operations.size(), "operation")));
}

}  // namespace agmm
