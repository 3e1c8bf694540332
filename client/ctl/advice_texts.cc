#include "client/ctl/advice_texts.h"

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

// Returns the products of all texts.
std::vector<std::string> ProductsOf(const std::vector<std::string>& specs) {
  std::vector<std::string> products;
  for (const std::string& spec : specs) {
    for (const absl::string_view product : absl::StrSplit(spec, ';')) {
      if (const absl::string_view text = absl::StripAsciiWhitespace(product); !text.empty())
        products.emplace_back(text);
    }
  }
  return products;
}

// "C" of " C[M, N_x] ".
absl::string_view NameOf(absl::string_view operand) {
  operand = absl::StripAsciiWhitespace(operand);
  return absl::StripAsciiWhitespace(operand.substr(0, operand.find('[')));
}

// Replaces an input of `product` that only names `result` by the whole of it.
std::string WithResult(absl::string_view product, absl::string_view result) {
  const size_t arrow = product.find("->");
  if (arrow == product.npos || result.empty()) return std::string(product);
  std::vector<std::string> inputs;
  for (const absl::string_view part : absl::StrSplit(product.substr(0, arrow), '*')) {
    const absl::string_view input = absl::StripAsciiWhitespace(part);
    inputs.emplace_back(input == NameOf(result) ? result : input);
  }
  return absl::StrCat(absl::StrJoin(inputs, " * "), " ", product.substr(arrow));
}

absl::string_view ResultOf(absl::string_view product) {
  const size_t arrow = product.find("->");
  return arrow == product.npos ? "" : absl::StripAsciiWhitespace(product.substr(arrow + 2));
}

// Replaces the result of the last product by `output`.
absl::StatusOr<std::string> WithOutput(const std::string& product, const std::string& output) {
  const absl::string_view result = ResultOf(product);
  if (NameOf(output) != NameOf(result)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--output %s does not name the result of %s; write it like %s", output, product, result));
  }
  return absl::StrCat(absl::string_view(product).substr(0, product.find("->")), "-> ",
                      absl::StripAsciiWhitespace(output));
}

// Gives each product the sizes of its own dimensions.
absl::StatusOr<std::vector<std::string>> ShapesOf(const std::vector<ParsedSpec>& specs,
                                                  const std::string& shape) {
  if (specs.size() == 1) return std::vector<std::string>{shape};
  std::vector<std::set<std::string>> names;
  for (const ParsedSpec& spec : specs) {
    std::set<std::string>& of_product = names.emplace_back();
    for (const Tensor& tensor : spec.problem.tensors)
      of_product.insert({tensor.row_dim, tensor.col_dim});
  }
  std::vector<std::vector<absl::string_view>> sizes(specs.size());
  for (const absl::string_view item : absl::StrSplit(shape, ',', absl::SkipWhitespace())) {
    const std::string name(absl::StripAsciiWhitespace(item.substr(0, item.find('='))));
    bool is_used = false;
    for (size_t p = 0; p < specs.size(); ++p) {
      if (names[p].count(name) == 0) continue;
      sizes[p].push_back(item);
      is_used = true;
    }
    if (!is_used) {
      return absl::InvalidArgumentError(absl::StrFormat(
          "--shape gives a size to %s, a dimension that the products do not have; leave it out",
          name));
    }
  }
  std::vector<std::string> shapes;
  for (const auto& of_product : sizes) shapes.push_back(absl::StrJoin(of_product, ","));
  return shapes;
}

bool IsSharded(const Tensor& tensor) {
  return !tensor.sharding.rows.empty() || !tensor.sharding.cols.empty() ||
         !tensor.sharding.open.empty();
}

}  // namespace

absl::StatusOr<int64_t> ParseMemory(absl::string_view text) {
  static constexpr std::pair<absl::string_view, double> kUnits[] = {
      {"kB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}};
  absl::StatusOr<int64_t> size = ParseBytes(text);
  for (const auto& [unit, bytes] : kUnits) {
    absl::string_view digits = text;
    double count = 0;
    if (absl::ConsumeSuffix(&digits, unit) && absl::SimpleAtod(digits, &count) && count > 0 &&
        count * bytes < 9e18)
      size = static_cast<int64_t>(std::llround(count * bytes));
  }
  // A number without a unit is refused, because gigabytes may be meant.
  if (size.ok() && *size > 0 && absl::EndsWith(text, "B")) return size;
  return absl::InvalidArgumentError(absl::StrFormat(
      "--memory \"%s\" is not a size; write a number and a unit, such as 300MB or 80GiB", text));
}

absl::StatusOr<AdviceRequest> ParseAdviceRequest(const AdviceTexts& texts, const Mesh& mesh,
                                                 DType dtype) {
  std::vector<std::string> products = ProductsOf(texts.specs);
  if (products.empty())
    return absl::InvalidArgumentError("no product to advise on; give one to --spec");
  if (!texts.output.empty()) {
    AGMM_ASSIGN_OR_RETURN(products.back(), WithOutput(products.back(), texts.output));
  }
  std::vector<ParsedSpec> specs;
  for (size_t p = 0; p < products.size(); ++p) {
    if (p > 0) products[p] = WithResult(products[p], ResultOf(products[p - 1]));
    AGMM_ASSIGN_OR_RETURN(specs.emplace_back(), ParseSpec(products[p], mesh));
    if (HasProduct(specs.back().problem)) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("%s does not multiply; advise takes products such as %s", products[p],
                        "A[M, K] * B[K, N] -> C[M, N]"));
  }
  AGMM_ASSIGN_OR_RETURN(const std::vector<std::string> shapes, ShapesOf(specs, texts.shape));
  AdviceRequest request;
  std::map<std::string, bool> keeps;  // by name: a result keeps its sharding as an input, too
  for (size_t p = 0; p < products.size(); ++p) {
    AGMM_ASSIGN_OR_RETURN(const Shape shape, ParseShape(shapes[p], products[p]));
    AGMM_ASSIGN_OR_RETURN(const Problem problem, ParseProblem(products[p], mesh, shape, dtype));
    for (const Tensor& tensor : problem.tensors) keeps[tensor.name] |= IsSharded(tensor);
    request.products.push_back(problem);
  }
  if (!texts.output.empty()) keeps[request.products.back().tensors[kC].name] = true;
  for (const Problem& problem : request.products) {
    std::array<bool, 3>& of_product = request.keeps.emplace_back();
    for (const Operand operand : {kA, kB, kC})
      of_product[operand] = keeps[problem.tensors[operand].name];
  }
  if (!texts.memory.empty()) {
    AGMM_ASSIGN_OR_RETURN(request.memory_bytes, ParseMemory(texts.memory));
  }
  return request;
}

}  // namespace agmm
