#include "kernels/schedule/spec.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/scanner.h"
#include "kernels/schedule/text.h"

namespace agmm {

int ResolveAxes(const Mesh& mesh, absl::string_view subscript, std::vector<int>* axes) {
  std::vector<int> by_length(mesh.axes.size());
  std::iota(by_length.begin(), by_length.end(), 0);
  std::stable_sort(by_length.begin(), by_length.end(), [&](int a, int b) {
    return mesh.axes[a].name.size() > mesh.axes[b].name.size();
  });
  std::set<size_t> dead;  // positions from which nothing fits to the end
  const std::function<bool(size_t)> cut = [&](size_t at) {
    if (at == subscript.size()) return true;
    for (int axis : by_length) {
      const std::string& name = mesh.axes[axis].name;
      if (name.empty() || subscript.substr(at, name.size()) != name) continue;
      axes->push_back(axis);
      if (dead.count(at + name.size()) == 0 && cut(at + name.size())) return true;
      axes->pop_back();
    }
    dead.insert(at);
    return false;
  };
  return cut(0) ? -1 : static_cast<int>(*dead.rbegin());
}

namespace {

// One dimension of an operand, as written.
struct ParsedDim {
  Token name;
  std::vector<int> axes;
};

struct ParsedOperand {
  Token name;
  ParsedDim rows, cols;
  std::vector<int> open;
  std::optional<DType> dtype;
};

// Reads the axes after a "_". `used`: by axis, true if the operand or the split already names it,
// which is an error that `advice` completes. Without a mesh, any word will do, and none is
// returned.
absl::StatusOr<std::vector<int>> ParseAxes(Scanner& scanner, const Mesh* known_mesh,
                                           std::vector<bool>& used, absl::string_view advice) {
  std::vector<int> axes;
  const Token subscript = scanner.Word();
  if (subscript.text.empty()) return scanner.Expected("the name of a mesh axis after \"_\"");
  if (known_mesh == nullptr) return axes;
  const Mesh& mesh = *known_mesh;
  if (const int bad = ResolveAxes(mesh, subscript.text, &axes); bad >= 0) {
    return scanner.ErrorAt(subscript.at + bad,
                           absl::StrFormat("\"%s\" is not an axis of mesh %s; use one of its axes, "
                                           "or set the option mesh to a mesh that has it",
                                           subscript.text.substr(bad), mesh.ToString()));
  }
  size_t at = subscript.at;
  for (int axis : axes) {
    if (used[axis]) {
      return scanner.ErrorAt(
          at, absl::StrFormat("axis %s is used twice; %s", mesh.axes[axis].name, advice));
    }
    used[axis] = true;
    at += mesh.axes[axis].name.size();
  }
  return axes;
}

constexpr absl::string_view kOncePerOperand = "an operand uses an axis once";

// Reads a dimension. `rows`: null, or the rows of the operand, whose columns are read.
absl::StatusOr<ParsedDim> ParseDim(Scanner& scanner, const Mesh* mesh, absl::string_view operand,
                                   const ParsedDim* rows, std::vector<bool>& used) {
  ParsedDim dim;
  AGMM_ASSIGN_OR_RETURN(dim.name, scanner.Name("a dimension such as M"));
  if (!scanner.Consume("_")) return dim;
  std::string advice(kOncePerOperand);
  if (rows != nullptr && rows->axes.size() == 1) {
    const std::string& axis = mesh->axes[rows->axes[0]].name;
    const absl::string_view m = rows->name.text, n = dim.name.text;
    if (scanner.Peek(absl::StrCat(axis, "]"))) {
      absl::StrAppend(&advice, ": write ", operand, "[", m, ", ", n, "_", axis, "] or ", operand,
                      "[", m, "_", axis, ", ", n, "]");
    }
  }
  AGMM_ASSIGN_OR_RETURN(dim.axes, ParseAxes(scanner, mesh, used, advice));
  return dim;
}

// Parses "[M_x, K]" or "[M_x, K]{U_y}" into all fields except the name of the operand.
absl::Status ParseDims(Scanner& scanner, const Mesh* mesh, ParsedOperand* operand) {
  const absl::string_view name = operand->name.text;
  std::vector<bool> used(mesh == nullptr ? 0 : mesh->axes.size(), false);
  AGMM_RETURN_IF_ERROR(scanner.Expect("["));
  AGMM_ASSIGN_OR_RETURN(operand->rows, ParseDim(scanner, mesh, name, nullptr, used));
  AGMM_RETURN_IF_ERROR(scanner.Expect(","));
  AGMM_ASSIGN_OR_RETURN(operand->cols, ParseDim(scanner, mesh, name, &operand->rows, used));
  AGMM_RETURN_IF_ERROR(scanner.Expect("]"));
  if (!scanner.Consume("{")) return absl::OkStatus();
  AGMM_RETURN_IF_ERROR(scanner.Expect("U_"));
  AGMM_ASSIGN_OR_RETURN(operand->open, ParseAxes(scanner, mesh, used, kOncePerOperand));
  return scanner.Expect("}");
}

absl::StatusOr<ParsedOperand> ParseOperand(Scanner& scanner, const Mesh* mesh) {
  ParsedOperand operand;
  AGMM_ASSIGN_OR_RETURN(operand.name, scanner.Name("an operand such as A[M, K]"));
  if (operand.name.text == kWorkspaceText)
    return scanner.ErrorAt(operand.name.at, "the name workspace is reserved; use another");
  AGMM_RETURN_IF_ERROR(ParseDims(scanner, mesh, &operand));
  if (!scanner.Consume(":")) return operand;
  AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("a dtype such as f32"));
  const absl::StatusOr<DType> dtype = ParseDType(name.text);
  if (!dtype.ok()) return scanner.ErrorAt(name.at, dtype.status().message());
  operand.dtype = *dtype;
  return operand;
}

// Checks that the three operands make a product.
absl::Status CheckProduct(const Scanner& scanner, const ParsedOperand& a, const ParsedOperand& b,
                          const ParsedOperand& c) {
  for (auto [first, second] : {std::pair{&a, &b}, {&a, &c}, {&b, &c}}) {
    if (first->name.text == second->name.text) {
      return scanner.ErrorAt(
          second->name.at,
          absl::StrFormat("two operands are called %s; give each its own name", second->name.text));
    }
  }
  const Token m = a.rows.name, k = a.cols.name, n = b.cols.name;
  if (b.rows.name.text != k.text) {
    return scanner.ErrorAt(
        b.rows.name.at,
        absl::StrFormat("the inner dimensions differ: %s has columns %s and %s has rows %s",
                        a.name.text, k.text, b.name.text, b.rows.name.text));
  }
  for (auto [first, second] : {std::pair{m, k}, {k, n}, {m, n}}) {
    if (first.text == second.text) {
      return scanner.ErrorAt(
          second.at, absl::StrFormat("dimension %s is named twice; the rows, the columns and "
                                     "the inner dimension need three names",
                                     second.text));
    }
  }
  for (auto [found, wanted, side] :
       {std::tuple{c.rows.name, m, "rows"}, {c.cols.name, n, "columns"}}) {
    if (found.text != wanted.text) {
      return scanner.ErrorAt(
          found.at, absl::StrFormat("%s has %s %s; %s * %s has %s %s", c.name.text, side,
                                    found.text, a.name.text, b.name.text, side, wanted.text));
    }
  }
  return absl::OkStatus();
}

// Checks that the second operand can be the first one with another sharding.
absl::Status CheckCollective(const Scanner& scanner, const ParsedOperand& from,
                             const ParsedOperand& to) {
  if (from.name.text == to.name.text) {
    return scanner.ErrorAt(to.name.at, absl::StrFormat("both operands are called %s; give the "
                                                       "result a name of its own",
                                                       to.name.text));
  }
  if (from.rows.name.text == from.cols.name.text) {
    return scanner.ErrorAt(from.cols.name.at,
                           absl::StrFormat("dimension %s is named twice; give rows and columns two "
                                           "names",
                                           from.cols.name.text));
  }
  for (auto [found, wanted, side] : {std::tuple{to.rows.name, from.rows.name, "rows"},
                                     {to.cols.name, from.cols.name, "columns"}}) {
    if (found.text != wanted.text) {
      return scanner.ErrorAt(
          found.at,
          absl::StrFormat("%s has %s %s, but %s has %s; without a product, both must match",
                          to.name.text, side, found.text, from.name.text, wanted.text));
    }
  }
  return absl::OkStatus();
}

Tensor MakeTensor(const ParsedOperand& operand, int64_t rows, int64_t cols, DType dtype) {
  return {std::string(operand.name.text),
          std::string(operand.rows.name.text),
          std::string(operand.cols.name.text),
          rows,
          cols,
          dtype,
          {operand.rows.axes, operand.cols.axes, operand.open}};
}

// ParseSpec; without a mesh, subscripts may be any words, and the tensors have no shardings.
absl::StatusOr<ParsedSpec> ParseOperands(absl::string_view spec, const Mesh* mesh) {
  Scanner scanner("spec", spec);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  std::vector<ParsedOperand> operands;
  AGMM_ASSIGN_OR_RETURN(operands.emplace_back(), ParseOperand(scanner, mesh));
  const bool multiplies = !scanner.Peek("->");
  if (multiplies) {
    if (!scanner.Consume("*")) return scanner.Expected("\"*\" or \"->\"");
    AGMM_ASSIGN_OR_RETURN(operands.emplace_back(), ParseOperand(scanner, mesh));
  }
  AGMM_RETURN_IF_ERROR(scanner.Expect("->"));
  AGMM_ASSIGN_OR_RETURN(operands.emplace_back(), ParseOperand(scanner, mesh));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  ParsedSpec parsed;
  if (mesh != nullptr) parsed.problem.mesh = *mesh;
  if (multiplies) {
    AGMM_RETURN_IF_ERROR(CheckProduct(scanner, operands[0], operands[1], operands[2]));
    parsed.problem.operations = {Product{kA, kB, kC}};
  } else {
    AGMM_RETURN_IF_ERROR(CheckCollective(scanner, operands[0], operands[1]));
    parsed.problem.operations = {Collective{0, 1}};
  }
  for (const ParsedOperand& operand : operands) {
    parsed.dtypes.push_back(operand.dtype);
    parsed.problem.tensors.push_back(
        MakeTensor(operand, 0, 0, operand.dtype.value_or(DType::kF32)));
  }
  return parsed;
}

}  // namespace

