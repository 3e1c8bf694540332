// Closed forms against simulated plans, on links alone: devices are free. A plan that is not the
// optimal algorithm has a correction or a factor of its own, with its reason.
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "kernels/predict/cost.h"
#include "kernels/predict/simulate.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/predict/platforms.h"

namespace agmm::test {
namespace {

enum class Kind { kGather, kScatter, kReduce, kExchange };
constexpr Kind kKinds[] = {Kind::kGather, Kind::kScatter, Kind::kReduce, Kind::kExchange};

// A collective over all axes of a mesh: `bytes` of the whole array.
struct Moved {
  Problem problem;
  double bytes = 0;
};

std::string SpecOf(Kind kind, const Mesh& mesh) {
  std::string axes;
  for (const Axis& axis : mesh.axes) axes += axis.name;
  switch (kind) {
    case Kind::kGather: return "A[M_" + axes + ", K] -> B[M, K]";
    case Kind::kScatter: return "A[M, K]{U_" + axes + "} -> B[M_" + axes + ", K]";
    case Kind::kReduce: return "A[M, K]{U_" + axes + "} -> B[M, K]";
    case Kind::kExchange: return "A[M_" + axes + ", K] -> B[M, K_" + axes + "]";
  }
  return "";
}

// Links that bytes keep busy, or that latency does.
struct Bound {
  const char* name;
  LinkRates links;
  int cols;  // of a block of an all-to-all, which has 8 rows
};
const Bound kBounds[] = {{"bandwidth", Duplex(1, 1), 64}, {"latency", Duplex(1, 1e6), 1}};
bool IsLatency(const Bound& bound) { return bound.cols == 1; }

Moved MovedBy(Kind kind, const Mesh& mesh, const Bound& bound) {
  const int64_t ranks = mesh.size(), rows = 8 * ranks, cols = bound.cols * ranks;
  return {ParseProblem(SpecOf(kind, mesh), mesh, {rows, cols, 0}, DType::kF32).value(),
          4.0 * static_cast<double>(rows * cols)};
}

Mesh MeshOf(int ranks) { return ParseMesh("x=" + std::to_string(ranks)).value(); }

Schedule PlanBy(const std::string& algorithm, const Moved& moved, const Platform& platform) {
  PlanOptions options;
  options.algorithm = algorithm;
  options.chunks = 1;
  return Plan(moved.problem, platform.topology, options).value();
}

double TimeOf(const Moved& moved, const Platform& platform, const Schedule& schedule) {
  return static_cast<double>(Simulate(moved.problem, platform, schedule).value().time_ns);
}
double TimeBy(const std::string& algorithm, const Moved& moved, const Platform& platform) {
  return TimeOf(moved, platform, PlanBy(algorithm, moved, platform));
}

#define EXPECT_AGREES(time, form) EXPECT_NEAR((time) / (form), 1, 0.01)

struct RingCase {
  const char* algorithm;
  Passing passing;
};
const RingCase kRings[] = {{"ring", Passing::kOneWay},
                           {"bidirectional_ring", Passing::kBothWays},
                           {"split_ring", Passing::kHalvesBothWays}};

int HopsOf(int ranks, Passing passing) {
  return passing == Passing::kBothWays ? ranks / 2 : ranks - 1;
}

// The plans add to the closed form of a gather, a reduce-scatter or an all-reduce. A gather
// writes into the shards of other ranks, which let it in at the beginning of their epoch, one
// latency before. Terms have places in a workspace: the credit of the epoch before comes in time,
// unless there is one hop only, and two epochs need a round trip.
double AddedNs(Kind kind, int hops, const LinkRates& links) {
  const bool waits = kind == Kind::kGather || (kind == Kind::kScatter && hops == 1);
  return waits ? links.latency_ns : 0;
}

TEST(Collectives, RingsTakeTheTimeOfTheForm) {
  for (const Bound& bound : kBounds) {
    for (const RingCase& ring : kRings) {
      for (const int ranks : {2, 3, 4, 5, 8, 16, 32, 64}) {
        // Two devices have one link, not one for each half.
        if (ranks == 2 && ring.passing == Passing::kHalvesBothWays) continue;
        for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kReduce}) {
          const Mesh mesh = MeshOf(ranks);
          const Moved moved = MovedBy(kind, mesh, bound);
          const double gather = exact::GatherNs(moved.bytes, {ranks}, bound.links, ring.passing);
          double form = kind == Kind::kReduce ? 2 * gather : gather;
          form += AddedNs(kind, HopsOf(ranks, ring.passing), bound.links);
          // Both directions share two lanes, so the all-reduce takes the time of one more hop.
          if (ring.passing == Passing::kHalvesBothWays && kind == Kind::kReduce && ranks >= 32 &&
              !IsLatency(bound))
            form += gather / HopsOf(ranks, ring.passing);
          EXPECT_AGREES(TimeBy(ring.algorithm, moved, TorusOf(mesh, bound.links, true)), form)
              << ring.algorithm << " " << ranks << " " << bound.name << " " << SpecOf(kind, mesh);
        }
      }
    }
  }
}

