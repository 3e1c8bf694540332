#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/questions.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm {
namespace {

// Pairs of accesses that the order does not settle at once are kept until all questions are
// answered together. The error is the first clash in their order.
class Races {
 public:
  Races(const Problem& problem, const Schedule& schedule, const Order& order)
      : problem_(problem), schedule_(schedule), questions_(order) {}

  absl::Status Check() {
    absl::Status clash;
    for (const auto& [buffer, users] : UsersByBuffer()) {
      clash = CheckBuffer(buffer, users);
      if (!clash.ok()) break;
    }
    // An answer may raise the next question.
    while (!doubts_.empty()) {
      questions_.Settle();
      for (const Doubt& doubt : std::exchange(doubts_, {})) {
        const Verdict verdict = Judge(doubt.rule, AccessOf(doubt.x), AccessOf(doubt.y));
        AGMM_RETURN_IF_ERROR(verdict.clash);
        if (verdict.unknown) doubts_.push_back(doubt);
      }
    }
    return clash;
  }

 private:
  using Place = std::pair<Rank, Buffer>;
  // A compact reference to an access.
  struct User {
    Rank rank = 0;
    int step = 0, access = 0;
  };
  struct Placed {
    Access access;
    User user;
    Footprint footprint;
  };
  enum class Rule { kEnvironment, kNextEpoch, kPair };
  struct Doubt {
    Rule rule;
    User x, y;
  };
  struct Verdict {
    absl::Status clash;
    bool unknown = false;  // the order has not been settled
  };

  Access AccessOf(const User& user) const {
    return AccessesOf(schedule_.ranks[user.rank][user.step], user.rank, user.step)[user.access];
  }

