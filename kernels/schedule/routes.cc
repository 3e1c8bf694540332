#include "kernels/schedule/routes.h"

#include <algorithm>
#include <map>
#include <utility>

namespace agmm {
namespace {

// At most `down` hops down the cycle from the source, and then at most `up` hops up from it, each
// way until the last needer.
std::vector<Hop> Around(const Spread& spread, int down, int up) {
  const std::vector<Rank> cycle = CycleOf(spread);
  const int size = static_cast<int>(cycle.size());
  const auto add = [&](int most, const auto& at, std::vector<Hop>& hops) {
    int count = 0;
    for (int i = 1; i <= most; ++i)
      if (std::binary_search(spread.needers.begin(), spread.needers.end(), at(i))) count = i;
    for (int i = 1; i <= count; ++i) hops.push_back({at(i - 1), at(i), i});
  };
  std::vector<Hop> hops;
  add(
      down, [&](int i) { return cycle[i]; }, hops);
  add(
      up, [&](int i) { return cycle[(size - i) % size]; }, hops);
  return hops;
}

// The number of ranks of the cycle besides the source.
int OthersOf(const Spread& spread) {
  return static_cast<int>(spread.ring == nullptr ? spread.needers.size() : spread.ring->size() - 1);
}

// In an exchange: inside the source's node first, and then between nodes.
std::vector<Hop> ThroughOwnNode(const Spread& spread) {
  const std::vector<int>& node_of = spread.topology.node_of_rank;
  const auto members = [&](Rank of) {
    std::vector<Rank> ranks;
    for (Rank rank : *spread.ring)
      if (node_of[rank] == node_of[of]) ranks.push_back(rank);
    return ranks;
  };
  const auto index = [](const std::vector<Rank>& ranks, Rank rank) {
    return static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  };
  const std::vector<Rank> own = members(spread.source);
  const Rank to = spread.needers.front();
  const int size = static_cast<int>(own.size()), at = index(own, spread.source);
  const auto below = [&](int other) { return (at - other + size) % size; };
  if (node_of[to] == node_of[spread.source]) return {{spread.source, to, below(index(own, to))}};
  const int exit = index(members(to), to) % size;
  std::vector<Hop> hops;
  if (exit != at) hops.push_back({spread.source, own[exit], below(exit)});
  const int nodes = *std::max_element(node_of.begin(), node_of.end()) + 1;
  hops.push_back({own[exit], to, size + (node_of[spread.source] - node_of[to] + nodes) % nodes});
  return hops;
}

// In an exchange: from neighbour to neighbour, along one axis after the other. `axes`: those along
// which the ranks differ.
std::vector<Hop> AlongAxes(const Spread& spread, const std::vector<int>& axes) {
  const Mesh& mesh = spread.mesh;
  std::vector<Hop> hops;
  Rank at = spread.source;
  for (const int axis : axes) {
    const int size = mesh.axes[axis].size;
    int stride = 1;
    for (size_t i = axis + 1; i < mesh.axes.size(); ++i) stride *= mesh.axes[i].size;
    while (mesh.Coordinate(at, axis) != mesh.Coordinate(spread.needers.front(), axis)) {
      const Rank next = at + (mesh.Coordinate(at, axis) == 0 ? size - 1 : -1) * stride;
      hops.push_back({at, next, static_cast<int>(hops.size()) + 1});
      at = next;
    }
  }
  return hops;
}

// Adds hops from `from` to the other members, nearest below first, that arrive after `step`.
void FanOut(Rank from, std::vector<Rank> members, int step, std::vector<Hop>& hops) {
  std::sort(members.rbegin(), members.rend());
  // Ranks below `from` come first.
  std::stable_partition(members.begin(), members.end(), [&](Rank rank) { return rank < from; });
  for (Rank to : members) {
    if (to != from) hops.push_back({from, to, ++step});
  }
}

}  // namespace

std::vector<Rank> CycleOf(const Spread& spread) {
  std::vector<Rank> cycle = spread.needers;
  cycle.push_back(spread.source);
  if (spread.ring != nullptr) cycle = *spread.ring;
  const std::vector<int>& node = spread.topology.node_of_rank;
  std::sort(cycle.begin(), cycle.end(),
            [&](Rank a, Rank b) { return std::pair(node[a], a) > std::pair(node[b], b); });
  std::rotate(cycle.begin(), std::find(cycle.begin(), cycle.end(), spread.source), cycle.end());
  return cycle;
}

// The order of the guide "Collective matrix multiplication" of Pallas:MGPU (JAX documentation).
std::vector<Hop> RingRoute(const Spread& spread) { return Around(spread, OthersOf(spread), 0); }

// The order of the TPU guide.
std::vector<Hop> BidirectionalRingRoute(const Spread& spread) {
  const int others = OthersOf(spread);
  return Around(spread, others - others / 2, others / 2);
}

std::vector<Hop> SplitRingRoute(const Spread& spread) {
  const int others = OthersOf(spread);
  return spread.piece % 2 == 0 ? Around(spread, others, 0) : Around(spread, 0, others);
}

std::vector<Hop> DirectRoute(const Spread& spread) {
  if (spread.needers.size() == 1) {
    // In an exchange, where all ranks send to all others, each is then sent to by one at a time.
    const int ranks = spread.mesh.size();
    const Rank needer = spread.needers.front();
    return {{spread.source, needer, (spread.source - needer + ranks) % ranks}};
  }
  const std::vector<Rank> cycle = CycleOf(spread);
  std::vector<Hop> hops;
  for (int i = 1; i < static_cast<int>(cycle.size()); ++i)
    hops.push_back({spread.source, cycle[i], i});
  return hops;
}

// The order between and within nodes follows the 2D all-gather GEMM of Triton-distributed.
std::vector<Hop> HierarchicalRoute(const Spread& spread) {
  if (spread.ring != nullptr) return ThroughOwnNode(spread);
  if (spread.needers.size() == 1) return DirectRoute(spread);
  const std::vector<int>& node_of = spread.topology.node_of_rank;
  const int own = node_of[spread.source];
  std::map<int, std::vector<Rank>> by_node;
  for (Rank rank : spread.needers) by_node[node_of[rank]].push_back(rank);
  // The index of the source on its node, by which other nodes choose the rank that it sends to.
  const size_t index = std::count(node_of.begin(), node_of.begin() + spread.source, own);
  std::vector<Hop> hops;
  FanOut(spread.source, by_node[own], 0, hops);
  size_t largest = by_node[own].size() + 1;
  for (const auto& [node, ranks] : by_node) largest = std::max(largest, ranks.size());
  // The other nodes, nearest below first.
  std::vector<int> nodes;
  for (auto at = by_node.find(own); at != by_node.begin();) nodes.push_back((--at)->first);
  for (auto at = by_node.end(); (--at)->first != own;) nodes.push_back(at->first);
  for (size_t i = 0; i < nodes.size(); ++i) {
    const std::vector<Rank>& ranks = by_node[nodes[i]];
    const Rank entry = ranks[index % ranks.size()];
    const int step = static_cast<int>(largest * (i + 1));
    hops.push_back({spread.source, entry, step});
    FanOut(entry, ranks, step, hops);
  }
  return hops;
}

std::vector<Hop> TorusRoute(const Spread& spread) {
  const Mesh& mesh = spread.mesh;
  // The axes along which the ranks differ, starting with one that depends on the piece.
  std::vector<int> axes;
  for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
    if (std::any_of(spread.needers.begin(), spread.needers.end(), [&](Rank rank) {
          return mesh.Coordinate(rank, axis) != mesh.Coordinate(spread.source, axis);
        })) {
      axes.push_back(axis);
    }
  }
  std::rotate(axes.begin(), axes.begin() + spread.piece % axes.size(), axes.end());
  if (spread.ring != nullptr) return AlongAxes(spread, axes);
  // Ranks that have the chunk. `position`: the hops along each axis so far, as one number, the
  // first axis fastest. A link takes the hops of an axis one by one, ordered by position.
  struct Reached {
    Rank rank;
    int position;
  };
  std::vector<Reached> reached = {{spread.source, 0}};
  std::vector<Rank> left = spread.needers;
  std::vector<Hop> hops;
  int stride = 1;
  for (int axis : axes) {
    const int size = mesh.axes[axis].size;
    int rank_stride = 1;
    for (size_t i = axis + 1; i < mesh.axes.size(); ++i) rank_stride *= mesh.axes[i].size;
    for (size_t i = 0, count = reached.size(); i < count; ++i) {
      Reached at = reached[i];
      const int coordinate = mesh.Coordinate(at.rank, axis);
      const Rank first = at.rank - coordinate * rank_stride;
      for (int d = 1; d < size; ++d) {
        const Rank to = first + (coordinate - d + size) % size * rank_stride;
        const auto needer = std::find(left.begin(), left.end(), to);
        if (needer == left.end()) continue;
        left.erase(needer);
        const int position = reached[i].position + d * stride;
        hops.push_back({at.rank, to, position - stride + 1});
        at = {to, position};
        reached.push_back(at);
      }
    }
    stride *= size;
  }
  // Adds hops to ranks that no line of the mesh reaches, because the ranks between do not need the
  // chunk.
  for (Rank to : left) hops.push_back({spread.source, to, stride++});
  return hops;
}

std::vector<Hop> Reversed(std::vector<Hop> hops) {
  if (hops.empty()) return hops;
  const auto [first, last] = std::minmax_element(
      hops.begin(), hops.end(), [](const Hop& x, const Hop& y) { return x.step < y.step; });
  const int sum = first->step + last->step;
  std::reverse(hops.begin(), hops.end());
  for (Hop& hop : hops) {
    std::swap(hop.from, hop.to);
    hop.step = sum - hop.step;
  }
  return hops;
}

}  // namespace agmm
