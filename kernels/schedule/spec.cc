#include "kernels/schedule/spec.h"

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

constexpr size_t kMaxTextLength = 1024;

// A piece of the text and where it begins, counted from 0.
struct Token {
  absl::string_view text;
  size_t at = 0;
};

// Reads tokens of one text; spaces between them mean nothing.
class Scanner {
 public:
  // `what` is what the text is called in errors: "spec", "mesh".
  Scanner(absl::string_view what, absl::string_view text) : what_(what), text_(text) {}

  // Refuses texts that no error could quote: over-long ones, and bytes other than printable ASCII.
  absl::Status CheckText() const {
    if (text_.size() > kMaxTextLength) {
      return ErrorAt(kMaxTextLength,
                     absl::StrFormat("the text has %d characters; at most %d are read",
                                     text_.size(), kMaxTextLength));
    }
    for (size_t i = 0; i < text_.size(); ++i) {
      if (absl::ascii_isprint(static_cast<unsigned char>(text_[i]))) continue;
      return ErrorAt(i, absl::StrFormat("byte 0x%02x is not a printable ASCII character; write "
                                        "letters, digits, spaces and _ [ ] , = * ->",
                                        static_cast<unsigned char>(text_[i])));
    }
    return absl::OkStatus();
  }

  absl::Status ErrorAt(size_t at, absl::string_view problem) const {
    std::string quoted(text_.substr(0, kMaxTextLength));
    for (char& c : quoted) {
      if (!absl::ascii_isprint(static_cast<unsigned char>(c))) c = '?';
    }
    return absl::InvalidArgumentError(absl::StrFormat("%s column %d: %s\n%s\n%s^", what_, at + 1,
                                                      problem, quoted, std::string(at, ' ')));
  }

  // "found `what`" for errors at the next token.
  absl::Status Expected(absl::string_view what) {
    SkipSpaces();
    if (AtEnd()) return ErrorAt(at_, absl::StrFormat("expected %s, found the end", what));
    return ErrorAt(at_, absl::StrFormat("expected %s, found \"%c\"", what, text_[at_]));
  }

  bool AtEnd() {
    SkipSpaces();
    return at_ == text_.size();
  }
  bool Peek(absl::string_view symbol) {
    SkipSpaces();
    return text_.substr(at_, symbol.size()) == symbol;
  }
  bool Consume(absl::string_view symbol) {
    if (!Peek(symbol)) return false;
    at_ += symbol.size();
    return true;
  }
  absl::Status Expect(absl::string_view symbol) {
    if (Consume(symbol)) return absl::OkStatus();
    return Expected(absl::StrFormat("\"%s\"", symbol));
  }
  absl::Status ExpectEnd() {
    if (AtEnd()) return absl::OkStatus();
    return ErrorAt(at_, absl::StrFormat("\"%s\" is left over", text_.substr(at_)));
  }

  // Letters and digits, possibly none.
  Token Word() {
    SkipSpaces();
    const size_t begin = at_;
    while (at_ < text_.size() && absl::ascii_isalnum(text_[at_])) ++at_;
    return {text_.substr(begin, at_ - begin), begin};
  }
  // A word that begins with a letter; `what` says what it names.
  absl::StatusOr<Token> Name(absl::string_view what) {
    SkipSpaces();
    if (at_ == text_.size() || !absl::ascii_isalpha(text_[at_])) return Expected(what);
    return Word();
  }
  // A whole number in [1, max].
  absl::StatusOr<int64_t> Number(absl::string_view what, int64_t max) {
    SkipSpaces();
    const size_t begin = at_;
    int64_t value = 0;
    while (at_ < text_.size() && absl::ascii_isdigit(text_[at_])) {
      value = std::min(value * 10 + (text_[at_++] - '0'), max + 1);
    }
    if (at_ == begin) return Expected(what);
    if (value < 1 || value > max) {
      return ErrorAt(begin, absl::StrFormat("%s is %s; it must be between 1 and %d", what,
                                            text_.substr(begin, at_ - begin), max));
    }
    return value;
  }

 private:
  void SkipSpaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }

  absl::string_view what_, text_;
  size_t at_ = 0;
};

// One dimension of an operand as written.
struct Dim {
  Token name;
  std::vector<int> axes;
};

struct ParsedOperand {
  Token name;
  Dim rows, cols;
};

// Cuts `subscript` into axis names of the mesh, long names first, with backtracking. Returns -1, or
// on failure the furthest position that no axis name fits.
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

// `used`: by axis, whether it splits the operand already.
absl::StatusOr<Dim> ParseDim(Scanner& scanner, const Mesh& mesh, std::vector<bool>& used) {
  Dim dim;
  AGMM_ASSIGN_OR_RETURN(dim.name, scanner.Name("a dimension such as M"));
  if (!scanner.Consume("_")) return dim;
  const Token subscript = scanner.Word();
  if (subscript.text.empty()) return scanner.Expected("the name of a mesh axis behind \"_\"");
  if (const int bad = ResolveAxes(mesh, subscript.text, &dim.axes); bad >= 0) {
    return scanner.ErrorAt(subscript.at + bad,
                           absl::StrFormat("\"%s\" is not an axis of mesh %s",
                                           subscript.text.substr(bad), mesh.ToString()));
  }
  size_t at = subscript.at;
  for (int axis : dim.axes) {
    if (used[axis]) {
      return scanner.ErrorAt(
          at, absl::StrFormat("axis %s is used twice in one operand; it can split an operand once",
                              mesh.axes[axis].name));
    }
    used[axis] = true;
    at += mesh.axes[axis].name.size();
  }
  return dim;
}