// On an axis that does not wrap around, both directions of each link carry all shards.
TEST(Collectives, LinesTakeTheTimeOfTheForm) {
  for (const RingCase& ring : kRings) {
    for (const int ranks : {2, 3, 4, 5, 8, 16, 32, 64}) {
      // At 32 ranks, lanes of a rank are short: 1.19 times the form
      // (BidirectionalRingsOnLongLines).
      if (ring.passing == Passing::kBothWays && ranks >= 32) continue;
      for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kReduce}) {
        const Mesh mesh = MeshOf(ranks);
        const Moved moved = MovedBy(kind, mesh, kBounds[0]);
        const double gather =
            exact::GatherNs(moved.bytes, {ranks}, kBounds[0].links, Passing::kLine);
        EXPECT_AGREES(TimeBy(ring.algorithm, moved, TorusOf(mesh, kBounds[0].links, false)),
                      kind == Kind::kReduce ? 2 * gather : gather)
            << ring.algorithm << " " << ranks << " " << SpecOf(kind, mesh);
      }
    }
  }
}

// The hop that closes a ring passes over all links of a line, so a ring on a line takes about twice
// the latency of the form, X - 1 hops. A gather: 2 X; a reduce-scatter: 2 (X - 1); an all-reduce:
// 4 X - 6.
TEST(Collectives, RingsOnLinesTakeTwiceTheLatency) {
  const Bound& bound = kBounds[1];
  for (const int ranks : {4, 5, 8, 16, 32}) {
    const std::pair<Kind, int> cases[] = {{Kind::kGather, 2 * ranks},
                                          {Kind::kScatter, 2 * (ranks - 1)},
                                          {Kind::kReduce, 4 * ranks - 6}};
    for (const auto& [kind, latencies] : cases) {
      const Mesh mesh = MeshOf(ranks);
      const Moved moved = MovedBy(kind, mesh, bound);
      EXPECT_AGREES(TimeBy("ring", moved, TorusOf(mesh, bound.links, false)),
                    latencies * bound.links.latency_ns)
          << ranks << " " << SpecOf(kind, mesh);
    }
  }
}

struct Factor {
  const char* algorithm;
  int ranks;
  double factor;
};

// Plans take turns on 64 / ranks lanes, at most 8. A send that waits on a lane holds up others,
// whose blocks are there. The factors are to the busiest link.
TEST(Collectives, AnAllToAllOnARingIsAsFastAsItsLanesAllow) {
  const Factor factors[] = {
      {"ring", 3, 1},
      {"ring", 4, 1},
      {"ring", 8, 1},
      {"ring", 16, 1.0165},
      {"ring", 32, 1},
      {"bidirectional_ring", 4, 1},
      {"bidirectional_ring", 8, 1},
      {"bidirectional_ring", 16, 1.616},
      {"split_ring", 4, 1},
      {"split_ring", 5, 1},
      {"split_ring", 8, 1.655},
  };
  for (const Factor& one : factors) {
    const Mesh mesh = MeshOf(one.ranks);
    const Moved moved = MovedBy(Kind::kExchange, mesh, kBounds[0]);
    const Platform platform = TorusOf(mesh, kBounds[0].links, true);
    Passing passing = Passing::kOneWay;
    for (const RingCase& ring : kRings)
      if (std::string(ring.algorithm) == one.algorithm) passing = ring.passing;
    const double form =
        exact::AllToAllPipelinedNs(moved.bytes, {one.ranks}, kBounds[0].links, passing);
    Schedule schedule = PlanBy(one.algorithm, moved, platform);
    EXPECT_NEAR(TimeOf(moved, platform, schedule) / form, one.factor, 0.01)
        << one.algorithm << " " << one.ranks;
    if (one.ranks > 8) continue;
    // With a lane for each send, the plan takes the time of the form.
    for (std::vector<Step>& steps : schedule.ranks) {
      int lane = LaneCount(steps);
      for (Step& step : steps)
        if (step.lane > 0) step.lane = lane++;
    }
    EXPECT_AGREES(TimeOf(moved, platform, schedule), form) << one.algorithm << " " << one.ranks;
  }
}

