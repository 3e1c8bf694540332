// The choice of `auto`: few bytes between nodes, and reasons that are true of the plan.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <random>
#include <regex>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/algorithm/container.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "kernels/schedule/text.h"
#include "tests/schedule/shardings.h"
#include "tests/support/seed.h"

namespace agmm::test {
namespace {

// A plan with chosen options.
struct Chosen {
  Problem problem;
  Topology topology;
  ResolvedOptions resolved;
  Schedule schedule;
};

int64_t BytesBetweenNodes(const Topology& topology, const Schedule& schedule) {
  int64_t bytes = 0;
  for (const Traffic& traffic : TrafficOf(topology, schedule)) bytes += traffic.other_nodes;
  return bytes;
}

bool RanksShareANode(const Topology& topology) {
  const std::set<int> nodes(topology.node_of_rank.begin(), topology.node_of_rank.end());
  return static_cast<int>(nodes.size()) < topology.rank_count();
}

// A copy of a block from one rank to another.
struct Copy {
  Block block;
  Rank from, to;
  bool terms;  // of a sum
};
std::vector<Copy> CopiesOf(const Chosen& chosen) {
  std::set<std::pair<Rank, int64_t>> added;  // places in the workspace that a reduction reads
  for (Rank rank = 0; rank < static_cast<Rank>(chosen.schedule.ranks.size()); ++rank) {
    for (const Step& step : chosen.schedule.ranks[rank]) {
      if (!std::holds_alternative<Reduce>(step.op)) continue;
      ForEachPlace(step.op, [&](const Block&, const Place& place, Use use) {
        if (use == Use::kRead && place.buffer == kWorkspace)
          added.emplace(place.rank, place.offset_bytes);
      });
    }
  }
  std::vector<Copy> copies;
  for (const std::vector<Step>& steps : chosen.schedule.ranks) {
    for (const Step& step : steps) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      if (transfer == nullptr) continue;
      for (const Place& to : transfer->to)
        if (to.rank != transfer->from.rank)
          copies.push_back(
              {transfer->block, transfer->from.rank, to.rank,
               to.buffer == kWorkspace && added.count({to.rank, to.offset_bytes}) > 0});
    }
  }
  return copies;
}

// Terms cross once from each node to the rank that sums them, and each part of an open sum crosses
// for itself.
bool EachBlockCrossesToANodeOnce(const Chosen& chosen) {
  // By node, operand and part; of terms, also by the node that they come from and the rank that
  // adds them.
  std::map<std::tuple<int, Operand, int, int, Rank>, std::vector<Block>> arrived;
  for (const Copy& copy : CopiesOf(chosen)) {
    if (chosen.topology.SameNode(copy.from, copy.to)) continue;
    const std::vector<int>& node = chosen.topology.node_of_rank;
    const std::vector<int>& open = chosen.problem.tensors[copy.block.operand].sharding.open;
    std::vector<Block>& there = arrived[{
        node[copy.to], copy.block.operand, PositionAlong(chosen.problem.mesh, open, copy.from).part,
        copy.terms ? node[copy.from] : -1, copy.terms ? copy.to : -1}];
    for (const Block& block : there)
      if (!Intersect(block, copy.block).empty()) return false;
    there.push_back(copy.block);
  }
  return !arrived.empty();
}

// Returns the pairs of ranks of which one multiplies from the other's memory.
std::set<std::pair<Rank, Rank>> LoadsOf(const Schedule& schedule) {
  std::set<std::pair<Rank, Rank>> loads;
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      const auto* multiply = std::get_if<Multiply>(&step.op);
      if (multiply == nullptr) continue;
      for (const Place* place : {&multiply->a_place, &multiply->b_place})
        if (place->rank != rank) loads.emplace(rank, place->rank);
    }
  }
  return loads;
}

// Returns true if a rank adds up terms from another one's memory.
bool SumsInPlace(const Schedule& schedule) {
  for (Rank rank = 0; rank < static_cast<Rank>(schedule.ranks.size()); ++rank) {
    for (const Step& step : schedule.ranks[rank]) {
      const auto* reduce = std::get_if<Reduce>(&step.op);
      if (reduce == nullptr) continue;
      for (const Place& from : reduce->from)
        if (from.rank != rank) return true;
    }
  }
  return false;
}

// Returns true if ranks of one sum each finish all of it.
bool SumsEverywhere(const Chosen& chosen, const Schedule& schedule) {
  const std::vector<Copy> copies =
      CopiesOf({chosen.problem, chosen.topology, chosen.resolved, schedule});
  bool both_ways = false;
  for (const Copy& copy : copies) {
    if (!copy.terms) continue;
    for (const Copy& other : copies)
      both_ways |= other.terms && other.from == copy.to && other.to == copy.from &&
                   !Intersect(other.block, copy.block).empty();
  }
  return both_ways;
}

