// Every route, forwards and backwards.
#include "kernels/schedule/routes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <tuple>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/schedule/algorithm.h"
#include "kernels/schedule/spec.h"
#include "tests/schedule/problems.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

// Calls `check` with drawn spreads of every route over meshes of one to three axes.
void ForEachRoute(const std::function<void(const Spread&, const std::vector<Hop>&)>& check) {
  std::mt19937_64 random(TestSeed());
  for (const char* text : {"x=2", "x=9", "x=4,y=3", "x=2,y=3,z=4"}) {
    const Mesh mesh = ParseMesh(text).value();
    for (const int devices : {1, 3, mesh.size()}) {
      const int nodes = (mesh.size() + devices - 1) / devices;
      const Topology topology = UniformTopology(mesh.size(), nodes, devices).value();
      for (int draw = 0; draw < 20; ++draw) {
        const Rank source = static_cast<Rank>(random() % mesh.size());
        std::vector<Rank> needers;
        for (Rank rank = 0; rank < mesh.size(); ++rank)
          if (rank != source && random() % 3 > 0) needers.push_back(rank);
        if (needers.empty()) continue;
        const Spread spread = {source, needers, static_cast<int>(random() % 2), mesh, topology};
        for (const Algorithm& algorithm : Algorithms()) {
          SCOPED_TRACE(absl::StrCat(algorithm.name, " over ", text, ", ", devices,
                                    " devices a node, from rank ", source));
          check(spread, algorithm.route(spread));
        }
      }
    }
  }
}

TEST(Routes, ReachEachNeederOnceFromARankThatHasTheChunk) {
  ForEachRoute([](const Spread& spread, const std::vector<Hop>& hops) {
    std::map<Rank, int> step_of = {{spread.source, 0}};
    for (const Hop& hop : hops) {
      ASSERT_TRUE(step_of.count(hop.from)) << "rank " << hop.from;
      EXPECT_GT(hop.step, step_of.at(hop.from));
      EXPECT_TRUE(step_of.emplace(hop.to, hop.step).second) << "rank " << hop.to;
    }
    EXPECT_EQ(step_of.size(), spread.needers.size() + 1);
  });
}

TEST(Routes, ReversedUseTheSameLinksInMirroredSteps) {
  ForEachRoute([](const Spread& spread, const std::vector<Hop>& hops) {
    const std::vector<Hop> back = Reversed(hops);
    std::multiset<std::tuple<Rank, Rank, int>> forwards, backwards;
    int least = hops.front().step, most = least;
    for (const Hop& hop : hops) {
      least = std::min(least, hop.step);
      most = std::max(most, hop.step);
      forwards.insert({hop.from, hop.to, hop.step});
    }
    const int sum = least + most;  // of the steps of a hop and its mirror
    for (const Hop& hop : back) backwards.insert({hop.to, hop.from, sum - hop.step});
    EXPECT_EQ(forwards, backwards);
    EXPECT_EQ(Reversed(back), hops);
  });
}

TEST(Routes, ReversedSendFromEachRankOnceBehindAllThatItReceives) {
  ForEachRoute([](const Spread& spread, const std::vector<Hop>& hops) {
    std::map<Rank, int> sent;      // by rank, the step
    std::map<Rank, int> received;  // the last step
    for (const Hop& hop : Reversed(hops)) {
      ASSERT_FALSE(sent.count(hop.to)) << "rank " << hop.to << " receives behind its send";
      const auto last = received.find(hop.from);
      if (last != received.end()) {
        EXPECT_GT(hop.step, last->second);
      }
      EXPECT_TRUE(sent.emplace(hop.from, hop.step).second) << "rank " << hop.from;
      received[hop.to] = std::max(received[hop.to], hop.step);
    }
    EXPECT_EQ(sent.size(), spread.needers.size());
    EXPECT_FALSE(sent.count(spread.source));
  });
}

// In an all-to-all, a chunk passes from rank to rank to its needer. Backwards, the same hops take a
// chunk from there to the source, so the reverse of an all-to-all is an all-to-all.
TEST(Routes, OfAnAllToAllLeadToTheNeederAndBackwardsToTheSource) {
  const auto expect_path = [](const std::vector<Hop>& hops, Rank from, Rank to) {
    ASSERT_FALSE(hops.empty());
    int step = 0;
    Rank at = from;
    for (const Hop& hop : hops) {
      EXPECT_EQ(hop.from, at);
      EXPECT_GT(hop.step, step);
      at = hop.to;
      step = hop.step;
    }
    EXPECT_EQ(at, to);
  };
  for (const char* text : {"x=3", "x=8", "x=4,y=3", "x=2,y=3,z=2"}) {
    const Mesh mesh = ParseMesh(text).value();
    std::vector<Rank> ring(mesh.size());
    std::iota(ring.begin(), ring.end(), 0);
    for (const int devices : {1, 3, mesh.size()}) {
      const int nodes = (mesh.size() + devices - 1) / devices;
      const Topology topology = UniformTopology(mesh.size(), nodes, devices).value();
      for (const Algorithm& algorithm : Algorithms()) {
        for (Rank source = 0; source < mesh.size(); ++source) {
          for (Rank to = 0; to < mesh.size(); ++to) {
            if (to == source) continue;
            SCOPED_TRACE(absl::StrCat(algorithm.name, " over ", text, ", ", devices,
                                      " devices a node, from rank ", source, " to ", to));
            const Spread spread = {source, {to},     1,
                                   mesh,   topology, algorithm.passes_on ? &ring : nullptr};
            const std::vector<Hop> hops = algorithm.route(spread);
            expect_path(hops, source, to);
            expect_path(Reversed(hops), to, source);
          }
        }
      }
    }
  }
}

// If all ranks sent to one first, its port would limit them all.
TEST(Routes, OfAnAllToAllSendToARankFromOneAtATime) {
  const Mesh mesh = ParseMesh("x=12").value();
  const Topology topology = UniformTopology(mesh.size(), 3).value();
  for (const char* name : {"serial", "direct", "hierarchical", "hierarchical_peer", "peer"}) {
    std::set<std::pair<int, Rank>> arrivals;  // step and needer
    for (Rank source = 0; source < mesh.size(); ++source) {
      for (Rank needer = 0; needer < mesh.size(); ++needer) {
        if (needer == source) continue;
        const Spread spread = {source, {needer}, 0, mesh, topology};
        for (const Hop& hop : FindAlgorithm(name)->route(spread))
          EXPECT_TRUE(arrivals.emplace(hop.step, hop.to).second)
              << name << ": step " << hop.step << ", to rank " << hop.to;
      }
    }
  }
}

}  // namespace
}  // namespace agmm::test