absl::StatusOr<Mesh> ParseMesh(absl::string_view text, std::vector<int> ranks) {
  Scanner scanner("mesh", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  Mesh mesh;
  int64_t size = 1;
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("an axis such as x=8"));
    if (!std::all_of(name.text.begin(), name.text.end(), absl::ascii_isalpha)) {
      return scanner.ErrorAt(name.at,
                             absl::StrFormat("axis %s: axis names are letters only", name.text));
    }
    for (const Axis& axis : mesh.axes) {
      if (axis.name == name.text)
        return scanner.ErrorAt(name.at, absl::StrFormat("axis %s is named twice", name.text));
    }
    AGMM_RETURN_IF_ERROR(scanner.Expect("="));
    AGMM_ASSIGN_OR_RETURN(const int64_t ways, scanner.Number("the size of the axis", kMaxRanks));
    size *= ways;
    if (size > kMaxRanks) {
      return scanner.ErrorAt(name.at,
                             absl::StrFormat("with axis %s the mesh has %d ranks; at most %d "
                                             "can be planned for",
                                             name.text, size, kMaxRanks));
    }
    mesh.axes.push_back({std::string(name.text), static_cast<int>(ways)});
  } while (scanner.Consume(","));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  mesh.ranks = std::move(ranks);
  if (mesh.ranks.empty()) {
    mesh.ranks.resize(size);
    std::iota(mesh.ranks.begin(), mesh.ranks.end(), 0);
  }
  AGMM_RETURN_IF_ERROR(Validate(mesh));
  return mesh;
}

