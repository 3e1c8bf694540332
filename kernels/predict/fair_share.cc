#include "kernels/predict/fair_share.h"

#include <algorithm>
#include <cmath>
#include <limits>

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
      is_touched_(resource_count, false) {}

void FairShare::MarkDirty(Resource resource) {
  if (!is_touched_[resource]) {
    is_touched_[resource] = true;
    touched_.push_back(resource);
  }
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
  } else {
    index = free_.back();
    free_.pop_back();
  }
  Activity& activity = activities_[index];
  activity.tag = tag;
  activity.number = next_number_++;
  activity.usages = usages;
  activity.left = 1;
  activity.rate = 0;
  activity.since = now;
  ++activity.version;
  for (const Usage& usage : usages) {
    users_[usage.resource].push_back(index);
    MarkDirty(usage.resource);
  }
}

std::optional<int64_t> FairShare::NextEnd() {
  Rebalance();
  while (!ends_.empty() && ends_.top().version != activities_[ends_.top().activity].version)
    ends_.pop();
  if (ends_.empty()) return std::nullopt;
  return ends_.top().time;
}

const std::vector<int>& FairShare::End(int64_t now) {
  ended_.clear();
  while (NextEnd() == now) {
    const int index = ends_.top().activity;
    ends_.pop();
    Activity& activity = activities_[index];
    ++activity.version;
    ended_.push_back(activity.tag);
    for (const Usage& usage : activity.usages) {
      std::vector<int>& users = users_[usage.resource];
      *std::find(users.begin(), users.end(), index) = users.back();
      users.pop_back();
    }
    // The others keep their rates up to `now`, so they are given new ones only after all have
    // ended.
    ending_.push_back(index);
  }
  now_ = now;
  for (const int index : ending_) {
    for (const Usage& usage : activities_[index].usages) MarkDirty(usage.resource);
    free_.push_back(index);
  }
  ending_.clear();
  return ended_;
}

double FairShare::LevelOf(Resource resource) {
  demands_.clear();
  const std::vector<int>& users = users_[resource];
  double left = 1, fair = users.empty() ? 1 : 1 / static_cast<double>(users.size());
  bool all_more = true;  // each would use more than an equal part
  for (const int index : users) {
    const Activity& activity = activities_[index];
    double ns = 0, rate = kUnlimited;
    for (const Usage& usage : activity.usages) {
      if (usage.resource == resource) {
        ns = usage.ns;
      } else {
        rate = std::min(rate, level_[usage.resource] / usage.ns);
      }
    }
    demands_.push_back(std::min(1.0, rate * ns));
    all_more &= demands_.back() > fair;
  }
  if (all_more) return fair;
  std::sort(demands_.begin(), demands_.end());
  for (size_t i = 0; i < demands_.size(); ++i) {
    fair = left / static_cast<double>(demands_.size() - i);
    if (demands_[i] > fair) return fair;
    left -= demands_[i];
  }
  return 1;
}

void FairShare::SetRate(int index) {
  Activity& activity = activities_[index];
  double rate = kUnlimited;
  for (const Usage& usage : activity.usages)
    rate = std::min(rate, level_[usage.resource] / usage.ns);
  if (std::abs(rate - activity.rate) <= kPrecision * rate) return;
  activity.left -= activity.rate * static_cast<double>(now_ - activity.since);
  activity.left = std::max(0.0, activity.left);
  activity.since = now_;
  activity.rate = rate;
  // A part of a nanosecond counts as a whole one, unless it is a rounding error.
  const double ns = std::ceil(activity.left / rate - 1e-4);
  ends_.push(
      {now_ + static_cast<int64_t>(std::max(0.0, ns)), activity.number, index, ++activity.version});
}

void FairShare::Rebalance() {
  if (dirty_.empty()) return;
  size_t rounds = 0;
  for (size_t i = 0; i < dirty_.size() && rounds < kMostRounds * touched_.size(); ++i, ++rounds) {
    const Resource resource = dirty_[i];
    is_dirty_[resource] = false;
    const double level = LevelOf(resource), before = level_[resource];
    if (std::abs(level - before) <= kPrecision) continue;
    level_[resource] = level;
    for (const int index : users_[resource]) {
      const Activity& activity = activities_[index];
      for (const Usage& usage : activity.usages)
        if (usage.resource != resource) MarkDirty(usage.resource);
    }
  }
  for (const Resource resource : dirty_) is_dirty_[resource] = false;
  dirty_.clear();
  for (const Resource resource : touched_) {
    is_touched_[resource] = false;
    for (const int index : users_[resource]) SetRate(index);
  }
  touched_.clear();
}

}  // namespace agmm
