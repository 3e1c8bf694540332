#include "kernels/predict/network.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

// The step along an axis of the torus that shortens the way, or 0. Of two ways of equal length,
// even coordinates take the upward one, so that both carry half of an all-to-all.
int StepAlong(const TorusAxis& axis, int from, int to) {
  if (from == to) return 0;
  if (!axis.wraps) return to > from ? 1 : -1;
  const int up = (to - from + axis.size) % axis.size;
  if (2 * up == axis.size) return from % 2 == 0 ? 1 : -1;
  return 2 * up < axis.size ? 1 : -1;
}

}  // namespace

Network::Network(const Platform& platform) : platform_(platform) {
  for (Rank rank = 0; rank < platform.topology.rank_count(); ++rank) {
    names_.push_back(absl::StrCat("rank ", rank, "'s cores"));
    names_.push_back(absl::StrCat("rank ", rank, "'s memory"));
  }
  // Only nodes have pairs.
  const std::vector<int>& nodes = platform.topology.node_of_rank;
  const absl::flat_hash_set<int> known(nodes.begin(), nodes.end());
  for (const PairRates& pair : platform.machine.between.pairs)
    if (known.contains(pair.from) && known.contains(pair.to)) pairs_[{pair.from, pair.to}] = &pair;
  burst_left_bytes_.resize(names_.size(), 0);
  burst_ns_.resize(names_.size(), 0);
}

Resource Network::LinkNamed(std::string name, double burst_bytes) {
  const auto [at, is_new] = links_.try_emplace(name, resource_count());
  if (is_new) {
    names_.push_back(std::move(name));
    burst_left_bytes_.push_back(burst_bytes);
    burst_ns_.push_back(0);
  }
  return at->second;
}

double Network::TakeBurst(const Path::Hop& hop, double bytes) {
  const double taken = std::min(bytes, burst_left_bytes_[hop.resource]);
  burst_left_bytes_[hop.resource] -= taken;
  burst_ns_[hop.resource] += taken / hop.bytes_per_ns;
  return taken;
}

void Network::AddDuplex(const std::string& forward, const std::string& both, const LinkRates& rates,
                        Path* path) {
  path->hops.push_back({LinkNamed(forward, rates.burst_bytes), rates.one_way});
  if (rates.two_way < 2 * rates.one_way)
    path->hops.push_back({LinkNamed(both, 2 * rates.burst_bytes), rates.two_way});
}

void Network::AddLinks(const Links& links, const Ends& ends, Path* path) {
  path->latency_ns = links.rates.latency_ns;
  const auto [from, to, kind] = ends;
  if (links.wiring == Wiring::kSwitch) {
    const auto port = [&](int end) { return absl::StrCat(kind, " ", end, "'s port"); };
    AddDuplex(port(from) + ", out", port(from), links.rates, path);
    AddDuplex(port(to) + ", in", port(to), links.rates, path);
  } else {
    const auto link = [&](int a, int b, const char* arrow) {
      return absl::StrCat("link of ", kind, "s ", a, arrow, b);
    };
    AddDuplex(link(from, to, " -> "), link(std::min(from, to), std::max(from, to), " <-> "),
              links.rates, path);
  }
  if (links.pairs.empty()) return;
  if (const auto found = pairs_.find({from, to}); found != pairs_.end()) {
    const PairRates& pair = *found->second;
    path->hops.push_back(
        {LinkNamed(absl::StrCat("path of ", kind, "s ", from, " -> ", to), links.rates.burst_bytes),
         pair.one_way});
    path->latency_ns = pair.latency_ns;
  }
}

// Messages go along one axis after the other.
void Network::AddTorus(Rank from, Rank to, Path* path) {
  const Torus& torus = platform_.torus;
  const LinkRates& rates = platform_.machine.within.rates;
  std::vector<int> at = torus.coordinates[from];
  const auto text = [&](const std::vector<int>& place) { return absl::StrJoin(place, ","); };
  for (size_t i = 0; i < torus.axes.size(); ++i) {
    const TorusAxis& axis = torus.axes[i];
    while (const int step = StepAlong(axis, at[i], torus.coordinates[to][i])) {
      std::vector<int> next = at;
      next[i] = (at[i] + step + axis.size) % axis.size;
      const std::vector<int>&low = step > 0 ? at : next, &high = step > 0 ? next : at;
      AddDuplex(absl::StrCat("link along ", axis.name, " (", text(at), ") -> (", text(next), ")"),
                absl::StrCat("link along ", axis.name, " (", text(low), ") <-> (", text(high), ")"),
                rates, path);
      path->latency_ns += rates.latency_ns;
      at = std::move(next);
    }
  }
}

const Path& Network::Between(Rank from, Rank to) {
  const Machine& machine = platform_.machine;
  const Topology& topology = platform_.topology;
  const bool by_nodes = machine.within.wiring != Wiring::kTorus && !topology.SameNode(from, to);
  const auto [found, is_new] =
      by_nodes ? node_paths_.try_emplace({topology.node_of_rank[from], topology.node_of_rank[to]})
               : paths_.try_emplace({from, to});
  if (!is_new) return *found->second;
  found->second = std::make_unique<Path>();
  Path& path = *found->second;
  if (machine.within.wiring == Wiring::kTorus) {
    AddTorus(from, to, &path);
  } else if (by_nodes) {
    path.is_message = true;
    AddLinks(machine.between, {topology.node_of_rank[from], topology.node_of_rank[to], "node"},
             &path);
  } else {
    path.by_cores = true;
    AddLinks(topology.CanLoad(from, to) ? machine.within : machine.staged, {from, to, "rank"},
             &path);
  }
  return path;
}

}  // namespace agmm
