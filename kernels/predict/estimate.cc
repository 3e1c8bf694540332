#include "kernels/predict/estimate.h"

#include <algorithm>
#include <cmath>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/ascii.h"
#include "absl/strings/str_format.h"

#include "kernels/predict/step_usage.h"
#include "kernels/schedule/cut_demands.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/movement.h"

namespace agmm {
namespace {

double Elements(const Block& block) {
  if (block.empty()) return 0;
  return static_cast<double>(block.rows.size()) * static_cast<double>(block.cols.size());
}

double FlopsOf(const LocalProduct& part) {
  if (part.empty()) return 0;
  return 2.0 * static_cast<double>(part.m.size()) * static_cast<double>(part.n.size()) *
         static_cast<double>(part.k.size());
}

bool SpansNodes(const Topology& topology) {
  return std::any_of(topology.node_of_rank.begin(), topology.node_of_rank.end(),
                     [&](int node) { return node != topology.node_of_rank.front(); });
}

}  // namespace

SplitBound BoundOf(const Problem& problem, const Platform& platform, const Split& split) {
  const Machine& machine = platform.machine;
  SplitBound bound;
  if (!HasProduct(problem)) return bound;
  const SplitCost cost = CostOf(problem, split);
  const bool torus = machine.within.wiring == Wiring::kTorus;
  const LinkRates& rates =
      !torus && SpansNodes(platform.topology) ? machine.between.rates : machine.within.rates;
  // A rank of a torus receives over the links of each axis, in both directions.
  const double ports = torus ? 2.0 * static_cast<double>(platform.torus.axes.size()) : 1;
  bound.comm_ns = static_cast<double>(cost.busiest_bytes) / (rates.one_way * ports);
  bound.compute_ns = GemmNs(machine.device, problem.tensors[TheProduct(problem).a].dtype,
                            static_cast<double>(cost.flops));
  return bound;
}

RouteEstimate::RouteEstimate(const Problem& problem, const Platform& platform, const Split& split,
                             const Algorithm& algorithm, DType partials, Network* network)
    : platform_(platform), contiguous_(algorithm.arrivals == Arrivals::kContiguous) {
  const Demands demands =
      CutDemands(problem, platform.topology, split, algorithm, 1, 1, partials, false);
  AddPhases(problem, demands, algorithm, network);
  if (HasProduct(problem)) AddProduct(problem, demands);
}

// Hops are in an order in which a chunk arrives before it is sent on.
double RouteEstimate::LatencyOf(const Movement& movement, Network* network) const {
  const DeviceRates& device = platform_.machine.device;
  absl::flat_hash_map<std::pair<int, Rank>, double> arrived;  // by chunk and rank
  double latest = 0;
  for (const Movement::ChunkHop& hop : movement.hops()) {
    if (hop.from == hop.to) continue;
    const auto sender = arrived.find({hop.chunk, hop.from});
    const double at = (sender == arrived.end() ? 0 : sender->second) + device.signal_ns +
                      device.step_ns + network->Between(hop.from, hop.to).latency_ns;
    double& to = arrived[{hop.chunk, hop.to}];
    to = std::max(to, at);
    latest = std::max(latest, to);
  }
  return latest;
}

void RouteEstimate::AddPhases(const Problem& problem, const Demands& demands,
                              const Algorithm& algorithm, Network* network) {
  const DeviceRates& device = platform_.machine.device;
  const int ranks = problem.mesh.size();
  for (const bool of_result : {false, true}) {
    Phase& phase = of_result ? results_ : inputs_;
    std::vector<double> busy, messages(ranks, 0);
    double latency_ns = 0;
    for (const Demand& demand : demands.list) {
      if (!demand.travels || problem.Writes(demand.operand) != of_result) continue;
      const Movement movement(problem, platform_.topology, demand, algorithm);
      if (!movement.travels()) continue;
      phase.travels = true;
      latency_ns += LatencyOf(movement, network);
      const double size = static_cast<double>(SizeOf(DTypeOf(problem, demand)));
      for (const Movement::ChunkHop& hop : movement.hops()) {
        if (hop.from == hop.to) continue;
        const double bytes = Elements(movement.chunks().list[hop.chunk].block) * size;
        const Path& path = network->Between(hop.from, hop.to);
        busy.resize(network->resource_count(), 0);
        for (const Path::Hop& link : path.hops) busy[link.resource] += bytes / link.bytes_per_ns;
        for (const Rank rank : {hop.from, hop.to})
          busy[network->Memory(rank)] += bytes / device.memory;
        if (path.is_message) {
          busy[network->Cores(hop.from)] += bytes * device.send_ns_per_byte;
          busy[network->Cores(hop.to)] += bytes * device.receive_ns_per_byte;
          messages[hop.from] += device.message_ns;
          messages[hop.to] += device.message_ns;
        } else if (path.by_cores && !hop.in_place) {
          busy[network->Cores(hop.from)] += bytes * device.copy_ns_per_byte;
        }
      }
    }
    for (Resource resource = 0; resource < static_cast<int>(busy.size()); ++resource) {
      double& most = resource < 2 * ranks && resource % 2 == 0 ? phase.cores_ns : phase.busiest_ns;
      most = std::max(most, busy[resource]);
    }
    phase.fixed_ns = latency_ns;
    for (const double ns : messages) phase.message_ns = std::max(phase.message_ns, ns);
  }
  const Demand& largest = LargestDemand(problem, demands);
  along_k_ = inputs_.travels && largest.along_k;
  shard_bytes_ = ShardBytes(problem.mesh, problem.tensors[largest.operand]);
  const Dim outer = OuterDim(problem, largest.operand);
  for (const Block& block : largest.has)
    length_ = std::max(length_, Along(problem, largest.operand, block, outer).size());
  if (!along_k_) return;
  for (const Block& block : largest.has)
    depth_ = std::max(depth_, Along(problem, largest.operand, block, Dim::kK).size());
}

void RouteEstimate::AddProduct(const Problem& problem, const Demands& demands) {
  const Product& product = TheProduct(problem);
  dtype_ = problem.tensors[product.a].dtype;
  const Demand& largest = LargestDemand(problem, demands);
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    const LocalProduct& part = demands.work.parts[rank];
    if (FlopsOf(part) <= flops_) continue;
    flops_ = FlopsOf(part);
    const double size = static_cast<double>(SizeOf(dtype_));
    const auto bytes = [&](Operand operand) { return Elements(BlockOf(problem, operand, part)); };
    const Operand moving = largest.operand == product.b ? product.b : product.a;
    gathered_bytes_ = bytes(moving) * size;
    stationary_bytes_ = bytes(moving == product.a ? product.b : product.a) * size;
    made_bytes_ = bytes(product.c) * size;
    packed_bytes_ = inputs_.travels && moving == product.b ? gathered_bytes_ : 0;
    stationary_dim_ = moving == product.a ? Dim::kN : Dim::kM;
    stationary_length_ = part.Of(stationary_dim_).size();
    const double own = Elements(largest.has[rank]) * size;
    group_ = !inputs_.travels || own <= 0
                 ? 1
                 : std::max(1, static_cast<int>(gathered_bytes_ / own + 0.5));
  }
}

