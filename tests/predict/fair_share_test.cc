// Shared resources: exact rates and ends, and a comparison with a slow progressive filling.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <vector>

#include "kernels/predict/fair_share.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Pair;

// An activity that begins at a given time.
struct Job {
  int64_t begin = 0;
  std::vector<Usage> usages;
};

// Runs jobs, whose tags are their numbers, and returns (time, tag) of their ends in order.
std::vector<std::pair<int64_t, int>> EndsOf(int resources, const std::vector<Job>& jobs) {
  FairShare share(resources);
  std::vector<std::pair<int64_t, int>> ends;
  std::multimap<int64_t, int> begins;
  for (int i = 0; i < static_cast<int>(jobs.size()); ++i) begins.emplace(jobs[i].begin, i);
  while (true) {
    const std::optional<int64_t> end = share.NextEnd();
    if (end && (begins.empty() || *end <= begins.begin()->first)) {
      for (const int tag : std::vector<int>(share.End(*end))) ends.emplace_back(*end, tag);
    } else if (!begins.empty()) {
      const auto [time, job] = *begins.begin();
      begins.erase(begins.begin());
      share.Begin(time, job, jobs[job].usages);
    } else {
      return ends;
    }
  }
}

TEST(FairShare, AnActivityAloneTakesTheTimeOfItsSlowestResource) {
  EXPECT_THAT(EndsOf(3, {{100, {{0, 10}, {1, 250}, {2, 40}}}}), ElementsAre(Pair(350, 0)));
}

TEST(FairShare, PartsOfANanosecondCountAsAWholeOne) {
  EXPECT_THAT(EndsOf(1, {{0, {{0, 10.2}}}}), ElementsAre(Pair(11, 0)));
}

TEST(FairShare, TwoActivitiesHalveAResource) {
  EXPECT_THAT(EndsOf(1, {{0, {{0, 100}}}, {0, {{0, 300}}}}),
              ElementsAre(Pair(200, 0), Pair(400, 1)));
}

TEST(FairShare, ALaterActivityGetsItsShareFromItsBeginning) {
  // The first is half done at 50; its other half takes twice as long.
  EXPECT_THAT(EndsOf(1, {{0, {{0, 100}}}, {50, {{0, 100}}}}),
              ElementsAre(Pair(150, 0), Pair(200, 1)));
}

TEST(FairShare, ActivitiesThatEndTogetherEndInTheOrderInWhichTheyBegan) {
  FairShare share(2);
  const std::vector<Usage> first = {{0, 60}}, second = {{1, 50}}, third = {{0, 60}};
  share.Begin(0, 7, first);
  share.Begin(0, 3, third);
  share.Begin(70, 5, second);
  EXPECT_EQ(share.NextEnd(), 120);
  EXPECT_THAT(share.End(120), ElementsAre(7, 3, 5));
  EXPECT_EQ(share.NextEnd(), std::nullopt);
}

TEST(FairShare, EndReturnsNothingBetweenEnds) {
  FairShare share(1);
  const std::vector<Usage> usages = {{0, 60}};
  share.Begin(0, 1, usages);
  EXPECT_THAT(share.End(59), IsEmpty());
  EXPECT_THAT(share.End(60), ElementsAre(1));
}

// The first two may each use a third of resource 0. The third is limited to a tenth elsewhere, so
// they get 45 % each.
TEST(FairShare, WhatAnActivityCannotUseGoesToTheOthers) {
  std::vector<Job> jobs = {{0, {{0, 90}}}, {0, {{0, 90}}}};
  // Nine others on resource 1 leave the third a tenth of it.
  jobs.push_back({0, {{0, 100}, {1, 100}}});
  for (int i = 0; i < 9; ++i) jobs.push_back({0, {{1, 1000}}});
  const auto ends = EndsOf(2, jobs);
  EXPECT_THAT((std::vector(ends.begin(), ends.begin() + 2)),
              ElementsAre(Pair(200, 0), Pair(200, 1)));
  EXPECT_THAT(ends[2], Pair(1000, 2));
}

