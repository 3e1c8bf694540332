#include "client/ctl/chain_text.h"

#include <algorithm>
#include <variant>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/table.h"
#include "client/ctl/time_unit.h"
#include "kernels/base/units.h"
#include "kernels/schedule/order.h"
#include "kernels/schedule/text.h"

namespace agmm {
namespace {

const Step& StepOf(const Schedule& schedule, const ChainPart& part) {
  return schedule.ranks[part.rank][part.step];
}

// Returns the only other rank that a transfer goes to, or -1.
Rank ReceiverOf(const Transfer& transfer) {
  Rank receiver = -1;
  for (const Place& to : transfer.to) {
    if (to.rank == transfer.from.rank) continue;
    if (receiver >= 0) return -1;
    receiver = to.rank;
  }
  return receiver;
}

// Returns true if the rank of `next` forwards the block that it waited for in `part`.
bool Forwards(const Schedule& schedule, const ChainPart& part, const ChainPart& next) {
  const auto *transfer = std::get_if<Transfer>(&StepOf(schedule, part).op),
             *onward = std::get_if<Transfer>(&StepOf(schedule, next).op);
  return transfer != nullptr && onward != nullptr && transfer->block == onward->block &&
         ReceiverOf(*transfer) == next.rank && ReceiverOf(*onward) >= 0;
}

bool BelongTogether(const Schedule& schedule, const ChainPart& part, const ChainPart& next) {
  if (part.step == kEnvironment || next.step == kEnvironment) return false;
  if (part.waits != next.waits) return false;
  if (part.waits) return Forwards(schedule, part, next);
  return part.rank == next.rank &&
         StepOf(schedule, part).op.index() == StepOf(schedule, next).op.index();
}

std::string RankName(const Problem& problem, Rank rank) {
  return absl::StrCat("rank ", problem.mesh.ranks[rank]);
}

// The text of several parts that belong together.
std::string TextOf(const Problem& problem, const Schedule& schedule, const ChainPart& first,
                   const ChainPart& last, size_t parts) {
  const std::string time = FormatMicros(static_cast<double>(last.end_ns - first.begin_ns) / 1000);
  if (first.waits) {
    const auto& transfer = std::get<Transfer>(StepOf(schedule, last).op);
    return absl::StrFormat("%s waits %s for %s from %s, over %d hops",
                           RankName(problem, ReceiverOf(transfer)), time,
                           PartText(problem, transfer.block), RankName(problem, first.rank), parts);
  }
  return absl::StrFormat("%s, %s: %d steps, from \"%s\" to \"%s\"", RankName(problem, first.rank),
                         time, parts, Describe(problem, StepOf(schedule, first)),
                         Describe(problem, StepOf(schedule, last)));
}

}  // namespace

std::vector<ChainLine> ChainLines(const Problem& problem, const Schedule& schedule,
                                  const std::vector<ChainPart>& chain) {
  std::vector<ChainLine> lines;
  for (size_t first = 0, end = 0; first < chain.size(); first = end) {
    for (end = first + 1; end < chain.size(); ++end)
      if (!BelongTogether(schedule, chain[end - 1], chain[end])) break;
    const ChainPart& last = chain[end - 1];
    const size_t parts = end - first;
    lines.push_back(
        {chain[first].begin_ns, last.end_ns, parts,
         parts == 1 ? last.text : TextOf(problem, schedule, chain[first], last, parts)});
  }
  return lines;
}

std::string ChainText(const std::vector<ChainLine>& lines) {
  const TimeUnit unit = TimeUnitOf(lines.empty() ? 0 : lines.back().end_ns);
  Table table({Number("at", unit.name), WrappedWords("")});
  const size_t shown = std::min(lines.size(), kChainLines);
  for (size_t i = 0; i < shown; ++i) table.AddRow({InUnit(lines[i].begin_ns, unit), lines[i].text});
  if (shown < lines.size()) table.AddRow({"", absl::StrCat("... ", lines.size() - shown, " more")});
  return table.ToString();
}

}  // namespace agmm