std::string RouteEstimate::HiddenText(const Problem& problem) const {
  const double compute = ComputeNs(1, 1), comm = inputs_.busiest_ns;
  if (!inputs_.travels || along_k_ || compute == 0 || stationary_length_ == 0) return "";
  const auto least =
      static_cast<int64_t>(std::ceil(static_cast<double>(stationary_length_) * comm / compute));
  return absl::StrFormat("%s since %s_shard %d %s %d",
                         stationary_length_ >= least ? "hidden" : "exposed",
                         absl::AsciiStrToLower(DimensionOf(problem, stationary_dim_).name),
                         stationary_length_, stationary_length_ >= least ? ">=" : "<", least);
}

double RouteEstimate::ComputeNs(int chunks, int k_chunks) const {
  if (flops_ == 0) return 0;
  const DeviceRates device =
      RatesWithin(platform_.machine.device, gathered_bytes_ + stationary_bytes_ + made_bytes_);
  const double pieces = contiguous_ ? 1 : static_cast<double>(group_) * chunks * k_chunks;
  // Pieces along M or N read the other operand again; pieces along K read and write all of C.
  const double again = contiguous_ ? 1 : along_k_ ? 1.0 : static_cast<double>(group_) * chunks;
  const double c_again = along_k_ ? pieces : static_cast<double>(k_chunks);
  const double bytes = gathered_bytes_ + stationary_bytes_ * again + made_bytes_ * c_again;
  const double memory = bytes / device.memory;
  const double cores =
      pieces * (device.step_ns + ProductNs(device, dtype_, flops_ / pieces, bytes / pieces)) +
      packed_bytes_ * device.pack_ns_per_byte;
  return std::max(memory, cores);
}

double RouteEstimate::TimeNs(int chunks, int k_chunks) const {
  const double pieces = static_cast<double>(chunks) * k_chunks;
  const auto comm = [&](const Phase& phase) {
    return std::max(phase.busiest_ns, phase.cores_ns + phase.message_ns * pieces) + phase.fixed_ns +
           (phase.travels ? platform_.machine.device.signal_ns * pieces : 0);
  };
  const double in = comm(inputs_), out = comm(results_), compute = ComputeNs(chunks, k_chunks);
  if (contiguous_) return in + compute + out;
  const double cores = compute + inputs_.cores_ns + results_.cores_ns +
                       (inputs_.message_ns + results_.message_ns) * pieces;
  // The last piece is multiplied after it has arrived, and the last one of C leaves afterwards.
  const double last = compute / (static_cast<double>(group_) * pieces);
  const double first = inputs_.travels ? std::max(in + last, compute) : compute;
  return std::max({first, cores, in + out}) + out / pieces;
}

}  // namespace agmm
