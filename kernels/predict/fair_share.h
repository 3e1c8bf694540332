// Activities that share resources: each progresses at the rate that its most contended resource
// allows, and a resource is divided fairly among its activities (max-min).
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/types/span.h"
#include "kernels/predict/network.h"

namespace agmm {

// Times are whole nanoseconds. Calls name times that never decrease.
class FairShare {
 public:
  explicit FairShare(int resource_count);

  // Begins an activity. `tag`: returned at its end. `usages`: with distinct resources, all above 0,
  // at least one; valid until the activity ends.
  void Begin(int64_t now, int tag, absl::Span<const Usage> usages);
  // The time at which the next activity ends if none begins before; nothing if there is none.
  std::optional<int64_t> NextEnd();
  // Removes the activities that end at `now`, and returns their tags in the order in which they
  // began.
  const std::vector<int>& End(int64_t now);

 private:
  // Ends at the same time are in the order of beginning.
  struct Ending {
    int64_t time = 0;
    uint64_t number = 0;
    int activity = 0;

    bool IsBefore(const Ending& other) const {
      return time != other.time ? time < other.time : number < other.number;
    }
  };
  struct Activity {
    int tag = 0;
    absl::Span<const Usage> usages;
    double left = 1;  // the part that is left at `since`
    int64_t since = 0;
    Ending end = {};
    int end_at = -1;  // the index in ends_
  };
  // The rate of an activity, apart from the rest of it, because levels are computed from it alone.
  struct Rates {
    // The resource that limits its rate, that limit, and the one of its other resources: always
    // those of the levels as they are.
    Resource limit = 0;
    double limit_rate = 0, next_rate = 0;
    double rate = 0;  // parts per ns

    // The highest rate that the other resources allow.
    double RateWithout(Resource resource) const {
      return resource == limit ? next_rate : limit_rate;
    }
  };
  struct User {
    int activity = 0;
    double ns = 0;
  };

  // `more`: an activity may use more of it than before.
  void MarkDirty(Resource resource, bool more);
  // Gives every activity its fair rate, after activities began or ended at now_.
  void Rebalance();
  // Returns the highest part of a resource that one activity may use.
  double LevelOf(Resource resource);
  void SetLimits(int activity);
  // Gives the users of `resource` the limits of its new level. Makes resources dirty for which the
  // demand of a user has changed with it.
  void Spread(Resource resource, double old_level);
  void SetRate(int activity);

  // Keep ends_ a heap. Later ends are not moved, because most ends move several times.
  void PlaceEnd(const Ending& end, int at);
  void MoveEnd(int activity);
  void SinkEnd(const Ending& end, int at);
  void RemoveFirstEnd();

  int64_t now_ = 0;
  uint64_t next_number_ = 0;
  std::vector<Activity> activities_;
  std::vector<Rates> rates_;              // by activity
  std::vector<int> free_;                 // indices into activities_
  std::vector<std::vector<User>> users_;  // by resource
  std::vector<double> level_;             // by resource
  std::vector<char> is_dirty_;            // by resource: in dirty_
  std::vector<char> is_wanted_more_;      // by resource: since its level was computed
  std::vector<Resource> dirty_;
  std::vector<Resource> changed_;  // with another level than before
  std::vector<bool> is_changed_;   // by resource: in changed_
  std::vector<int> begun_;         // activities without a rate
  std::vector<double> demands_;    // scratch of LevelOf
  std::vector<int> ended_, ending_;
  // A heap of the activities, whose ends are these or later.
  std::vector<Ending> ends_;
};

}  // namespace agmm
