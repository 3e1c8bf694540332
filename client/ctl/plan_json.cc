#include "client/ctl/plan_json.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

using Json = nlohmann::ordered_json;

std::string DTypeName(DType dtype) { return std::string(Name(dtype)); }

std::string BufferName(const Problem& problem, Buffer buffer) {
  return buffer == kWorkspace ? "workspace" : problem.tensors[buffer].name;
}

std::string SlotName(const Slot& slot) { return absl::StrCat(slot.rank, ":", slot.index); }

Json RangeJson(const Range& range) { return Json::array({range.begin, range.end}); }

Json BlockJson(const Problem& problem, const Block& block) {
  return {{"operand", problem.tensors[block.operand].name},
          {"rows", RangeJson(block.rows)},
          {"cols", RangeJson(block.cols)}};
}

Json PlaceJson(const Problem& problem, const Place& place) {
  return {{"rank", place.rank},
          {"buffer", BufferName(problem, place.buffer)},
          {"offset", place.offset_bytes},
          {"pitch", place.pitch_bytes},
          {"dtype", DTypeName(place.dtype)}};
}

void AddOp(const Problem& problem, const Transfer& op, Json* step) {
  (*step)["op"] = "transfer";
  (*step)["block"] = BlockJson(problem, op.block);
  (*step)["from"] = PlaceJson(problem, op.from);
  (*step)["to"] = Json::array();
  for (const Place& place : op.to) (*step)["to"].push_back(PlaceJson(problem, place));
  (*step)["carrier"] = op.carrier;
}

void AddOp(const Problem& problem, const Multiply& op, Json* step) {
  (*step)["op"] = "multiply";
  (*step)["a"] = BlockJson(problem, op.a);
  (*step)["b"] = BlockJson(problem, op.b);
  (*step)["c"] = BlockJson(problem, op.c);
  (*step)["a_place"] = PlaceJson(problem, op.a_place);
  (*step)["b_place"] = PlaceJson(problem, op.b_place);
  (*step)["acc"] = op.acc ? PlaceJson(problem, *op.acc) : Json(nullptr);
  (*step)["out"] = PlaceJson(problem, op.out);
  (*step)["accumulate"] = op.accumulate;
  (*step)["finish"] = op.finish;
}

void AddOp(const Problem& problem, const Reduce& op, Json* step) {
  (*step)["op"] = "reduce";
  (*step)["c"] = BlockJson(problem, op.c);
  (*step)["from"] = PlaceJson(problem, op.from);
  (*step)["into"] = PlaceJson(problem, op.into);
  (*step)["out"] = PlaceJson(problem, op.out);
  (*step)["finish"] = op.finish;
}

Json StepJson(const Problem& problem, const Step& step) {
  Json json;
  json["lane"] = step.lane;
  std::visit([&](const auto& op) { AddOp(problem, op, &json); }, step.op);
  json["waits"] = Json::array();
  for (const Wait& wait : step.waits)
    json["waits"].push_back({{"slot", SlotName(wait.slot)}, {"lag", wait.lag}});
  json["signals"] = Json::array();
  for (const Slot& slot : step.signals) json["signals"].push_back(SlotName(slot));
  return json;
}

Json AxisNames(const Mesh& mesh, const std::vector<int>& axes) {
  Json names = Json::array();
  for (int axis : axes) names.push_back(mesh.axes[axis].name);
  return names;
}

Json ProblemJson(const Problem& problem) {
  const Mesh& mesh = problem.mesh;
  Json axes = Json::array(), names = Json::array(), operands = Json::array();
  for (const Axis& axis : mesh.axes) axes.push_back({{"name", axis.name}, {"size", axis.size}});
  for (const Tensor& tensor : problem.tensors) {
    names.push_back(tensor.name);
    operands.push_back({{"name", tensor.name},
                        {"rows", tensor.rows},
                        {"cols", tensor.cols},
                        {"dtype", DTypeName(tensor.dtype)},
                        {"row_dim", tensor.row_dim},
                        {"col_dim", tensor.col_dim},
                        {"row_axes", AxisNames(mesh, tensor.sharding.rows)},
                        {"col_axes", AxisNames(mesh, tensor.sharding.cols)}});
  }
  return {{"spec", absl::StrFormat("%s * %s -> %s", ToString(mesh, problem.tensors[kA]),
                                   ToString(mesh, problem.tensors[kB]),
                                   ToString(mesh, problem.tensors[kC]))},
          {"mesh", {{"axes", axes}, {"ranks", mesh.ranks}}},
          {"m", problem.m()},
          {"n", problem.n()},
          {"k", problem.k()},
          {"tensors", names},
          {"operands", operands}};
}

}  // namespace

Json PlanJson(const Problem& problem, const Topology& topology, const Schedule& schedule) {
  Json ranks = Json::array();
  for (Rank rank = 0; rank < static_cast<int>(schedule.ranks.size()); ++rank) {
    Json steps = Json::array();
    for (const Step& step : schedule.ranks[rank]) steps.push_back(StepJson(problem, step));
    ranks.push_back({{"rank", rank}, {"node", topology.node_of_rank[rank]}, {"steps", steps}});
  }
  return {{"schema", "agmm.plan.v1"},
          {"format", 1},
          {"algorithm", schedule.algorithm},
          {"hash", HashHex(PlanHash(problem, schedule))},
          {"problem", ProblemJson(problem)},
          {"topology", {{"node_of_rank", topology.node_of_rank}}},
          {"workspace_bytes", schedule.workspace_bytes},
          {"ranks", ranks}};
}

}  // namespace agmm
