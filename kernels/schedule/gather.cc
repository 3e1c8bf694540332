#include "kernels/schedule/gather.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace agmm {
namespace {

class Builder {
 public:
  Builder(const Problem& problem, const GatherRoutes& routes)
      : problem_(problem), routes_(routes), slot_counts_(problem.mesh.size(), 0) {
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
      for (int chunk : routes.multiplies[rank]) ++readers_[{rank, chunk}];
      for (const Hop& hop : routes.sends[rank]) ++readers_[{rank, hop.chunk}];
    }
  }

  Schedule Build(const std::string& algorithm) {
    Schedule schedule;
    schedule.algorithm = algorithm;
    schedule.ranks.resize(problem_.mesh.size());
    PlaceArrivals();
    schedule.workspace_bytes = workspace_bytes_;
    for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) {
      for (int chunk : routes_.multiplies[rank])
        schedule.ranks[rank].push_back(MultiplyStep(rank, chunk));
      for (int i = 0; i < static_cast<int>(routes_.sends[rank].size()); ++i)
        schedule.ranks[rank].push_back(SendStep(routes_.sends[rank][i], SendLane(problem_, i)));
    }
    return schedule;
  }

 private:
  // A chunk at a rank that receives it.
  struct Arrival {
    Place place;
    Slot arrived;
    std::vector<Slot> credits;  // one for each reader; in the sender's memory
    int next_credit = 0;        // of the next reader that is built
  };

  Slot NewSlot(Rank rank) { return {rank, slot_counts_[rank]++}; }

  // Places the arrivals of each rank one behind the other, in the order in which they are sent.
  void PlaceArrivals() {
    const Tensor& a = problem_.tensors[kA];
    const int64_t pitch = ShardPitchBytes(problem_.mesh, a);
    std::vector<int64_t> used(problem_.mesh.size(), 0);
    for (const auto& sends : routes_.sends) {
      for (const Hop& hop : sends) {
        Arrival arrival;
        arrival.place = {hop.to, kWorkspace, used[hop.to], pitch, a.dtype};
        used[hop.to] += routes_.chunks[hop.chunk].rows.size() * pitch;
        arrival.arrived = NewSlot(hop.to);
        for (int i = readers_[{hop.to, hop.chunk}]; i > 0; --i)
          arrival.credits.push_back(NewSlot(hop.from));
        arrivals_.emplace(std::pair(hop.to, hop.chunk), std::move(arrival));
      }
    }
    workspace_bytes_ = *std::max_element(used.begin(), used.end());
  }

  Block BlockOf(int chunk) const { return RowsOfA(problem_, routes_.chunks[chunk].rows); }

  // The place where `rank` reads `chunk`. Adds the wait for its arrival and the credit to `step`.
  Place Source(Rank rank, int chunk, Step* step) {
    if (routes_.chunks[chunk].owner == rank) return ResidentPlace(problem_, BlockOf(chunk), rank);
    Arrival& arrival = arrivals_.at({rank, chunk});
    step->waits.push_back({arrival.arrived, 0});
    step->signals.push_back(arrival.credits[arrival.next_credit++]);
    return arrival.place;
  }

  Step MultiplyStep(Rank rank, int chunk) {
    Step step;
    step.lane = kComputeLane;
    const Place a = Source(rank, chunk, &step);
    step.op = RowsTimesB(problem_, rank, routes_.chunks[chunk].rows, a);
    return step;
  }

  Step SendStep(const Hop& hop, int lane) {
    Step step;
    step.lane = lane;
    const Arrival& arrival = arrivals_.at({hop.to, hop.chunk});
    step.signals.push_back(arrival.arrived);
    for (const Slot& credit : arrival.credits) step.waits.push_back({credit, 1});
    const Place from = Source(hop.from, hop.chunk, &step);
    step.op = Transfer{BlockOf(hop.chunk), from, {arrival.place}};
    return step;
  }

  const Problem& problem_;
  const GatherRoutes& routes_;
  std::vector<int> slot_counts_;
  // The number of readers of a chunk at a rank: its multiply, and each hop onwards.
  absl::flat_hash_map<std::pair<Rank, int>, int> readers_;
  absl::flat_hash_map<std::pair<Rank, int>, Arrival> arrivals_;  // by (rank, chunk)
  int64_t workspace_bytes_ = 0;
};

}  // namespace

int SendLane(const Problem& problem, int index) {
  return kComputeLane + 1 + index % std::clamp(64 / problem.mesh.size(), 2, 8);
}

std::vector<std::vector<Rank>> GatherGroups(const Problem& problem) {
  // Ranks of a group agree along every axis that does not shard A's rows. Their index along the
  // sharding axes orders them, because empty shards have no first row.
  const Mesh& mesh = problem.mesh;
  const std::vector<int>& gathered = problem.tensors[kA].sharding.rows;
  std::map<std::vector<int>, std::map<std::vector<int>, Rank>> groups;
  for (Rank rank = 0; rank < mesh.size(); ++rank) {
    std::vector<int> outside, inside;
    for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
      if (std::count(gathered.begin(), gathered.end(), axis) == 0)
        outside.push_back(mesh.Coordinate(rank, axis));
    }
    for (int axis : gathered) inside.push_back(mesh.Coordinate(rank, axis));
    groups[outside][inside] = rank;
  }
  std::vector<std::vector<Rank>> result;
  for (const auto& [outside, members] : groups) {
    result.emplace_back();
    for (const auto& [inside, rank] : members) result.back().push_back(rank);
  }
  return result;
}

GatherRoutes SplitShards(const Problem& problem, int chunks, std::vector<GatherGroup>* groups) {
  GatherRoutes routes;
  routes.sends.resize(problem.mesh.size());
  routes.multiplies.resize(problem.mesh.size());
  groups->clear();
  for (std::vector<Rank> ranks : GatherGroups(problem)) {
    GatherGroup& group = groups->emplace_back();
    group.by_shard.resize(ranks.size());
    for (size_t i = 0; i < ranks.size(); ++i) {
      const Range shard = ShardBlock(problem, kA, ranks[i]).rows;
      for (int piece = 0; piece < chunks; ++piece) {
        const Range rows = SplitRange(shard.size(), chunks, piece);
        if (rows.empty()) continue;
        group.by_shard[i].push_back(static_cast<int>(routes.chunks.size()));
        routes.chunks.push_back({ranks[i], {shard.begin + rows.begin, shard.begin + rows.end}});
      }
    }
    group.ranks = std::move(ranks);
  }
  return routes;
}

bool HasColumns(const Problem& problem, Rank rank) {
  return !ShardBlock(problem, kC, rank).cols.empty();
}

Block RowsOfA(const Problem& problem, Range rows) { return {kA, rows, {0, problem.k()}}; }

Multiply RowsTimesB(const Problem& problem, Rank rank, Range rows, const Place& a_place) {
  Multiply multiply;
  multiply.a = RowsOfA(problem, rows);
  multiply.b = ShardBlock(problem, kB, rank);
  multiply.c = {kC, rows, multiply.b.cols};
  multiply.a_place = a_place;
  multiply.b_place = ResidentPlace(problem, multiply.b, rank);
  multiply.out = ResidentPlace(problem, multiply.c, rank);
  return multiply;
}

Schedule BuildGather(const Problem& problem, const std::string& algorithm,
                     const GatherRoutes& routes) {
  return Builder(problem, routes).Build(algorithm);
}

}  // namespace agmm
