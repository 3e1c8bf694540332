#include "kernels/schedule/arrivals.h"

#include <algorithm>
#include <deque>
#include <map>

#include "kernels/base/units.h"

namespace agmm {
namespace {

// The hops that leave each rank, or that reach it, by rank.
std::vector<std::vector<int>> HopsBy(const Movement& movement, Rank Movement::ChunkHop::*rank,
                                     int ranks) {
  std::vector<std::vector<int>> by_rank(ranks);
  for (int i = 0; i < static_cast<int>(movement.hops().size()); ++i)
    by_rank[movement.hops()[i].*rank].push_back(i);
  return by_rank;
}

// Lets the copies that arrive at a rank take turns in places of equal size. A rank has `places`
// places, or more if it forwards a chunk, or adds it to a sum, too late for the next one to wait
// for its place. A send waits only for multiplies of chunks that arrive before its own chunk, and
// for hops and sums of earlier steps, so ranks never wait for each other in a cycle.
void TakeTurns(const Movement& movement, int ranks, int places, DType dtype, Resources& resources,
               std::vector<PlacedChunk>& arrivals) {
  std::vector<int> passed_on(arrivals.size(), 0);  // the last step that forwards or adds an arrival
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Movement::ChunkHop& hop = movement.hops()[i];
    if (movement.consumer() == Consumer::kSum) {
      passed_on[i] = movement.AddStepAt(hop.to, hop.chunk);
    } else if (const int held = movement.ArrivalAt(hop.from, hop.chunk); held >= 0) {
      passed_on[held] = std::max(passed_on[held], hop.step);
    }
  }
  const auto block_of = [&](int hop) -> const Block& {
    return movement.chunks().list[movement.hops()[hop].chunk].block;
  };
  const auto by_receiver = HopsBy(movement, &Movement::ChunkHop::to, ranks);
  for (Rank rank = 0; rank < ranks; ++rank) {
    int64_t rows = 0, cols = 0;
    for (int hop : by_receiver[rank]) {
      if (arrivals[hop].in_place) continue;
      rows = std::max(rows, block_of(hop).rows.size());
      cols = std::max(cols, block_of(hop).cols.size());
    }
    std::deque<int> latest;        // the last arrival at each place, the oldest in front
    std::map<int64_t, int> first;  // the first arrival at each place, by offset
    for (int hop : by_receiver[rank]) {
      PlacedChunk& arrival = arrivals[hop];
      if (arrival.in_place) continue;
      if (static_cast<int>(latest.size()) >= places &&
          passed_on[latest.front()] < movement.hops()[hop].step) {
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

// Chunks of the result arrive in shards. A chunk that only passes through a rank has a place in the
// workspace: within its bundle's place, or one of its own if it leaves alone.
std::vector<PlacedChunk> InShards(const Problem& problem, const Movement& movement,
                                  const std::vector<Place>& bundles, Resources& resources) {
  std::vector<PlacedChunk> arrivals(movement.hops().size());
  std::vector<bool> bundled(arrivals.size(), false);
  const auto block_of = [&](int hop) -> const Block& {
    return movement.chunks().list[movement.hops()[hop].chunk].block;
  };
  for (size_t b = 0; b < bundles.size(); ++b) {
    const Movement::Bundle& bundle = movement.bundles()[b];
    for (const int hop : bundle.hops) {
      const int arrival = movement.ArrivalAt(bundle.from, movement.hops()[hop].chunk);
      if (arrival < 0) continue;
      arrivals[arrival].place = PlaceWithin(bundle.block, bundles[b], block_of(hop));
      bundled[arrival] = true;
    }
  }
  for (int i = 0; i < static_cast<int>(arrivals.size()); ++i) {
    const Movement::ChunkHop& hop = movement.hops()[i];
    const Block& block = block_of(i);
    PlacedChunk& arrival = arrivals[i];
    arrival.arrived = resources.NewSlot(hop.to);
    if (!hop.passes) {
      arrival.place = ResidentPlace(problem, block, hop.to);
      continue;
    }
    if (!bundled[i]) {
      arrival.place = resources.Allocate(hop.to, block.rows.size(), block.cols.size(),
                                         problem.tensors[block.operand].dtype);
    }
    arrival.next = i;
    arrival.credits.push_back(resources.NewSlot(hop.from));
  }
  return arrivals;
}

// Each hop of a sum has a place for its terms, which its receiver frees when it has added them.
// Terms that are read in place are at their sender.
std::vector<PlacedChunk> OfSum(const Movement& movement, int ranks, int places,
                               Resources& resources) {
  std::vector<PlacedChunk> arrivals(movement.hops().size());
  for (int i = 0; i < static_cast<int>(arrivals.size()); ++i) {
    arrivals[i].in_place = movement.hops()[i].in_place;
    arrivals[i].next = i;
  }
  if (places > 0) TakeTurns(movement, ranks, places, movement.terms_dtype(), resources, arrivals);
  for (int i = 0; i < static_cast<int>(arrivals.size()); ++i) {
    const Movement::ChunkHop& hop = movement.hops()[i];
    const Block& block = movement.chunks().list[hop.chunk].block;
    PlacedChunk& arrival = arrivals[i];
    if (!hop.in_place && places == 0) {
      arrival.place =
          resources.Allocate(hop.to, block.rows.size(), block.cols.size(), movement.terms_dtype());
    }
    arrival.arrived = resources.NewSlot(hop.to);
    arrival.credits.push_back(resources.NewSlot(movement.hops()[arrival.next].from));
  }
  return arrivals;
}

}  // namespace

Place Resources::Allocate(Rank rank, int64_t rows, int64_t cols, DType dtype) {
  const int64_t pitch = RoundUp(cols * SizeOf(dtype), kRowAlignBytes);
  const Place place = {rank, kWorkspace, bytes_[rank], pitch, dtype};
  bytes_[rank] += rows * pitch;
  return place;
}

int64_t Resources::most_bytes() const { return *std::max_element(bytes_.begin(), bytes_.end()); }

std::vector<PlacedChunk> PlaceArrivals(const Problem& problem, const Work& work,
                                       const Movement& movement, int places,
                                       const std::vector<Place>& whole,
                                       const std::vector<Place>& bundles, Resources& resources) {
  if (movement.consumer() == Consumer::kShard)
    return InShards(problem, movement, bundles, resources);
  const int ranks = problem.mesh.size();
  if (movement.consumer() == Consumer::kSum) return OfSum(movement, ranks, places, resources);
  const DType dtype = problem.tensors[movement.operand()].dtype;
  std::vector<PlacedChunk> arrivals(movement.hops().size());
  // The number of readers of each arrival: one for all multiplies of its rank, and one for each hop
  // that copies it onwards or reads it in place.
  std::vector<int> readers(arrivals.size(), 0);
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Movement::ChunkHop& hop = movement.hops()[i];
    arrivals[i].in_place = hop.in_place;
    arrivals[i].next = static_cast<int>(i);
    const int source = movement.ArrivalAt(hop.from, hop.chunk);
    if (hop.in_place) arrivals[i].reads = source;
    if (!hop.in_place && !hop.passes) ++readers[i];
    if (source >= 0) ++readers[source];
  }
  if (places > 0) TakeTurns(movement, ranks, places, dtype, resources, arrivals);
  // Allocates places and slots in the order in which each sender sends.
  for (const std::vector<int>& sent : HopsBy(movement, &Movement::ChunkHop::from, ranks)) {
    for (int i : sent) {
      PlacedChunk& arrival = arrivals[i];
      if (arrival.in_place) continue;
      const Movement::ChunkHop& hop = movement.hops()[i];
      const Block& block = movement.chunks().list[hop.chunk].block;
      if (!whole.empty()) {
        arrival.place = PlaceWithin(NeededBlock(problem, movement.operand(), work.parts[hop.to]),
                                    whole[hop.to], block);
      } else if (places == 0) {
        arrival.place = resources.Allocate(hop.to, block.rows.size(), block.cols.size(), dtype);
      }
      arrival.arrived = resources.NewSlot(hop.to);
      const Rank next_sender = movement.hops()[arrival.next].from;
      for (int r = 0; r < readers[i]; ++r)
        arrival.credits.push_back(resources.NewSlot(next_sender));
    }
  }
  // Now that all copies have places, each chunk that is read in place gets the place at which its
  // sender has it. The place of a finished sum is set later, by SumSteps::PlaceSum.
  for (size_t i = 0; i < arrivals.size(); ++i) {
    const Movement::ChunkHop& hop = movement.hops()[i];
    if (!hop.in_place) continue;
    const Block& block = movement.chunks().list[hop.chunk].block;
    PlacedChunk& arrival = arrivals[i];
    const bool of_sum = movement.producer() == Producer::kSum;
    if (arrival.reads >= 0) {
      arrival.place = arrivals[arrival.reads].place;
    } else if (!of_sum) {
      arrival.place = ResidentPlace(problem, block, hop.from);
    }
    if (arrival.reads >= 0 || of_sum) arrival.arrived = resources.NewSlot(hop.to);
  }
  return arrivals;
}

}  // namespace agmm
