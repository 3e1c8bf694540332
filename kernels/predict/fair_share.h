// Activities that share resources: each progresses at the rate that its most contended resource
// allows, and a resource is divided fairly among its activities (max-min).
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
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
  struct Activity {
    int tag = 0;
    uint64_t number = 0;  // in the order of beginning
    absl::Span<const Usage> usages;
    double left = 1;  // the part that is left at `since`
    double rate = 0;  // parts per ns
    int64_t since = 0;
    uint32_t version = 0;  // of its entry in ends_
  };
  struct EndOf {
    int64_t time = 0;
    uint64_t number = 0;
    int activity = 0;
    uint32_t version = 0;
    bool operator>(const EndOf& other) const {
      return time != other.time ? time > other.time : number > other.number;
    }
  };

  void MarkDirty(Resource resource);
  // Gives every activity its fair rate, after activities began or ended at now_.
  void Rebalance();
  // Returns the highest part of a resource that one activity may use.
  double LevelOf(Resource resource);
  void SetRate(int activity);

  int64_t now_ = 0;
  uint64_t next_number_ = 0;
  std::vector<Activity> activities_;
  std::vector<int> free_;                // indices into activities_
  std::vector<std::vector<int>> users_;  // by resource, activities
  std::vector<double> level_;            // by resource
  std::vector<bool> is_dirty_;           // by resource: in dirty_
  std::vector<Resource> dirty_, touched_;
  std::vector<bool> is_touched_;
  std::vector<double> demands_;  // scratch of LevelOf
  std::vector<int> ended_, ending_;
  std::priority_queue<EndOf, std::vector<EndOf>, std::greater<EndOf>> ends_;
};

}  // namespace agmm
