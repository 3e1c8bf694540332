#include "kernels/predict/fair_share.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>

namespace agmm {
namespace {

constexpr double kUnlimited = std::numeric_limits<double>::infinity();
// Levels that differ by less are equal.
constexpr double kPrecision = 1e-9;
// The most times that levels are computed in one Rebalance, for each resource that has changed.
// They settle after a few; the bound is for levels that approach each other ever more slowly.
constexpr int kMostRounds = 64;

}  // namespace

FairShare::FairShare(int resource_count)
    : users_(resource_count),
      level_(resource_count, 1),
      is_dirty_(resource_count, false),
      is_wanted_more_(resource_count, false),
      is_changed_(resource_count, false) {}

void FairShare::MarkDirty(Resource resource, bool more) {
  if (more) is_wanted_more_[resource] = true;
  if (is_dirty_[resource]) return;
  is_dirty_[resource] = true;
  dirty_.push_back(resource);
}

void FairShare::Begin(int64_t now, int tag, absl::Span<const Usage> usages) {
  if (now > now_) Rebalance();
  now_ = now;
  int index = static_cast<int>(activities_.size());
  if (free_.empty()) {
    activities_.emplace_back();
    rates_.emplace_back();
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Activity& activity = activities_[index];
  activity = {tag, usages};
  activity.since = now;
  activity.end = {now, next_number_++, index};
  rates_[index].rate = 0;
  SetLimits(index);
  begun_.push_back(index);
  for (const Usage& usage : usages) {
    users_[usage.resource].push_back({index, usage.ns});
    MarkDirty(usage.resource, /*more=*/true);
  }
}

std::optional<int64_t> FairShare::NextEnd() {
  Rebalance();
  while (!ends_.empty()) {
    const Ending& end = activities_[ends_.front().activity].end;
    if (end.time == ends_.front().time) return end.time;
    SinkEnd(end, 0);
  }
  return std::nullopt;
}

const std::vector<int>& FairShare::End(int64_t now) {
  ended_.clear();
  while (NextEnd() == now) {
    const int index = ends_.front().activity;
    RemoveFirstEnd();
    ended_.push_back(activities_[index].tag);
    for (const Usage& usage : activities_[index].usages) {
      std::vector<User>& users = users_[usage.resource];
      *std::find_if(users.begin(), users.end(),
                    [index](const User& user) { return user.activity == index; }) = users.back();
      users.pop_back();
    }
    // The others keep their rates up to `now`, so they are given new ones only after all have
    // ended.
    ending_.push_back(index);
  }
  now_ = now;
  for (const int index : ending_) {
    for (const Usage& usage : activities_[index].usages) MarkDirty(usage.resource, /*more=*/false);
    free_.push_back(index);
  }
  ending_.clear();
  return ended_;
}

double FairShare::LevelOf(Resource resource) {
  const std::vector<User>& users = users_[resource];
  if (users.size() < 2) return 1;
  const auto demand = [&](const User& user) {
    return std::min(1.0, rates_[user.activity].RateWithout(resource) * user.ns);
  };
  const double equal = 1 / static_cast<double>(users.size());
  bool all_more = true;  // each would use more than an equal part
  double sum = 0;
  for (const User& user : users) {
    const double one = demand(user);
    sum += one;
    all_more &= one > equal;
  }
  if (all_more) return equal;
  if (sum < 1 - kPrecision) return 1;
  // Serves the smallest demands one by one, until the rest want more than an equal part of what is
  // left. Most are never sorted.
  demands_.clear();
  for (const User& user : users) demands_.push_back(demand(user));
  std::make_heap(demands_.begin(), demands_.end(), std::greater<>());
  double left = 1;
  for (auto end = demands_.end(); end != demands_.begin(); --end) {
    const double fair = left / static_cast<double>(end - demands_.begin());
    if (demands_.front() > fair) return fair;
    left -= demands_.front();
    std::pop_heap(demands_.begin(), end, std::greater<>());
  }
  return 1;
}

void FairShare::SetLimits(int index) {
  Rates& rates = rates_[index];
  rates.limit_rate = rates.next_rate = kUnlimited;
  for (const Usage& usage : activities_[index].usages) {
    const double rate = level_[usage.resource] / usage.ns;
    if (rate < rates.limit_rate) {
      rates.next_rate = rates.limit_rate;
      rates.limit_rate = rate;
      rates.limit = usage.resource;
    } else {
      rates.next_rate = std::min(rates.next_rate, rate);
    }
  }
}

void FairShare::Spread(Resource resource, double old_level) {
  for (const User& user : users_[resource]) {
    Rates& rates = rates_[user.activity];
    const Rates before = rates;
    const double rate = level_[resource] / user.ns;
    if (rates.limit == resource && rate < rates.next_rate) {
      rates.limit_rate = rate;  // and still limits it
    } else if (rates.limit != resource && rate > rates.limit_rate && rate < rates.next_rate) {
      rates.next_rate = rate;
    } else if (rates.limit != resource && rate >= rates.next_rate &&
               old_level / user.ns > rates.next_rate) {
      continue;  // was neither of the two, and is not now
    } else {
      SetLimits(user.activity);
    }
    for (const Usage& usage : activities_[user.activity].usages) {
      const Resource other = usage.resource;
      const double now = rates.RateWithout(other), then = before.RateWithout(other);
      if (other != resource && now != then) MarkDirty(other, now > then);
    }
  }
}

void FairShare::SetRate(int index) {
  Rates& rates = rates_[index];
  const double rate = rates.limit_rate;
  if (std::abs(rate - rates.rate) <= kPrecision * rate) return;
  Activity& activity = activities_[index];
  activity.left -= rates.rate * static_cast<double>(now_ - activity.since);
  activity.left = std::max(0.0, activity.left);
  activity.since = now_;
  rates.rate = rate;
  // A part of a nanosecond counts as a whole one, unless it is a rounding error.
  const double ns = std::ceil(activity.left / rate - 1e-4);
  activity.end.time = now_ + static_cast<int64_t>(std::max(0.0, ns));
  MoveEnd(index);
}

void FairShare::Rebalance() {
  if (dirty_.empty()) return;
  const size_t first = dirty_.size();
  for (size_t i = 0; i < dirty_.size() && i < kMostRounds * (first + changed_.size()); ++i) {
    const Resource resource = dirty_[i];
    is_dirty_[resource] = false;
    // A resource that was enough for all is enough if they want less.
    if (!std::exchange(is_wanted_more_[resource], false) && level_[resource] == 1) continue;
    const double level = LevelOf(resource);
    if (std::abs(level - level_[resource]) <= kPrecision) continue;
    const double old_level = std::exchange(level_[resource], level);
    if (!is_changed_[resource]) {
      is_changed_[resource] = true;
      changed_.push_back(resource);
    }
    Spread(resource, old_level);
  }
  for (const Resource resource : dirty_) is_dirty_[resource] = false;
  dirty_.clear();
  for (const Resource resource : changed_) {
    is_changed_[resource] = false;
    for (const User& user : users_[resource]) SetRate(user.activity);
  }
  changed_.clear();
  for (const int index : begun_) SetRate(index);
  begun_.clear();
}

void FairShare::PlaceEnd(const Ending& end, int at) {
  ends_[at] = end;
  activities_[end.activity].end_at = at;
}

void FairShare::MoveEnd(int index) {
  const Ending end = activities_[index].end;
  int at = activities_[index].end_at;
  if (at < 0) {
    at = static_cast<int>(ends_.size());
    ends_.push_back(end);
  } else if (ends_[at].IsBefore(end)) {
    return;
  }
  for (int above = (at - 1) / 2; at > 0 && end.IsBefore(ends_[above]); above = (at - 1) / 2) {
    PlaceEnd(ends_[above], at);
    at = above;
  }
  PlaceEnd(end, at);
}

void FairShare::SinkEnd(const Ending& end, int at) {
  const int size = static_cast<int>(ends_.size());
  for (int below = 2 * at + 1; below < size; below = 2 * at + 1) {
    if (below + 1 < size && ends_[below + 1].IsBefore(ends_[below])) ++below;
    if (!ends_[below].IsBefore(end)) break;
    PlaceEnd(ends_[below], at);
    at = below;
  }
  PlaceEnd(end, at);
}

void FairShare::RemoveFirstEnd() {
  activities_[ends_.front().activity].end_at = -1;
  const Ending last = ends_.back();
  ends_.pop_back();
  if (!ends_.empty()) SinkEnd(last, 0);
}

}  // namespace agmm
