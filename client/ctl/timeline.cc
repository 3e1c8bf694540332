#include "client/ctl/timeline.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <utility>
#include <variant>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr size_t kMinColumns = 60;
// The columns of the share behind a line: "  100 %".
constexpr size_t kShareColumns = 7;
constexpr int kMinTickColumns = 10;

// The kinds of time in the order of their precedence: a moment has the first kind that fits. Time
// of a rank outside this epoch is blank.
struct Kind {
  char letter;
  const char* name;
};
constexpr std::array<Kind, 5> kKinds = {{{'M', "multiply"},
                                         {'+', "add"},
                                         {'-', "transfer only"},
                                         {'.', "wait"},
                                         {' ', "blank: another epoch"}}};
enum { kMultiply, kAdd, kTransfer, kWait, kOther };

struct Interval {
  int64_t begin_ns = 0, end_ns = 0;
};

// Columns of equal times from 0 to the end of the slowest rank.
struct Scale {
  int64_t end_ns = 0;
  int columns = 0;
  double column_ns() const { return static_cast<double>(end_ns) / columns; }
};

// Returns, by column, the ns in which at least one of the intervals runs.
std::vector<double> Covered(std::vector<Interval> intervals, const Scale& scale) {
  absl::c_sort(intervals,
               [](const Interval& x, const Interval& y) { return x.begin_ns < y.begin_ns; });
  std::vector<double> covered(scale.columns, 0);
  int64_t until = 0;
  for (const Interval& one : intervals) {
    const auto begin = static_cast<double>(std::max(one.begin_ns, until));
    const auto end = static_cast<double>(std::min(one.end_ns, scale.end_ns));
    until = std::max(until, one.end_ns);
    for (int column = static_cast<int>(begin / scale.column_ns());
         column < scale.columns && column * scale.column_ns() < end; ++column) {
      covered[column] += std::min(end, (column + 1) * scale.column_ns()) -
                         std::max(begin, column * scale.column_ns());
    }
  }
  return covered;
}

// The intervals of a rank's epoch by the kind of its time: those of kWait are all of the epoch.
using Intervals = std::array<std::vector<Interval>, kOther>;

std::vector<Intervals> IntervalsOf(const Schedule& schedule, const Simulation& simulation) {
  std::vector<Intervals> by_rank(schedule.ranks.size());
  const auto add = [&](Rank rank, int kind, int64_t begin_ns, int64_t end_ns) {
    const RankUse& use = simulation.ranks[rank];
    const Interval one = {std::max(begin_ns, use.begin_ns), std::min(end_ns, use.end_ns)};
    if (one.begin_ns < one.end_ns) by_rank[rank][kind].push_back(one);
  };
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    add(rank, kWait, simulation.ranks[rank].begin_ns, simulation.ranks[rank].end_ns);
    for (size_t index = 0; index < schedule.ranks[rank].size(); ++index) {
      const Step& step = schedule.ranks[rank][index];
      const StepTimes& times = simulation.steps[rank][index];
      if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
        const int64_t end_ns = std::max(times.end_ns, times.arrived_ns);
        add(rank, kTransfer, times.start_ns, end_ns);
        for (const Place& to : transfer->to)
          if (to.rank != rank) add(to.rank, kTransfer, times.start_ns, end_ns);
      } else if (!std::holds_alternative<Join>(step.op)) {
        const int kind = std::holds_alternative<Multiply>(step.op) ? kMultiply : kAdd;
        add(rank, kind, times.start_ns, times.end_ns);
      }
    }
  }
  return by_rank;
}

