#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm::verify {
namespace {

class Races {
 public:
  Races(const Problem& problem, const Schedule& schedule, const Order& order)
      : problem_(problem), schedule_(schedule), order_(order) {}

  absl::Status Check() {
    std::map<std::pair<Rank, Buffer>, std::vector<Access>> buffers;
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        for (const Access& access : AccessesOf(schedule_.ranks[rank][s], rank, s))
          buffers[{access.place.rank, access.place.buffer}].push_back(access);
      }
    }
    for (auto& [where, placed] : buffers) {
      std::stable_sort(placed.begin(), placed.end(), [](const Access& a, const Access& b) {
        return a.footprint.offset < b.footprint.offset;
      });
      for (size_t i = 0; i < placed.size(); ++i) {
        const Access& x = placed[i];
        if (where.second != kWorkspace) AGMM_RETURN_IF_ERROR(CheckEnvironment(x));
        if (x.write && !Over(x, 0, x, 1)) {
          return Clash(x, "its own write of the next epoch");
        }
        const int64_t end = x.footprint.end();
        for (size_t j = i + 1; j < placed.size() && placed[j].footprint.offset < end; ++j) {
          const Access& y = placed[j];
          if (!x.write && !y.write) continue;
          if (!Overlap(x.footprint, y.footprint)) continue;
          AGMM_RETURN_IF_ERROR(CheckPair(x, y));
        }
      }
    }
    return absl::OkStatus();
  }

 private:
  // Whether `x` of epoch `ex` ends before `y` of epoch `ey` begins.
  bool Over(const Access& x, int ex, const Access& y, int ey) const {
    const Event next = {y.rank, y.step, y.to, ey};
    return Over(x, ex, next);
  }
  bool Over(const Access& x, int ex, const Event& next) const {
    if (order_.Before({x.rank, x.step, x.to, ex}, next)) return true;
    if (!x.is_from) return false;
    // The read of bytes that have arrived everywhere is over.
    const auto& transfer = std::get<Transfer>(schedule_.ranks[x.rank][x.step].op);
    for (int i = 0; i < static_cast<int>(transfer.to.size()); ++i) {
      if (transfer.to[i].rank == x.rank) return false;
      if (!order_.Before({x.rank, x.step, i, ex}, next)) return false;
    }
    return true;
  }

  // Orders `x` with the environment, which writes A and B, reads C and writes it, before each epoch
  // of the place's rank. The order around epoch 0 stands for every epoch.
  absl::Status CheckEnvironment(const Access& x) const {
    if (x.rank == x.place.rank && x.to < 0) return absl::OkStatus();  // launch order
    const Event begin = {x.place.rank, kEnvironment, -1, 0};
    const Event end = {x.place.rank, kEnvironment, -1, 1};
    if (!order_.Before(begin, {x.rank, x.step, x.to, 0})) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s, which rank %d may not have launched yet; wait for a step of that rank", Does(x),
          x.place.rank));
    }
    if (!Over(x, 0, end)) {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s, and rank %d may end its epoch meanwhile; let a step of that rank wait for it",
          Does(x), x.place.rank));
    }
    return absl::OkStatus();
  }

  absl::Status CheckPair(const Access& x, const Access& y) const {
    const bool same_event = x.rank == y.rank && x.step == y.step && x.to == y.to;
    if (same_event || !(Over(x, 0, y, 0) || Over(y, 0, x, 0))) return Clash(x, Does(y));
    if (!Over(x, 0, y, 1)) return Clash(x, Does(y) + " in the next epoch");
    if (!Over(y, 0, x, 1)) return Clash(y, Does(x) + " in the next epoch");
    return absl::OkStatus();
  }

  std::string Does(const Access& x) const {
    return absl::StrFormat("%s %s %s", StepName(schedule_, x.rank, x.step),
                           x.write ? "writes" : "reads", PlacedName(problem_, x.block, x.place));
  }

  absl::Status Clash(const Access& x, const std::string& other) const {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s, on bytes of %s, with no order between them; add a wait or a credit", Does(x), other));
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Order& order_;
};

}  // namespace

absl::Status CheckRaces(const Problem& problem, const Schedule& schedule, const Order& order) {
  return Races(problem, schedule, order).Check();
}

}  // namespace agmm::verify
