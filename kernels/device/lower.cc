#include "kernels/device/lower.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/verify.h"

namespace agmm {
namespace {

// Bounds on the bytes that a rank pushes to a node in an epoch, so that they do not wait until the
// receiver, which may be busy with a multiply, asks for them. Per rank, about the size of a
// socket's buffers; for all of the plan's ranks on a node, a quarter of what the receiver parks for
// a peer (daemon/transport/plan_messages.h), because two plans may run at a time.
constexpr int64_t kPushBytes = 1 << 20, kPushBytesOfNode = 16 << 20;

// By operand: whether a step writes it. Then its version does not identify its contents.
std::vector<bool> WrittenOperands(const Problem& problem, const Schedule& schedule) {
  const size_t operands = problem.tensors.size();
  std::vector<bool> written(operands, false);
  for (const std::vector<Step>& steps : schedule.ranks) {
    for (const Step& step : steps) {
      ForEachPlace(step.op, [&](const Block&, const Place& place, Use use) {
        if (use != Use::kRead && place.buffer >= 0 && place.buffer < static_cast<Buffer>(operands))
          written[place.buffer] = true;
      });
    }
  }
  return written;
}

class Lowering {
 public:
  explicit Lowering(const RankPlan& plan) : plan_(plan), peers_(plan.peers) {}

  absl::StatusOr<LoweredRank> Run() {
    AGMM_RETURN_IF_ERROR(plan_.CheckPeers());
    AGMM_RETURN_IF_ERROR(VerifySteps(plan_.problem, Topology{peers_.nodes, peers_.islands},
                                     *plan_.schedule, peers_.self));
    const std::vector<Step>& steps = plan_.steps();
    written_ = WrittenOperands(plan_.problem, *plan_.schedule);
    ranks_of_node_ =
        std::count(peers_.nodes.begin(), peers_.nodes.end(), peers_.nodes[peers_.self]);
    lowered_.slots = SlotCounts(*plan_.schedule)[peers_.self];
    lowered_.lanes.resize(LaneCount(steps));
    for (size_t i = 0; i < steps.size(); ++i) {
      LoweredStep& lowered = lowered_.steps.emplace_back();
      lowered.lane = steps[i].lane;
      lowered.waits = steps[i].waits;
      if (absl::Status status = LowerSignals(steps[i], &lowered); !status.ok())
        return Annotate(status, plan_.MeshStepName(static_cast<int>(i)));
      std::visit([&](const auto& op) { lowered.op = LowerOp(op); }, steps[i].op);
      lowered_.lanes[steps[i].lane].push_back(static_cast<int>(i));
    }
    for (const Step& step : steps) GateCarrier(step);
    return std::move(lowered_);
  }

 private:
  absl::Status LowerSignals(const Step& step, LoweredStep* lowered) const {
    for (const Slot& slot : step.signals) {
      const bool local = plan_.IsLocal(slot.rank);
      if (!local && peers_.transport == nullptr)
        return absl::InvalidArgumentError(absl::StrFormat(
            "raises a slot of rank %d on another node, and the plan has no transport", slot.rank));
      lowered->signals.push_back(
          {slot.index, local ? peers_.executors[slot.rank] : nullptr, peers_.nodes[slot.rank]});
    }
    return absl::OkStatus();
  }

  CopyOp LowerOp(const Transfer& transfer) {
    CopyOp op;
    op.rows = transfer.block.rows.size();
    op.cols = transfer.block.cols.size();
    op.from = plan_.Locate(transfer.from);
    op.padded = OwnsGaps(plan_.problem, transfer.block, transfer.from);
    op.push.resize(transfer.to.size());
    for (size_t i = 0; i < transfer.to.size(); ++i) {
      const Place& to = transfer.to[i];
      op.to.push_back(plan_.Locate(to));
      if (plan_.IsLocal(to.rank)) continue;
      op.sends.push_back(static_cast<int>(i));
      op.push[i] = Push(peers_.nodes[to.rank], op.rows * RowBytes(transfer.block, transfer.from));
    }
    return op;
  }

  MultiplyOp LowerOp(const Multiply& multiply) const {
    MultiplyOp op;
    op.rows = multiply.c.rows.size();
    op.n = multiply.c.cols.size();
    op.k = multiply.a.cols.size();
    op.accumulate = multiply.accumulate;
    op.finish = multiply.finish;
    op.has_acc = multiply.acc.has_value();
    op.a = plan_.Locate(multiply.a_place);
    op.b = plan_.Locate(multiply.b_place);
    if (op.has_acc) op.acc = plan_.Locate(*multiply.acc);
    if (op.finish) op.out = plan_.Locate(multiply.out);
    op.b_is_operand = multiply.b_place.buffer != kWorkspace && !written_[multiply.b_place.buffer];
    return op;
  }

  ReduceOp LowerOp(const Reduce& reduce) const {
    ReduceOp op;
    op.rows = reduce.c.rows.size();
    op.cols = reduce.c.cols.size();
    op.accumulate = reduce.accumulate;
    op.finish = reduce.finish;
    op.has_acc = reduce.acc.has_value();
    for (const Place& from : reduce.from) op.from.push_back(plan_.Locate(from));
    if (op.has_acc) op.acc = plan_.Locate(*reduce.acc);
    if (op.finish) op.out = plan_.Locate(reduce.out);
    return op;
  }

  static Join LowerOp(const Join& join) { return join; }

  // Returns true if `bytes` more may be pushed to `node`; then they count as pushed.
  bool Push(int node, int64_t bytes) {
    int64_t& pushed = pushed_[node];
    if (pushed + bytes > std::min(kPushBytes, kPushBytesOfNode / ranks_of_node_)) return false;
    pushed += bytes;
    return true;
  }

  // Makes the waits of a carried transfer gate its multiply too.
  void GateCarrier(const Step& step) {
    const auto* transfer = std::get_if<Transfer>(&step.op);
    if (transfer == nullptr || transfer->carrier == -1) return;
    std::vector<Wait>& gates = lowered_.steps[transfer->carrier].waits;
    for (const Wait& wait : step.waits) {
      if (std::find(gates.begin(), gates.end(), wait) == gates.end()) gates.push_back(wait);
    }
  }

  const RankPlan& plan_;
  const Peers& peers_;
  std::vector<bool> written_;  // by operand
  int64_t ranks_of_node_ = 1;
  std::map<int, int64_t> pushed_;  // bytes, by node
  LoweredRank lowered_;
};

}  // namespace

absl::StatusOr<LoweredRank> LowerRank(const RankPlan& plan) { return Lowering(plan).Run(); }

}  // namespace agmm
