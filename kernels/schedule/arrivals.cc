#include "kernels/schedule/arrivals.h"

#include <algorithm>
#include <deque>
#include <map>

#include "kernels/base/units.h"

namespace agmm {
namespace {

// The hops by the rank that they leave, or that they reach.
std::vector<std::vector<int>> HopsBy(const Flow& flow, Rank Flow::ChunkHop::*rank, int ranks) {
  std::vector<std::vector<int>> by_rank(ranks);
  for (int i = 0; i < static_cast<int>(flow.hops().size()); ++i)
    by_rank[flow.hops()[i].*rank].push_back(i);
  return by_rank;
}

// Gives places of one size in turn to the copies that reach each rank: `places` of them, or more
// where a chunk is passed on so late that the next one could not wait for it. A send waits only for
// multiplies of chunks that arrive before its own, and for hops of earlier steps, so that no ranks
// wait for one another in a circle.
void TakeTurns(const Flow& flow, int ranks, int places, DType dtype, Resources& resources,
               std::vector<PlacedChunk>& arrivals) {
  std::vector<int> passed_on(arrivals.size(), 0);  // the last step in which an arrival is sent on
  for (const Flow::ChunkHop& hop : flow.hops()) {
    const int held = flow.ArrivalAt(hop.from, hop.chunk);
    if (held >= 0) passed_on[held] = std::max(passed_on[held], hop.step);
  }
  const auto block_of = [&](int hop) -> const Block& {
    return flow.chunks().list[flow.hops()[hop].chunk].block;
  };
  const auto by_receiver = HopsBy(flow, &Flow::ChunkHop::to, ranks);
  for (Rank rank = 0; rank < ranks; ++rank) {
    int64_t rows = 0, cols = 0;
    for (int hop : by_receiver[rank]) {
      if (arrivals[hop].in_place) continue;
      rows = std::max(rows, block_of(hop).rows.size());
      cols = std::max(cols, block_of(hop).cols.size());
    }
    std::deque<int> latest;        // of each place, the one that came first at the front
    std::map<int64_t, int> first;  // by offset of the place
    for (int hop : by_receiver[rank]) {
      PlacedChunk& arrival = arrivals[hop];
      if (arrival.in_place) continue;
      if (static_cast<int>(latest.size()) >= places &&
          passed_on[latest.front()] < flow.hops()[hop].step) {
        PlacedChunk& before = arrivals[latest.front()];
        before.next = hop;
        before.lag = 0;
        arrival.place = before.place;
        latest.pop_front();
      } else {
        arrival.place = resources.Allocate(rank, rows, cols, dtype);
        first[arrival.place.offset_bytes] = hop;
      }
      arrival.place.pitch_bytes =
          RoundUp(block_of(hop).cols.size() * SizeOf(dtype), kRowAlignBytes);
      latest.push_back(hop);
    }
    for (int hop : latest) arrivals[hop].next = first[arrivals[hop].place.offset_bytes];
  }
}

// By hop of `flow`: true if it is read in place and not copied.
std::vector<bool> InPlaceHops(const Topology& topology, const Flow& flow, Arrivals arrivals) {
  std::vector<bool> in_place(flow.hops().size(), false);
  if (arrivals != Arrivals::kInPlace) return in_place;
  // A rank that passes a chunk on needs a copy of its own.
  std::vector<bool> passed_on(flow.hops().size(), false);
  for (const Flow::ChunkHop& hop : flow.hops()) {
    const int source = flow.ArrivalAt(hop.from, hop.chunk);
    if (source >= 0) passed_on[source] = true;
  }
  for (size_t i = 0; i < in_place.size(); ++i) {
    const Flow::ChunkHop& hop = flow.hops()[i];
    in_place[i] = !passed_on[i] && topology.CanLoad(hop.from, hop.to);
  }
  return in_place;
}

}  // namespace

Place Resources::Allocate(Rank rank, int64_t rows, int64_t cols, DType dtype) {
  const int64_t pitch = RoundUp(cols * SizeOf(dtype), kRowAlignBytes);
  const Place place = {rank, kWorkspace, bytes_[rank], pitch, dtype};
  bytes_[rank] += rows * pitch;
  return place;
}

int64_t Resources::most_bytes() const { return *std::max_element(bytes_.begin(), bytes_.end()); }

std::vector<PlacedChunk> PlaceArrivals(const Problem& problem, const Topology& topology,
                                       const Work& work, const Flow& flow, Arrivals how, int places,
                                       const std::vector<Place>& whole, Resources& resources) {
  const int ranks = problem.mesh.size();
  const DType dtype = problem.tensors[flow.operand()].dtype;
  const std::vector<bool> in_place = InPlaceHops(topology, flow, how);
  std::vector<PlacedChunk> arrivals(flow.hops().size());
  // Its multiplies, hops that copy it onwards, and ranks that read it in place.
  std::vector<int> readers(arrivals.size(), 0);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Flow::ChunkHop& hop = flow.hops()[i];
    arrivals[i].in_place = in_place[i];
    arrivals[i].next = static_cast<int>(i);
    const int source = flow.ArrivalAt(hop.from, hop.chunk);
    if (in_place[i]) arrivals[i].reads = source;
    if (!in_place[i]) ++readers[i];
    if (source >= 0) ++readers[source];
  }
  if (places > 0) TakeTurns(flow, ranks, places, dtype, resources, arrivals);
  // Places stand in the order in which their senders send.
  for (const std::vector<int>& sent : HopsBy(flow, &Flow::ChunkHop::from, ranks)) {
    for (int i : sent) {
      PlacedChunk& arrival = arrivals[i];
      if (arrival.in_place) continue;
      const Flow::ChunkHop& hop = flow.hops()[i];
      const Block& block = flow.chunks().list[hop.chunk].block;
      if (how == Arrivals::kContiguous) {
        arrival.place = PlaceWithin(NeededBlock(problem, flow.operand(), work.parts[hop.to]),
                                    whole[hop.to], block);
      } else if (places == 0) {
        arrival.place = resources.Allocate(hop.to, block.rows.size(), block.cols.size(), dtype);
      }
      arrival.arrived = resources.NewSlot(hop.to);
      const Rank next_sender = flow.hops()[arrival.next].from;
      for (int r = 0; r < readers[i]; ++r)
        arrival.credits.push_back(resources.NewSlot(next_sender));
    }
  }
  // A chunk that is read in place lies where its sender has it, which is settled by now.
  for (size_t i = 0; i < arrivals.size(); ++i) {
    if (!in_place[i]) continue;
    const Flow::ChunkHop& hop = flow.hops()[i];
    const Block& block = flow.chunks().list[hop.chunk].block;
    PlacedChunk& arrival = arrivals[i];
    arrival.place =
        arrival.reads < 0 ? ResidentPlace(problem, block, hop.from) : arrivals[arrival.reads].place;
    if (arrival.reads >= 0) arrival.arrived = resources.NewSlot(hop.to);
  }
  return arrivals;
}

}  // namespace agmm