TEST(FairShare, AShareIsReleasedAtTheEnd) {
  // Until 200 each has a half. The rest of the second, 100, then takes 100.
  EXPECT_THAT(EndsOf(2, {{0, {{0, 100}}}, {0, {{0, 200}, {1, 10}}}}),
              ElementsAre(Pair(200, 0), Pair(300, 1)));
}

// The second is slowed down on resource 1 by the third, and uses less of resource 0.
TEST(FairShare, ALaterActivityCanBringForwardAnEnd) {
  const Job first = {0, {{0, 100}}}, second = {0, {{0, 100}, {1, 100}}};
  std::vector<Job> jobs = {first, second};
  EXPECT_THAT(EndsOf(2, jobs).front(), Pair(200, 0));
  for (int i = 0; i < 3; ++i) jobs.push_back({0, {{1, 1000}}});
  // The second has a quarter of resource 1, and leaves three quarters of resource 0: 100 / 0.75.
  EXPECT_THAT(EndsOf(2, jobs).front(), Pair(134, 0));
}

// The second's message occupies a slow link for all of its time, and a fast port for a tenth.
TEST(FairShare, AnActivityUsesAPartOfAFastResource) {
  EXPECT_THAT(EndsOf(2, {{0, {{0, 90}}}, {0, {{0, 10}, {1, 100}}}}),
              ElementsAre(Pair(100, 0), Pair(100, 1)));
}

// A reference that raises the shares of all activities together, and stops those on a full
// resource. Requires that all activities divide their times on resources alike: a resource has a
// rate, and a usage takes bytes / rate.
class ProgressiveFilling {
 public:
  ProgressiveFilling(std::vector<double> rates) : rates_(std::move(rates)) {}

  // Bytes per ns of each flow, which uses a set of resources.
  std::vector<double> RatesOf(const std::vector<std::set<int>>& flows) const {
    std::vector<double> result(flows.size(), 0);
    std::vector<bool> fixed(flows.size(), false);
    std::vector<double> left = rates_;
    while (true) {
      double step = -1;
      for (size_t r = 0; r < rates_.size(); ++r) {
        int users = 0;
        for (size_t f = 0; f < flows.size(); ++f) users += !fixed[f] && flows[f].contains(r);
        if (users > 0 && (step < 0 || left[r] / users < step)) step = left[r] / users;
      }
      if (step < 0) return result;
      std::vector<bool> full(rates_.size(), false);
      for (size_t r = 0; r < rates_.size(); ++r) {
        int users = 0;
        for (size_t f = 0; f < flows.size(); ++f) users += !fixed[f] && flows[f].contains(r);
        full[r] = users > 0 && left[r] / users <= step * (1 + 1e-12);
        left[r] -= users * step;
      }
      for (size_t f = 0; f < flows.size(); ++f) {
        if (fixed[f]) continue;
        result[f] += step;
        for (const int r : flows[f]) fixed[f] = fixed[f] || full[r];
      }
    }
  }

  // The ends of flows, in continuous time.
  std::vector<double> EndsOf(const std::vector<std::set<int>>& flows,
                             const std::vector<double>& begins,
                             const std::vector<double>& bytes) const {
    std::vector<double> left = bytes, ends(flows.size(), -1);
    double now = 0;
    while (true) {
      std::vector<int> running;
      std::vector<std::set<int>> of_running;
      double next = -1;
      for (size_t f = 0; f < flows.size(); ++f) {
        if (ends[f] >= 0) continue;
        if (begins[f] > now) {
          if (next < 0 || begins[f] < next) next = begins[f];
        } else {
          running.push_back(static_cast<int>(f));
          of_running.push_back(flows[f]);
        }
      }
      const std::vector<double> rates = RatesOf(of_running);
      for (size_t i = 0; i < running.size(); ++i) {
        const double end = now + left[running[i]] / rates[i];
        if (next < 0 || end < next) next = end;
      }
      if (next < 0) return ends;
      for (size_t i = 0; i < running.size(); ++i) {
        double& rest = left[running[i]];
        rest -= rates[i] * (next - now);
        if (rest <= 1e-9 * bytes[running[i]]) ends[running[i]] = next;
      }
      now = next;
    }
  }