  template <typename Use>
  void ForEachAccess(Use use) const {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        const auto accesses = AccessesOf(schedule_.ranks[rank][s], rank, s);
        for (int i = 0; i < static_cast<int>(accesses.size()); ++i)
          use(accesses[i], User{rank, s, i});
      }
    }
  }

  // Leaves out accesses that cannot clash: reads of the rank's own buffers that no step writes.
  std::map<Place, std::vector<User>> UsersByBuffer() const {
    std::map<Place, std::vector<User>> users;
    ForEachAccess([&](const Access& access, const User&) {
      if (access.write) users[{access.place.rank, access.place.buffer}];
    });
    ForEachAccess([&](const Access& access, const User& user) {
      const auto written = users.find({access.place.rank, access.place.buffer});
      if (written != users.end()) {
        written->second.push_back(user);
      } else if (access.rank != access.place.rank) {
        users[{access.place.rank, access.place.buffer}].push_back(user);
      }
    });
    return users;
  }

  absl::Status CheckBuffer(const Place& buffer, const std::vector<User>& users) {
    std::vector<Placed> placed;
    placed.reserve(users.size());
    for (const User& user : users) {
      const Access access = AccessOf(user);
      placed.push_back({access, user, FootprintOf(problem_, access)});
    }
    std::stable_sort(placed.begin(), placed.end(), [](const Placed& x, const Placed& y) {
      return x.footprint.offset < y.footprint.offset;
    });
    const bool written = std::any_of(placed.begin(), placed.end(),
                                     [](const Placed& one) { return one.access.write; });
    const auto check = [&](Rule rule, const Placed& x, const Placed& y) {
      Verdict verdict = Judge(rule, x.access, y.access);
      if (verdict.unknown) doubts_.push_back({rule, x.user, y.user});
      return std::move(verdict.clash);
    };
    for (size_t i = 0; i < placed.size(); ++i) {
      const Placed& x = placed[i];
      if (buffer.second != kWorkspace) AGMM_RETURN_IF_ERROR(check(Rule::kEnvironment, x, x));
      if (x.access.write) AGMM_RETURN_IF_ERROR(check(Rule::kNextEpoch, x, x));
      const int64_t end = x.footprint.end();
      for (size_t j = i + 1; written && j < placed.size() && placed[j].footprint.offset < end;
           ++j) {
        const Placed& y = placed[j];
        if ((!x.access.write && !y.access.write) || !Overlap(x.footprint, y.footprint)) continue;
        AGMM_RETURN_IF_ERROR(check(Rule::kPair, x, y));
      }
    }
    return absl::OkStatus();
  }

  Verdict Judge(Rule rule, const Access& x, const Access& y) {
    switch (rule) {
      case Rule::kEnvironment: return WithEnvironment(x);
      case Rule::kNextEpoch:
        return Unless(Over(x, 0, x, 1),
                      [&] { return Clash(x, "its own write of the next epoch"); });
      case Rule::kPair: break;
    }
    return Pair(x, y);
  }

  // Returns the verdict that follows from `ordered` alone.
  template <typename Clash>
  static Verdict Unless(Known ordered, const Clash& clash) {
    if (ordered == Known::kYes) return {};
    return ordered == Known::kUnknown ? Verdict{absl::OkStatus(), true} : Verdict{clash()};
  }

  // Returns kYes if `x` of epoch `ex` ends before `y` of epoch `ey` begins.
  Known Over(const Access& x, int ex, const Access& y, int ey) {
    return Over(x, ex, Event{y.rank, y.step, y.to, ey});
  }
  Known Over(const Access& x, int ex, const Event& next) {
    const Known over = questions_.Before({x.rank, x.step, x.to, ex}, next);
    if (over == Known::kYes || !x.is_from) return over;
    // The read has ended once the bytes have arrived everywhere.
    const auto& transfer = std::get<Transfer>(schedule_.ranks[x.rank][x.step].op);
    Known arrived = Known::kYes;
    for (int i = 0; i < static_cast<int>(transfer.to.size()); ++i) {
      const Known one = transfer.to[i].rank == x.rank
                            ? Known::kNo
                            : questions_.Before({x.rank, x.step, i, ex}, next);
      if (one == Known::kNo) return over;
      if (one == Known::kUnknown) arrived = one;
    }
    return arrived;
  }

  // Checks that `x` is ordered with the environment of the place's rank, which writes A and B,
  // reads C and writes it before each epoch. The order around epoch 0 stands for every epoch.
  Verdict WithEnvironment(const Access& x) {
    if (x.rank == x.place.rank && x.to < 0) return {};  // launch order
    const Event begin = {x.place.rank, kEnvironment, -1, 0};
    const Event end = {x.place.rank, kEnvironment, -1, 1};
    Verdict verdict = Unless(questions_.Before(begin, {x.rank, x.step, x.to, 0}), [&] {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s, which rank %d may not have launched yet; wait for a step of that rank", Does(x),
          x.place.rank));
    });
    if (!verdict.clash.ok()) return verdict;
    Verdict at_end = Unless(Over(x, 0, end), [&] {
      return absl::FailedPreconditionError(absl::StrFormat(
          "%s, and rank %d may end its epoch meanwhile; let a step of that rank wait for it",
          Does(x), x.place.rank));
    });
    at_end.unknown |= verdict.unknown;
    return at_end;
  }

  Verdict Pair(const Access& x, const Access& y) {
    if (x.rank == y.rank && x.step == y.step && x.to == y.to) return {Clash(x, Does(y))};
    const Known x_first = Over(x, 0, y, 0);
    const Known y_first = x_first == Known::kYes ? Known::kNo : Over(y, 0, x, 0);
    if (x_first != Known::kYes && y_first != Known::kYes) {
      if (x_first == Known::kUnknown || y_first == Known::kUnknown) return {absl::OkStatus(), true};
      return {Clash(x, Does(y))};
    }
    // The first access ends before the second, and so before the second in the next epoch.
    const Access& second = x_first == Known::kYes ? y : x;
    const Access& first = x_first == Known::kYes ? x : y;
    return Unless(Over(second, 0, first, 1),
                  [&] { return Clash(second, Does(first) + " in the next epoch"); });
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
  Questions questions_;
  std::vector<Doubt> doubts_;
};

}  // namespace

absl::Status CheckRaces(const Problem& problem, const Schedule& schedule, const Order& order) {
  return Races(problem, schedule, order).Check();
}

}  // namespace agmm
