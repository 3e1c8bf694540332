#include "client/ctl/advice_report.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"
#include "kernels/schedule/split.h"

namespace agmm {
namespace {

constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

std::string Time(int64_t ns) { return FormatMicros(static_cast<double>(ns) / 1000); }

// "all-gather A over x; by ring, 4 chunks".
std::string PlanOf(const AdvisedProduct& product) {
  const std::string moves = MovesText(product.problem, product.moves);
  if (product.moves.empty()) return "moves nothing";
  const Recipe& recipe = product.plan.recipe;
  std::string text = absl::StrCat(moves, "; by ", product.plan.algorithm);
  if (recipe.chunks > 1) absl::StrAppend(&text, ", ", recipe.chunks, " chunks");
  if (recipe.k_chunks > 1) absl::StrAppend(&text, ", ", recipe.k_chunks, " along K");
  if (recipe.workspace_shards > 0)
    absl::StrAppend(&text, ", room for ", recipe.workspace_shards, " shards");
  return text;
}

void AddProduct(const AdvisedProduct& product, const std::string& place, const std::string& memory,
                Table* table) {
  table->AddRow({place, Time(product.plan.time_ns), Time(product.gemm_ns),
                 FormatBytes(product.received_bytes), memory,
                 SplitText(product.problem, product.plan.recipe.split), SpecText(product.problem)},
                PlanOf(product));
}

std::string CountsText(const AdviceRequest& request, const AdviceAnswer& answer) {
  std::string text = absl::StrFormat("%d combinations of shardings and splits, %d simulated",
                                     answer.candidates, answer.simulated);
  if (answer.too_large > 0) {
    absl::StrAppendFormat(&text, ", %d left out because they need more than %s", answer.too_large,
                          FormatBytes(request.memory_bytes));
  }
  return text;
}

}  // namespace

std::string AdviceText(const AdviceRequest& request, const Platform& platform,
                       const AdviceAnswer& answer) {
  const Problem& first = request.products.front();
  Fields fields;
  fields.Add("machine", absl::StrCat(platform.machine.name, ", mesh ", first.mesh.ToString()));
  if (request.memory_bytes != kNoLimit)
    fields.Add("memory", FormatBytes(request.memory_bytes) + " a rank");
  fields.Add("compared", CountsText(request, answer));
  Table table({Number("place"), Number("T"), Number("T_gemm"), Number("into a rank"),
               Number("memory"), Words("split"), WrappedWords("shardings")});
  bool any_shared = false;
  for (const Advice& advice : answer.ranked) {
    const std::string place = absl::StrCat(advice.is_shared ? "=" : "", advice.place);
    const std::string memory = FormatBytes(advice.memory_bytes);
    any_shared |= advice.is_shared;
    if (advice.products.size() == 1) {
      AddProduct(advice.products.front(), place, memory, &table);
      continue;
    }
    table.AddRow({place, Time(advice.time_ns), Time(advice.gemm_ns),
                  FormatBytes(advice.received_bytes), memory, "", "all products"});
    for (const AdvisedProduct& product : advice.products) AddProduct(product, "", "", &table);
  }
  std::string text = absl::StrCat(fields.ToString(), "\n", table.ToString(), "\n");
  absl::StrAppend(&text, Wrap(absl::StrCat("place 1: ", answer.why)), "\n");
  if (any_shared) {
    absl::StrAppend(&text, Wrap("=: within 1 % of each other, or each is the other one transposed"),
                    "\n");
  }
  return text;
}

Json AdviceJson(const AdviceRequest& request, const Platform& platform,
                const AdviceAnswer& answer) {
  Json ranked = Json::array();
  for (const Advice& advice : answer.ranked) {
    Json products = Json::array();
    for (const AdvisedProduct& product : advice.products) {
      const Problem& problem = product.problem;
      const Recipe& recipe = product.plan.recipe;
      Json moves = Json::array();
      for (const OperandMove& move : product.moves) {
        Json axes = Json::array();
        for (const int axis : move.axes) axes.push_back(problem.mesh.axes[axis].name);
        moves.push_back({{"collective", NameOf(move.kind)},
                         {"operand", problem.tensors[move.operand].name},
                         {"axes", axes},
                         {"bytes", static_cast<int64_t>(move.bytes)}});
      }
      products.push_back({{"spec", SpecText(problem)},
                          {"split", SplitText(problem, recipe.split)},
                          {"algorithm", product.plan.algorithm},
                          {"chunks", recipe.chunks},
                          {"k_chunks", recipe.k_chunks},
                          {"workspace_shards", recipe.workspace_shards},
                          {"workspace_bytes", product.plan.workspace_bytes},
                          {"time_ns", product.plan.time_ns},
                          {"gemm_ns", product.gemm_ns},
                          {"received_bytes", product.received_bytes},
                          {"moves", moves}});
    }
    ranked.push_back({{"place", advice.place},
                      {"is_shared", advice.is_shared},
                      {"time_ns", advice.time_ns},
                      {"gemm_ns", advice.gemm_ns},
                      {"received_bytes", advice.received_bytes},
                      {"memory_bytes", advice.memory_bytes},
                      {"products", products}});
  }
  const Machine& machine = platform.machine;
  return {{"schema", "agmm.advice.v1"},
          {"machine", {{"name", machine.name}, {"version", machine.version}}},
          {"mesh", request.products.front().mesh.ToString()},
          {"memory_bytes",
           request.memory_bytes == kNoLimit ? Json(nullptr) : Json(request.memory_bytes)},
          {"candidates", answer.candidates},
          {"too_large", answer.too_large},
          {"simulated", answer.simulated},
          {"least_bytes", answer.least_bytes},
          {"why", answer.why},
          {"ranked", ranked}};
}

absl::Status NothingFits(const AdviceRequest& request, const AdviceAnswer& answer) {
  return absl::ResourceExhaustedError(absl::StrFormat(
      "none of %d combinations of shardings and splits fits into %s a rank; the smallest needs at "
      "least %s; use more ranks, or allow more memory",
      answer.candidates, FormatBytes(request.memory_bytes), FormatBytes(answer.least_bytes)));
}

}  // namespace agmm
