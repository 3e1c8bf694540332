#include "kernels/schedule/verify.h"

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/verify_internal.h"

namespace agmm {
namespace verify {

std::vector<Access> AccessesOf(const Step& step, Rank rank, int index) {
  std::vector<Access> out;
  auto add = [&](const Block& block, const Place& place, bool write, int to = -1,
                 bool is_from = false) {
    out.push_back({rank, index, to, write, is_from, block, place});
  };
  if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
    if (transfer->to.empty()) return out;
    add(transfer->block, transfer->from, false, -1, true);
    for (int i = 0; i < static_cast<int>(transfer->to.size()); ++i) {
      add(transfer->block, transfer->to[i], true, IsArrival(step, rank, i) ? i : -1);
    }
  } else if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
    add(multiply->a, multiply->a_place, false);
    add(multiply->b, multiply->b_place, false);
    if (multiply->acc) add(multiply->c, *multiply->acc, !multiply->finish);
    if (multiply->finish) add(multiply->c, multiply->out, true);
  } else {
    const Reduce& reduce = std::get<Reduce>(step.op);
    add(reduce.c, reduce.from, false);
    add(reduce.c, reduce.into, true);
    if (reduce.finish) add(reduce.c, reduce.out, true);
  }
  return out;
}

std::string BlockName(const Problem& problem, const Block& block) {
  return absl::StrFormat("%s[%d:%d, %d:%d]", problem.tensors[block.operand].name, block.rows.begin,
                         block.rows.end, block.cols.begin, block.cols.end);
}

std::string BufferName(const Problem& problem, Rank rank, Buffer buffer) {
  return absl::StrFormat("rank %d's %s", rank,
                         buffer == kWorkspace ? "workspace" : problem.tensors[buffer].name);
}

std::string PlacedName(const Problem& problem, const Block& block, const Place& place) {
  return absl::StrFormat("%s at byte %d of %s", BlockName(problem, block), place.offset_bytes,
                         BufferName(problem, place.rank, place.buffer));
}

}  // namespace verify

absl::Status Verify(const Problem& problem, const Topology& topology, const Schedule& schedule) {
  AGMM_RETURN_IF_ERROR(Validate(problem));
  AGMM_RETURN_IF_ERROR(verify::CheckStructure(problem, topology, schedule));
  AGMM_ASSIGN_OR_RETURN(const Order order, Order::Build(schedule));
  AGMM_RETURN_IF_ERROR(verify::CheckRaces(problem, schedule, order));
  return verify::CheckContents(problem, schedule, order);
}

}  // namespace agmm