absl::StatusOr<Shape> ParseShape(absl::string_view text, absl::string_view spec) {
  AGMM_ASSIGN_OR_RETURN(const ParsedSpec parsed, ParseOperands(spec, nullptr));
  Scanner scanner("shape", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  Shape shape;
  std::vector<std::pair<std::string, int64_t*>> sizes;  // by dimension
  std::vector<std::string> names;
  const auto add = [&](Dim dim, int64_t* size) {
    names.push_back(DimensionOf(parsed.problem, dim).name);
    sizes.emplace_back(names.back(), size);
  };
  add(Dim::kM, &shape.m);
  add(Dim::kN, &shape.n);
  if (HasProduct(parsed.problem)) add(Dim::kK, &shape.k);
  const std::string last = names.back();
  names.pop_back();
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name(absl::StrFormat(
                                                "%s= or %s=", absl::StrJoin(names, "=, "), last)));
    const auto known =
        absl::c_find_if(sizes, [&](const auto& one) { return one.first == name.text; });
    if (known == sizes.end()) {
      return scanner.ErrorAt(
          name.at, absl::StrFormat("%s is not a dimension of the spec; give %s and %s", name.text,
                                   absl::StrJoin(names, ", "), last));
    }
    if (*known->second != 0)
      return scanner.ErrorAt(name.at, absl::StrFormat("%s is given twice", name.text));
    AGMM_RETURN_IF_ERROR(scanner.Expect("="));
    AGMM_ASSIGN_OR_RETURN(*known->second, scanner.Number(name.text, kMaxDimension));
  } while (scanner.Consume(","));
  for (const auto& [name, size] : sizes) {
    if (*size == 0) return scanner.Expected(absl::StrFormat("\", %s=\"", name));
  }
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  return shape;
}