int64_t MultiplyCount(const Schedule& schedule, Rank rank) {
  int64_t count = 0;
  for (const Step& step : schedule.ranks[rank]) count += std::holds_alternative<Multiply>(step.op);
  return count;
}

// A reason, and its claim about the plan. The groups of its text are numbers and names.
struct Claim {
  const char* text;
  std::function<bool(const Chosen&, const std::smatch&)> holds;
};

const Claim kClaims[] = {
    {"nothing has to move",
     [](const Chosen& c, const std::smatch&) { return c.schedule.algorithm == "local"; }},
    {"auto takes peer: ranks that exchange blocks share a node, and read each other's shards in "
     "place",
     [](const Chosen& c, const std::smatch&) {
       return BytesBetweenNodes(c.topology, c.schedule) == 0 && !LoadsOf(c.schedule).empty() &&
              absl::c_all_of(CopiesOf(c), [&](const Copy& copy) {
                return c.problem.Writes(copy.block.operand);
              });
     }},
    {"auto takes peer: ranks that exchange blocks share a node, and add up each other's partial "
     "sums in place",
     [](const Chosen& c, const std::smatch&) {
       return BytesBetweenNodes(c.topology, c.schedule) == 0 && SumsInPlace(c.schedule);
     }},
    {"auto takes peer: ranks that exchange blocks share a node",
     [](const Chosen& c, const std::smatch&) {
       const std::vector<Copy> copies = CopiesOf(c);
       return LoadsOf(c.schedule).empty() && !copies.empty() &&
              absl::c_all_of(copies, [&](const Copy& copy) {
                return c.problem.Writes(copy.block.operand) &&
                       c.topology.SameNode(copy.from, copy.to);
              });
     }},
    {"auto takes ring: ranks that exchange blocks share a node, but not all of them can load each "
     "other's memory",
     [](const Chosen& c, const std::smatch&) {
       return BytesBetweenNodes(c.topology, c.schedule) == 0 &&
              absl::c_any_of(CopiesOf(c), [&](const Copy& copy) {
                return !c.topology.CanLoad(copy.from, copy.to);
              });
     }},
    {"auto takes hierarchical: some ranks share a node, and each block crosses to a node only once",
     [](const Chosen& c, const std::smatch&) {
       return RanksShareANode(c.topology) && EachBlockCrossesToANodeOnce(c);
     }},
    {"auto takes direct: each rank is on a node of its own",
     [](const Chosen& c, const std::smatch&) {
       return !RanksShareANode(c.topology) && BytesBetweenNodes(c.topology, c.schedule) > 0;
     }},
    {"auto takes hierarchical: some ranks share a node, and a node's small chunks for one rank "
     "leave "
     "in one message",
     [](const Chosen& c, const std::smatch&) {
       std::map<std::pair<Rank, int>, int> crossed;  // by receiver and sending node
       for (const Copy& copy : CopiesOf(c)) {
         if (!c.topology.SameNode(copy.from, copy.to))
           ++crossed[{copy.to, c.topology.node_of_rank[copy.from]}];
       }
       return !crossed.empty() &&
              absl::c_all_of(crossed, [](const auto& one) { return one.second == 1; });
     }},
    {"auto takes direct: each block goes to one rank",
     [](const Chosen& c, const std::smatch&) {
       const std::vector<Copy> copies = CopiesOf(c);
       return absl::c_all_of(copies, [&](const Copy& x) {
         return absl::c_count_if(copies, [&](const Copy& y) {
                  return x.from == y.from && !Intersect(x.block, y.block).empty();
                }) == 1;
       });
     }},
    {"auto takes serial: with ([0-9]+) (rows|columns) per shard, reading (.) again for each piece "
     "costs more than the gather",
     [](const Chosen& c, const std::smatch& words) {
       const bool rows = words[2] == "rows";
       const Operand gathered = rows ? kA : kB, read_again = rows ? kB : kA;
       int64_t length = 0;
       for (Rank rank = 0; rank < c.problem.mesh.size(); ++rank) {
         const Block shard = ShardBlock(c.problem, gathered, rank);
         length = std::max(length, (rows ? shard.rows : shard.cols).size());
         if (MultiplyCount(c.schedule, rank) > 1) return false;
       }
       return words[1] == std::to_string(length) &&
              words[3] == c.problem.tensors[read_again].name &&
              absl::c_any_of(CopiesOf(c),
                             [&](const Copy& copy) { return copy.block.operand == gathered; });
     }},
};