std::string CellsOf(const Intervals& intervals, const Scale& scale) {
  std::vector<Interval> all;
  std::array<std::vector<double>, kOther> up_to;  // covered by this kind or those before it
  for (int kind = 0; kind < kOther; ++kind) {
    all.insert(all.end(), intervals[kind].begin(), intervals[kind].end());
    up_to[kind] = Covered(all, scale);
  }
  std::string cells;
  for (int column = 0; column < scale.columns; ++column) {
    std::array<double, kKinds.size()> share;
    double before = 0;
    for (int kind = 0; kind < kOther; ++kind) {
      share[kind] = up_to[kind][column] - before;
      before = up_to[kind][column];
    }
    share[kOther] = scale.column_ns() - before;
    // Shares that differ by rounding alone count as equal.
    int most = kMultiply;
    for (int kind = 1; kind <= kOther; ++kind)
      if (share[kind] > share[most] + 1e-6 * scale.column_ns()) most = kind;
    cells += kKinds[most].letter;
  }
  return cells;
}

// Returns the smallest of 1, 2 and 5 times a power of ten ns that takes enough columns.
double TickNs(const Scale& scale) {
  double tick_ns = 1;
  for (int i = 0; tick_ns < kMinTickColumns * scale.column_ns(); ++i)
    tick_ns *= i % 3 == 1 ? 2.5 : 2;
  return tick_ns;
}

// "|0        |100      |200", in us.
std::string AxisText(const Scale& scale) {
  const double tick_ns = TickNs(scale);
  std::string line(scale.columns, ' ');
  for (int i = 0; i * tick_ns < static_cast<double>(scale.end_ns); ++i) {
    const auto column = static_cast<size_t>(std::llround(i * tick_ns / scale.column_ns()));
    const std::string label = absl::StrFormat("|%g", i * tick_ns / 1000);
    if (column + label.size() > line.size()) line.resize(column + label.size(), ' ');
    line.replace(column, label.size(), label);
  }
  absl::StripTrailingAsciiWhitespace(&line);
  return line;
}

// Returns the legend, without the rare kinds that no line has.
std::string LegendText(const std::vector<std::string>& lines) {
  std::string text;
  for (int kind = 0; kind <= kOther; ++kind) {
    const auto [letter, name] = kKinds[kind];
    const bool is_rare = kind == kAdd || kind == kOther;
    if (is_rare && absl::c_none_of(lines, [letter = letter](const std::string& line) {
          return line.find(letter) != std::string::npos;
        }))
      continue;
    absl::StrAppend(&text, text.empty() ? "" : "  ",
                    letter == ' ' ? "" : absl::StrFormat("%c ", letter), name);
  }
  return text;
}

}  // namespace

std::string TimelineText(const Problem& problem, const Schedule& schedule,
                         const Simulation& simulation, size_t columns) {
  const int ranks = static_cast<int>(simulation.ranks.size()),
            shown = std::min(ranks, kTimelineRanks);
  Scale scale;
  for (const RankUse& use : simulation.ranks) scale.end_ns = std::max(scale.end_ns, use.end_ns);
  if (scale.end_ns == 0) return "";
  size_t indent = 0;
  for (Rank rank = 0; rank < shown; ++rank)
    indent = std::max(indent, absl::StrCat("rank ", problem.mesh.ranks[rank], "  ").size());
  scale.columns = static_cast<int>(std::max(columns, kMinColumns) - indent - kShareColumns);
  const std::vector<Intervals> intervals = IntervalsOf(schedule, simulation);
  std::vector<std::string> cells;
  std::string text;
  for (Rank rank = 0; rank < shown; ++rank) {
    cells.push_back(CellsOf(intervals[rank], scale));
    const RankUse& use = simulation.ranks[rank];
    const auto time_ns = static_cast<double>(std::max<int64_t>(1, use.end_ns - use.begin_ns));
    std::string name = absl::StrCat("rank ", problem.mesh.ranks[rank]);
    name.resize(indent, ' ');
    absl::StrAppendFormat(&text, "%s%s  %3.0f %%\n", name, cells.back(),
                          100 * static_cast<double>(use.multiply_ns) / time_ns);
  }
  absl::StrAppendFormat(&text, "%*s  %s\n", static_cast<int>(indent - 2), "us", AxisText(scale));
  absl::StrAppend(&text, std::string(indent, ' '), LegendText(cells), "\n");
  if (ranks > shown) absl::StrAppend(&text, "... ", Counted(ranks - shown, "more rank"), "\n");
  return text;
}

}  // namespace agmm