 private:
  std::vector<double> rates_;
};

TEST(FairShare, AgreesWithProgressiveFilling) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](int count) { return static_cast<int>(random() % count); };
  for (int round = 0; round < 3000; ++round) {
    const int resources = 1 + below(6), count = 1 + below(10);
    std::vector<double> rates;
    for (int r = 0; r < resources; ++r) rates.push_back(std::exp2(below(6)) * (1 + below(3)));
    std::vector<std::set<int>> flows(count);
    std::vector<double> begins, bytes;
    std::vector<Job> jobs(count);
    for (int f = 0; f < count; ++f) {
      const int uses = 1 + below(std::min(resources, 4));
      while (static_cast<int>(flows[f].size()) < uses) flows[f].insert(below(resources));
      begins.push_back(below(3) == 0 ? 0 : below(1000000));
      bytes.push_back(1e6 * (1 + below(8)));
      jobs[f].begin = static_cast<int64_t>(begins[f]);
      for (const int r : flows[f]) jobs[f].usages.push_back({r, bytes[f] / rates[r]});
    }
    const std::vector<double> expected = ProgressiveFilling(rates).EndsOf(flows, begins, bytes);
    const auto ends = EndsOf(resources, jobs);
    ASSERT_EQ(ends.size(), count) << "round " << round;
    // Each end is rounded up, which can delay the others by a nanosecond each.
    for (const auto& [end, tag] : ends)
      ASSERT_NEAR(static_cast<double>(end), expected[tag], count + 1e-6 * expected[tag])
          << "round " << round << ", activity " << tag;
  }
}

// With other ratios, for example cores and memory, the fair shares may not be unique, but no
// resource does more work than time passes, and some resource of each activity is full.
TEST(FairShare, NeverUsesAResourceTwice) {
  std::mt19937_64 random(TestSeed());
  const auto below = [&](int count) { return static_cast<int>(random() % count); };
  for (int round = 0; round < 3000; ++round) {
    const int resources = 1 + below(6), count = 1 + below(12);
    std::vector<Job> jobs(count);
    for (Job& job : jobs) {
      job.begin = below(2) * below(100000);
      std::set<int> used;
      for (int u = 1 + below(std::min(resources, 4)); u > 0; --u) used.insert(below(resources));
      for (const int r : used) job.usages.push_back({r, std::exp2(below(12)) * (100 + below(100))});
    }
    std::vector<int64_t> ends(count, -1);
    int64_t last = 0;
    for (const auto& [end, tag] : EndsOf(resources, jobs)) {
      ASSERT_EQ(ends[tag], -1);
      ends[tag] = end;
      ASSERT_GE(end, last) << "ends in order";
      last = end;
    }
    for (int i = 0; i < count; ++i) {
      double alone = 0;
      for (const Usage& usage : jobs[i].usages) alone = std::max(alone, usage.ns);
      ASSERT_GE(ends[i] - jobs[i].begin, alone - 1) << "round " << round << ", activity " << i;
    }
    for (int r = 0; r < resources; ++r) {
      for (const Job& from : jobs) {
        for (const int64_t to : ends) {
          double work = 0;
          for (int i = 0; i < count; ++i) {
            if (jobs[i].begin < from.begin || ends[i] > to) continue;
            for (const Usage& usage : jobs[i].usages) work += usage.resource == r ? usage.ns : 0;
          }
          ASSERT_LE(work * (1 - 1e-6), std::max<int64_t>(0, to - from.begin) + 1)
              << "round " << round << ", resource " << r << " from " << from.begin << " to " << to;
        }
      }
    }
  }
}

}  // namespace
}  // namespace agmm::test