// Every sharding on nodes of every kind: full, alone, in turn, uneven, in islands.
std::vector<Topology> LayoutsOf(int ranks, std::mt19937_64& random) {
  std::vector<Topology> layouts(6);
  for (Rank rank = 0; rank < ranks; ++rank) {
    layouts[0].node_of_rank.push_back(0);
    layouts[1].node_of_rank.push_back(rank);
    layouts[2].node_of_rank.push_back(rank < (ranks + 1) / 2 ? 0 : 1);
    layouts[3].node_of_rank.push_back(rank % 2);
    layouts[4].node_of_rank.push_back(static_cast<int>(random() % 3));
    layouts[5].node_of_rank.push_back(static_cast<int>(random() % 2));
    layouts[5].island_of_rank.push_back(static_cast<int>(random() % 2));
  }
  layouts.push_back(layouts[0]);
  layouts.back().island_of_rank = layouts[3].node_of_rank;
  return layouts;
}

void ForEachChoice(const PlanOptions& asked, const std::function<void(const Chosen&)>& check) {
  std::mt19937_64 random(TestSeed());
  for (const ShardedCase& one : ShardedCases()) {
    const Mesh mesh = ParseMesh(one.mesh).value();
    for (const Topology& topology : LayoutsOf(mesh.size(), random)) {
      for (const Shape& shape :
           {Shape{10, 7, 13}, Shape{1024, 512, 1024}, Shape{512, 2048, 64}, Shape{16, 4096, 512}}) {
        const Problem problem = ParseProblem(one.spec, mesh, shape, DType::kBF16).value();
        if (asked.k_chunks > 1 && !HasProduct(problem)) continue;  // refused
        const ResolvedOptions resolved = ResolveOptions(problem, topology, asked).value();
        const Schedule schedule = PlanWith(problem, topology, resolved.recipe).value();
        SCOPED_TRACE(absl::StrFormat("AGMM_SEED=%d %s, nodes %s, %s: %s", TestSeed(),
                                     ToString(problem), absl::StrJoin(topology.node_of_rank, ","),
                                     ToString(OptionsOf(problem, resolved.recipe)), resolved.why));
        check({problem, topology, resolved, schedule});
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(Auto, CrossesNodesWithNoMoreBytesThanAnyAlgorithm) {
  ForEachChoice({}, [](const Chosen& chosen) {
    // A rank that sums everything itself may receive up to 32 KiB more, to save a step.
    const int64_t more =
        SumsEverywhere(chosen, chosen.schedule) ? (32 << 10) * chosen.problem.mesh.size() : 0;
    const int64_t bytes = BytesBetweenNodes(chosen.topology, chosen.schedule) - more;
    for (const Algorithm& algorithm : Algorithms()) {
      const std::string split = SplitText(chosen.problem, chosen.resolved.recipe.split);
      const auto other = Plan(chosen.problem, chosen.topology, {algorithm.name, 1, 1, split});
      // Terms in two steps are f32. In one step, they travel as they are.
      if (!other.ok() ||
          (SumsEverywhere(chosen, *other) && !SumsEverywhere(chosen, chosen.schedule)))
        continue;
      EXPECT_LE(bytes, BytesBetweenNodes(chosen.topology, *other)) << algorithm.name;
    }
  });
}

TEST(Auto, GivesOnlyReasonsThatAreTrueOfItsPlan) {
  std::map<const Claim*, int> given;
  ForEachChoice({}, [&](const Chosen& chosen) {
    for (const auto part : absl::StrSplit(chosen.resolved.why, "; ")) {
      const std::string reason(part);
      std::smatch words;
      const Claim* const claim = std::find_if(
          std::begin(kClaims), std::end(kClaims),
          [&](const Claim& one) { return std::regex_match(reason, words, std::regex(one.text)); });
      ASSERT_NE(claim, std::end(kClaims)) << "nothing is known that would prove it: " << reason;
      EXPECT_TRUE(claim->holds(chosen, words)) << Print(chosen.problem, chosen.schedule);
      ++given[claim];
    }
  });
  if (HasFailure()) return;
  for (const Claim& claim : kClaims) EXPECT_GT(given[&claim], 0) << claim.text;
}

TEST(Auto, NeverAnswersARequestForPiecesWithSerial) {
  for (const PlanOptions& asked : {PlanOptions{"auto", 8, 0}, PlanOptions{"auto", 0, 8}}) {
    ForEachChoice(asked, [](const Chosen& chosen) {
      EXPECT_NE(chosen.resolved.recipe.algorithm->name, "serial");
    });
  }
}

}  // namespace
}  // namespace agmm::test