TEST(Collectives, AnAllToAllOnARingTakesALatencyForEachHop) {
  const Bound& bound = kBounds[1];
  for (const RingCase& ring : kRings) {
    for (const int ranks : {3, 4, 5, 8, 16, 32}) {
      const Mesh mesh = MeshOf(ranks);
      const Moved moved = MovedBy(Kind::kExchange, mesh, bound);
      int hops = HopsOf(ranks, ring.passing);
      // With a single hop, the others let a rank in one latency before. If 64 / ranks lanes are
      // few, a send waits for the arrival before another one on its lane.
      if (hops == 1 || (ring.passing != Passing::kOneWay && ranks >= 16)) ++hops;
      EXPECT_AGREES(TimeBy(ring.algorithm, moved, TorusOf(mesh, bound.links, true)),
                    hops * bound.links.latency_ns)
          << ring.algorithm << " " << ranks;
    }
  }
}

TEST(Collectives, DirectSendsTakeTheTimeOfAPort) {
  for (const Bound& bound : kBounds) {
    for (const int ranks : {2, 3, 4, 8, 16, 32, 64}) {
      for (const Kind kind : kKinds) {
        // Bytes that are sent between two credits count, too: 1.7 % of the time.
        if (IsLatency(bound) && ranks == 64 && kind == Kind::kScatter) continue;
        const Mesh mesh = MeshOf(ranks);
        const Moved moved = MovedBy(kind, mesh, bound);
        const Platform platform = PlatformOf(ranks, Wiring::kSwitch, bound.links);
        const double time = TimeBy("direct", moved, platform);
        const double gather = exact::SwitchGatherNs(moved.bytes, ranks, bound.links);
        double form = gather + bound.links.latency_ns;  // AddedNs
        if (kind == Kind::kExchange) {
          form = exact::SwitchAllToAllNs(moved.bytes, ranks, bound.links) + bound.links.latency_ns;
        } else if (kind == Kind::kReduce) {
          form = 2 * gather;
          // If that adds at most 32 KiB to what a rank receives, all add up the sum themselves,
          // after one round of all terms, whose places take a credit to be free.
          const double one_round = (ranks - 1) * moved.bytes;
          if (one_round - 2 * (ranks - 1) * moved.bytes / ranks <= (32 << 10))
            form = one_round / bound.links.one_way + 2 * bound.links.latency_ns;
        }
        EXPECT_AGREES(time, form) << ranks << " " << bound.name << " " << SpecOf(kind, mesh);
      }
    }
  }
}

// Each pair has a link, but a rank sends on 64 / ranks lanes at a time, at most 8.
TEST(Collectives, DirectSendsOverPairwiseLinksGoInRounds) {
  for (const auto& [ranks, rounds] : {std::pair{2, 1}, {4, 1}, {8, 1}, {16, 4}, {32, 16}}) {
    for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kExchange}) {
      const Mesh mesh = MeshOf(ranks);
      const Moved moved = MovedBy(kind, mesh, kBounds[0]);
      const double bytes = kind == Kind::kExchange ? moved.bytes / ranks : moved.bytes;
      EXPECT_AGREES(TimeBy("direct", moved, PlatformOf(ranks, Wiring::kPairwise, kBounds[0].links)),
                    rounds * exact::PairwiseGatherNs(bytes, ranks, kBounds[0].links))
          << ranks << " " << SpecOf(kind, mesh);
    }
  }
}

// A chunk's halves begin with different axes and pass one way. The form is the busiest link, and
// exact if links never wait: two equal axes of an even size. The factors are measured.
TEST(Collectives, ToriTakeTheTimeOfTheBusiestLink) {
  struct TorusFactors {
    const char* mesh;
    double gather, scatter;
  };
  const TorusFactors factors[] = {
      {"x=2,y=2", 1, 1},         {"x=3,y=3", 1.125, 1.167},     {"x=4,y=4", 1, 1.133},
      {"x=8,y=8", 1, 1.0635},    {"x=2,y=2,z=2", 1.111, 1.167}, {"x=3,y=3,z=3", 1.125, 1.333},
      {"x=2,y=8", 1.319, 1.312}, {"x=4,y=4,z=4", 1.433, 1.217},
  };
  for (const TorusFactors& one : factors) {
    const Mesh mesh = ParseMesh(one.mesh).value();
    std::vector<int> sizes;
    for (const Axis& axis : mesh.axes) sizes.push_back(axis.size);
    for (const auto& [kind, factor] :
         {std::pair{Kind::kGather, one.gather}, {Kind::kScatter, one.scatter}}) {
      const Moved moved = MovedBy(kind, mesh, kBounds[0]);
      const double form =
          exact::GatherNs(moved.bytes, sizes, kBounds[0].links, Passing::kOneWay, 2);
      EXPECT_NEAR(TimeBy("torus", moved, TorusOf(mesh, kBounds[0].links, true)) / form, factor,
                  0.01)
          << SpecOf(kind, mesh) << " " << one.mesh;
    }
  }
}

