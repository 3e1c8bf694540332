#include "client/ctl/plan_json.h"

#include <optional>

#include "absl/strings/str_cat.h"
#include "kernels/base/hash.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan_hash.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

class Writer {
 public:
  explicit Writer(const Problem& problem) : problem_(problem) {}

  Json Of(const PlanReport& planned) const {
    const Topology& topology = planned.topology;
    const Schedule& schedule = planned.schedule;
    Json ranks = Json::array();
    for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
      ranks.push_back({{"rank", rank},
                       {"node", topology.node_of_rank[rank]},
                       {"steps", Of(schedule.ranks[rank])}});
    }
    return {
        {"schema", "agmm.plan.v1"},
        {"format", 3},
        {"algorithm", schedule.algorithm},
        {"hash", HashHex(PlanHash(problem_, schedule))},
        {"problem", OfProblem()},
        {"topology", {{"node_of_rank", topology.node_of_rank}}},
        {"options", OptionsJson(planned.options)},
        {"why", planned.why.empty() ? Json(nullptr) : Json(planned.why)},
        {"refused_by_daemons", planned.refused.empty() ? Json(nullptr) : Json(planned.refused)},
        {"moved", OfMoved(planned)},
        {"workspace_bytes", schedule.workspace_bytes},
        {"bounded", planned.bounded ? Json{{"unbounded_bytes", planned.bounded->unbounded_bytes},
                                           {"sum_bytes", planned.bounded->sum_bytes}}
                                    : Json(nullptr)},
        {"ranks", ranks}};
  }

  Json OfProblem() const {
    Json names = Json::array();
    for (const Tensor& tensor : problem_.tensors) names.push_back(tensor.name);
    return {{"spec", SpecText(problem_)},
            {"mesh", {{"axes", Of(problem_.mesh.axes)}, {"ranks", problem_.mesh.ranks}}},
            {"m", ShapeOf(problem_).m},
            {"n", ShapeOf(problem_).n},
            {"k", ShapeOf(problem_).k},
            {"tensors", names},
            {"collective", HasProduct(problem_) ? Json(nullptr) : Json(CollectiveName(problem_))},
            {"operands", Of(problem_.tensors)}};
  }

 private:
  template <typename T>
  Json Of(const std::vector<T>& items) const {
    Json list = Json::array();
    for (const T& item : items) list.push_back(Of(item));
    return list;
  }

  static Json OfMoved(const PlanReport& planned) {
    Traffic sum;
    for (const Traffic& traffic : planned.traffic) sum += traffic;
    return {{"own_node", sum.own_node()},
            {"other_nodes", sum.other_nodes},
            {"least_other_nodes", planned.least_between_nodes}};
  }

  Json Of(const Axis& axis) const { return {{"name", axis.name}, {"size", axis.size}}; }
  Json Of(const Tensor& tensor) const {
    return {{"name", tensor.name},
            {"rows", tensor.rows},
            {"cols", tensor.cols},
            {"dtype", Of(tensor.dtype)},
            {"row_dim", tensor.row_dim},
            {"col_dim", tensor.col_dim},
            {"row_axes", AxisNames(tensor.sharding.rows)},
            {"col_axes", AxisNames(tensor.sharding.cols)},
            {"open_axes", AxisNames(tensor.sharding.open)}};
  }
  Json AxisNames(const std::vector<int>& axes) const {
    Json names = Json::array();
    for (int axis : axes) names.push_back(problem_.mesh.axes[axis].name);
    return names;
  }
  Json Of(DType dtype) const { return std::string(Name(dtype)); }

  Json Of(const Step& step) const {
    Json json = {{"lane", step.lane}};
    json["op"] = OpName(step.op);
    ForEachField(step.op, [&](const char* name, const auto& field) { json[name] = Of(field); });
    json.update({{"waits", Of(step.waits)}, {"signals", Of(step.signals)}});
    return json;
  }
  Json Of(const Block& block) const {
    return {{"operand", OperandText(problem_, block.operand)},
            {"rows", {block.rows.begin, block.rows.end}},
            {"cols", {block.cols.begin, block.cols.end}}};
  }
  Json Of(const Place& place) const {
    return {{"rank", place.rank},
            {"buffer", OperandText(problem_, place.buffer)},
            {"offset", place.offset_bytes},
            {"pitch", place.pitch_bytes},
            {"dtype", Of(place.dtype)}};
  }
  Json Of(const std::optional<Place>& place) const { return place ? Of(*place) : Json(nullptr); }
  static Json Of(int number) { return number; }
  static Json Of(bool flag) { return flag; }
  Json Of(const Wait& wait) const { return {{"slot", Of(wait.slot)}, {"lag", wait.lag}}; }
  Json Of(const Slot& slot) const { return absl::StrCat(slot.rank, ":", slot.index); }

  const Problem& problem_;
};

}  // namespace

Json PlanJson(const PlanReport& planned) { return Writer(planned.problem).Of(planned); }

Json ProblemJson(const Problem& problem) { return Writer(problem).OfProblem(); }

Json OptionsJson(const PlanOptions& options) {
  return {{"split", options.split},
          {"chunks", options.chunks},
          {"k_chunks", options.k_chunks},
          {"workspace_shards", options.workspace_shards},
          {"partials", std::string(Name(options.partials))},
          {"carried", options.carried}};
}

}  // namespace agmm