absl::StatusOr<ParsedSpec> ParseSpec(absl::string_view spec, const Mesh& mesh) {
  return ParseOperands(spec, &mesh);
}

absl::StatusOr<Problem> ParseProblem(absl::string_view spec, const Mesh& mesh, const Shape& shape,
                                     DType dtype) {
  AGMM_ASSIGN_OR_RETURN(ParsedSpec parsed, ParseSpec(spec, mesh));
  const auto complete = [&](Operand operand, int64_t rows, int64_t cols) {
    Tensor& tensor = parsed.problem.tensors[operand];
    tensor.rows = rows;
    tensor.cols = cols;
    tensor.dtype = parsed.dtypes[operand].value_or(dtype);
  };
  if (HasProduct(parsed.problem)) {
    complete(kA, shape.m, shape.k);
    complete(kB, shape.k, shape.n);
    complete(kC, shape.m, shape.n);
  } else {
    const auto& [from, to] = TheCollective(parsed.problem);
    complete(from, shape.m, shape.n);
    complete(to, shape.m, shape.n);
  }
  AGMM_RETURN_IF_ERROR(Validate(parsed.problem));
  return std::move(parsed.problem);
}

bool IsOperandName(absl::string_view name) {
  return !name.empty() && absl::ascii_isalpha(name.front()) &&
         std::all_of(name.begin(), name.end(), absl::ascii_isalnum) && name != kWorkspaceText;
}

absl::StatusOr<Tensor> ParseTensor(absl::string_view sharding, const Mesh& mesh, int64_t rows,
                                   int64_t cols, DType dtype) {
  Scanner scanner("sharding", absl::StripTrailingAsciiWhitespace(sharding));
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  ParsedOperand operand;
  AGMM_RETURN_IF_ERROR(ParseDims(scanner, &mesh, &operand));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  Tensor tensor = MakeTensor(operand, rows, cols, dtype);
  Tensor named = tensor;
  named.name = "the tensor";
  AGMM_RETURN_IF_ERROR(Validate(mesh, named));
  return tensor;
}

absl::StatusOr<Split> ParseSplit(const Problem& problem, absl::string_view text) {
  Split split;
  if (text == "none") return split;
  if (!HasProduct(problem)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("split %s cuts a product, and %s has none; leave the split out",
                        absl::CHexEscape(text), SpecText(problem)));
  }
  Scanner scanner("split", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  const std::pair<Dimension, std::vector<int>*> dims[] = {
      {DimensionOf(problem, Dim::kM), &split.m},
      {DimensionOf(problem, Dim::kN), &split.n},
      {DimensionOf(problem, Dim::kK), &split.k}};
  std::vector<bool> used(problem.mesh.axes.size(), false);
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("a cut such as M=x, or none"));
    const auto dim = std::find_if(std::begin(dims), std::end(dims),
                                  [&](const auto& known) { return known.first.name == name.text; });
    if (dim == std::end(dims)) {
      return scanner.ErrorAt(
          name.at, absl::StrFormat("%s is not a dimension of %s; give %s, %s or %s", name.text,
                                   SpecText(problem), dims[0].first.name, dims[1].first.name,
                                   dims[2].first.name));
    }
    std::vector<int>& axes = *dim->second;
    if (!axes.empty())
      return scanner.ErrorAt(name.at, absl::StrFormat("%s is cut twice", name.text));
    AGMM_RETURN_IF_ERROR(scanner.Expect("="));
    AGMM_ASSIGN_OR_RETURN(axes,
                          ParseAxes(scanner, &problem.mesh, used, "a split uses an axis once"));
  } while (scanner.Consume(","));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  return split;
}

}  // namespace agmm