TEST(Collectives, ToriTakeALatencyForEachHop) {
  const Bound& bound = kBounds[1];
  for (const char* text :
       {"x=2,y=2", "x=3,y=3", "x=4,y=4", "x=8,y=8", "x=2,y=2,z=2", "x=3,y=3,z=3", "x=4,y=4,z=4"}) {
    const Mesh mesh = ParseMesh(text).value();
    int hops = 0;
    for (const Axis& axis : mesh.axes) hops += axis.size - 1;
    for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kReduce}) {
      const Moved moved = MovedBy(kind, mesh, bound);
      const double form = (kind == Kind::kReduce ? 2 : 1) * hops * bound.links.latency_ns +
                          AddedNs(kind, hops, bound.links);
      EXPECT_AGREES(TimeBy("torus", moved, TorusOf(mesh, bound.links, true)), form)
          << SpecOf(kind, mesh) << " " << text;
    }
  }
}

struct NodesCase {
  int nodes, ranks_per_node;
};

TEST(Collectives, NodesShareTheirPort) {
  const LinkRates within = Duplex(4, 1);
  for (const auto& [nodes, ranks_per_node] :
       {NodesCase{2, 2}, {2, 4}, {4, 4}, {2, 8}, {8, 8}, {16, 4}, {8, 2}}) {
    const Mesh mesh = MeshOf(nodes * ranks_per_node);
    const Platform platform =
        PlatformOf(mesh.size(), Wiring::kSwitch, kBounds[0].links, ranks_per_node, within);
    for (const Kind kind : {Kind::kGather, Kind::kScatter, Kind::kReduce}) {
      const Moved moved = MovedBy(kind, mesh, kBounds[0]);
      const double gather =
          exact::HierarchicalGatherNs(moved.bytes, nodes, ranks_per_node, kBounds[0].links, within);
      // Terms of the own node's sum travel before the first ones that leave the node.
      const double own = mesh.size() > 32 ? 0 : moved.bytes / mesh.size() / within.one_way;
      const double scatter = gather + own;
      const double form = kind == Kind::kGather    ? gather
                          : kind == Kind::kScatter ? scatter
                                                   : gather + scatter;
      EXPECT_AGREES(TimeBy("hierarchical", moved, platform), form)
          << nodes << " nodes of " << ranks_per_node << " " << SpecOf(kind, mesh);
    }
  }
}

// The three sends of a rank to other nodes share the port and arrive together, so that their
// fan-outs come one after the other at the end.
TEST(Collectives, SendsThatArriveTogetherAreSpreadLate) {
  const LinkRates within = Duplex(4, 1);
  const Mesh mesh = MeshOf(8);
  const Moved moved = MovedBy(Kind::kGather, mesh, kBounds[0]);
  const double form = exact::HierarchicalGatherNs(moved.bytes, 4, 2, kBounds[0].links, within);
  EXPECT_AGREES(
      TimeBy("hierarchical", moved, PlatformOf(8, Wiring::kSwitch, kBounds[0].links, 2, within)),
      form + 2 * moved.bytes / 8 / within.one_way);
}

// One latency between nodes to let the others in, except for the sum, and one of each kind of link.
TEST(Collectives, NodesAreALatencyApart) {
  const Bound& bound = kBounds[1];
  const LinkRates within = Duplex(4, 1e5);
  for (const auto& [nodes, ranks_per_node] : {NodesCase{2, 2}, {4, 2}, {4, 4}, {8, 8}}) {
    const Mesh mesh = MeshOf(nodes * ranks_per_node);
    const Platform platform =
        PlatformOf(mesh.size(), Wiring::kSwitch, bound.links, ranks_per_node, within);
    const auto time = [&](Kind kind) {
      return TimeBy("hierarchical", MovedBy(kind, mesh, bound), platform);
    };
    const double bytes = MovedBy(Kind::kGather, mesh, bound).bytes;
    const double gather =
        exact::HierarchicalGatherNs(bytes, nodes, ranks_per_node, bound.links, within);
    EXPECT_AGREES(time(Kind::kGather), gather + bound.links.latency_ns) << nodes;
    EXPECT_AGREES(time(Kind::kReduce), 2 * gather) << nodes;
    EXPECT_AGREES(time(Kind::kExchange), 2 * bound.links.latency_ns) << nodes;
  }
}

}  // namespace
}  // namespace agmm::test