// "[M_x, K]" into operand->rows and operand->cols.
absl::Status ParseDims(Scanner& scanner, const Mesh& mesh, ParsedOperand* operand) {
  std::vector<bool> used(mesh.axes.size(), false);
  AGMM_RETURN_IF_ERROR(scanner.Expect("["));
  AGMM_ASSIGN_OR_RETURN(operand->rows, ParseDim(scanner, mesh, used));
  AGMM_RETURN_IF_ERROR(scanner.Expect(","));
  AGMM_ASSIGN_OR_RETURN(operand->cols, ParseDim(scanner, mesh, used));
  AGMM_RETURN_IF_ERROR(scanner.Expect("]"));
  if (scanner.Peek("{")) {
    return scanner.Expected("the end of the operand (sums left open, {U_x}, are not supported)");
  }
  return absl::OkStatus();
}

absl::StatusOr<ParsedOperand> ParseOperand(Scanner& scanner, const Mesh& mesh) {
  ParsedOperand operand;
  AGMM_ASSIGN_OR_RETURN(operand.name, scanner.Name("an operand such as A[M, K]"));
  if (operand.name.text == kWorkspaceText)
    return scanner.ErrorAt(operand.name.at, "the name workspace is reserved; use another");
  AGMM_RETURN_IF_ERROR(ParseDims(scanner, mesh, &operand));
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

Tensor MakeTensor(const ParsedOperand& operand, int64_t rows, int64_t cols, DType dtype) {
  return {std::string(operand.name.text),
          std::string(operand.rows.name.text),
          std::string(operand.cols.name.text),
          rows,
          cols,
          dtype,
          {operand.rows.axes, operand.cols.axes}};
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

absl::StatusOr<Shape> ParseShape(absl::string_view text) {
  Scanner scanner("shape", text);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  Shape shape;
  do {
    AGMM_ASSIGN_OR_RETURN(const Token name, scanner.Name("M=, N= or K="));
    int64_t* value = name.text == "M"   ? &shape.m
                     : name.text == "N" ? &shape.n
                     : name.text == "K" ? &shape.k
                                        : nullptr;
    if (value == nullptr) {
      return scanner.ErrorAt(
          name.at,
          absl::StrFormat("%s is not a dimension of a product; give M, N and K", name.text));
    }
    if (*value != 0)
      return scanner.ErrorAt(name.at, absl::StrFormat("%s is given twice", name.text));
    AGMM_RETURN_IF_ERROR(scanner.Expect("="));
    AGMM_ASSIGN_OR_RETURN(*value, scanner.Number(name.text, kMaxDimension));
  } while (scanner.Consume(","));
  for (auto [value, name] : {std::pair{shape.m, "M"}, {shape.n, "N"}, {shape.k, "K"}}) {
    if (value == 0) return scanner.Expected(absl::StrFormat("\", %s=\"", name));
  }
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  return shape;
}

absl::StatusOr<Problem> ParseProblem(absl::string_view spec, const Mesh& mesh, const Shape& shape,
                                     DType dtype) {
  Scanner scanner("spec", spec);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  AGMM_ASSIGN_OR_RETURN(const ParsedOperand a, ParseOperand(scanner, mesh));
  AGMM_RETURN_IF_ERROR(scanner.Expect("*"));
  AGMM_ASSIGN_OR_RETURN(const ParsedOperand b, ParseOperand(scanner, mesh));
  AGMM_RETURN_IF_ERROR(scanner.Expect("->"));
  AGMM_ASSIGN_OR_RETURN(const ParsedOperand c, ParseOperand(scanner, mesh));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  AGMM_RETURN_IF_ERROR(CheckProduct(scanner, a, b, c));
  Problem problem;
  problem.mesh = mesh;
  problem.tensors = {MakeTensor(a, shape.m, shape.k, dtype), MakeTensor(b, shape.k, shape.n, dtype),
                     MakeTensor(c, shape.m, shape.n, dtype)};
  AGMM_RETURN_IF_ERROR(Validate(problem));
  return problem;
}

absl::StatusOr<Tensor> ParseTensor(absl::string_view sharding, const Mesh& mesh, int64_t rows,
                                   int64_t cols, DType dtype) {
  Scanner scanner("sharding", sharding);
  AGMM_RETURN_IF_ERROR(scanner.CheckText());
  ParsedOperand operand;
  AGMM_RETURN_IF_ERROR(ParseDims(scanner, mesh, &operand));
  AGMM_RETURN_IF_ERROR(scanner.ExpectEnd());
  Tensor tensor = MakeTensor(operand, rows, cols, dtype);
  Tensor named = tensor;
  named.name = "the tensor";
  AGMM_RETURN_IF_ERROR(Validate(mesh, named));
  return tensor;
}

}  // namespace agmm
