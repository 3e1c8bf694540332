#include "kernels/schedule/build.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/build_state.h"
#include "kernels/schedule/sum_steps.h"

namespace agmm {
namespace {

// The first and the last multiply of a rank that read the same chunk or shard.
struct Readers {
  int first = 0, last = 0;
};

// Returns the part of a contiguous operand that its rank copies from its shard or, of the result,
// to its shard; may be empty. The operand travels.
Block OwnCopy(const Problem& problem, Operand operand, const LocalProduct& part, Rank rank) {
  const Block whole = NeededBlock(problem, operand, part);
  const Block own = Intersect(whole, ShardBlock(problem, operand, rank));
  // If the whole result is the rank's own, the multiply writes it to the shard.
  return problem.Writes(operand) && own == whole ? Block() : own;
}

// Returns the part of a rank's shard that a collective leaves at its rank; may be empty.
Block KeptBlock(const Problem& problem, Operand to, Rank rank) {
  Block shard = ShardBlock(problem, TheCollective(problem).from, rank);
  shard.operand = to;
  return Intersect(shard, ShardBlock(problem, to, rank));
}

class Builder {
 public:
  Builder(const Problem& problem, const Topology& topology, const Work& work,
          const std::vector<Movement>& movements, const BuildOptions& options)
      : state_(problem, topology, work, movements, options), movements_(movements) {
    for (const PlacedMovement& placed : state_.placed)
      if (placed.is_summed() && placed.movement.travels()) sum_.emplace(state_, placed);
  }

  Schedule Run() {
    for (PlacedMovement& placed : state_.placed) PlaceChunks(placed);
    const Taking taking = state_.options.arrivals == Arrivals::kContiguous ? Taking::kWhole
                          : state_.options.places > 0                      ? Taking::kByArrival
                                                                           : Taking::kChunks;
    std::vector<std::pair<Operand, Grid>> grids;
    for (const Movement& movement : movements_) {
      if (movement.travels() && taking != Taking::kWhole)
        grids.emplace_back(movement.operand(), movement.chunks().grid);
    }
    const Cuts cuts(state_.problem, grids);
    for (Rank rank = 0; rank < state_.problem.mesh.size(); ++rank) {
      for (const PlacedMovement& placed : state_.placed) {
        if (placed.is_moved()) {
          CopyMoved(rank, placed);
        } else {
          CopyOwn(rank, placed);
        }
      }
      AddMultiplies(
          rank, CellsOf(state_.problem, movements_, cuts, taking, state_.work.parts[rank], rank));
    }
    AddSends();
    for (const PlacedMovement& placed : state_.placed) AddReaderJoins(placed);
    return Assemble();
  }

 private:
  void PlaceChunks(PlacedMovement& placed) {
    const Movement& movement = placed.movement;
    if (!movement.travels()) return;
    if (placed.is_read() && state_.options.arrivals == Arrivals::kContiguous) {
      for (Rank rank = 0; rank < state_.problem.mesh.size(); ++rank) {
        const Block block = state_.NeededAt(placed, rank);
        placed.whole.push_back(block.empty() ? Place{} : state_.Allocate(rank, block));
      }
    }
    placed.arrivals = PlaceArrivals(state_.problem, state_.work, movement, state_.options.places,
                                    placed.whole, state_.resources);
    placed.gates.resize(placed.arrivals.size());
    for (const PlacedChunk& arrival : placed.arrivals) {
      for (const Slot& credit : arrival.credits)
        placed.gates[arrival.next].push_back({credit, arrival.lag});
    }
  }

  // Copies a rank's own part of a contiguous operand. Uses the compute lane, so that the multiply
  // needs no slot to wait for.
  void CopyOwn(Rank rank, const PlacedMovement& input) {
    if (input.whole.empty()) return;
    const Block needed = state_.NeededAt(input, rank);
    const Block own = OwnCopy(state_.problem, needed.operand, state_.work.parts[rank], rank);
    if (own.empty()) return;
    state_.ranks[rank].computes.push_back({Transfer{own,
                                                    ResidentPlace(state_.problem, own, rank),
                                                    {PlaceWithin(needed, input.whole[rank], own)}},
                                           kComputeLane});
  }

  // Copies the part of a shard that stays at its rank.
  void CopyMoved(Rank rank, const PlacedMovement& moved) {
    const Block own = KeptBlock(state_.problem, moved.movement.operand(), rank);
    if (own.empty()) return;
    state_.ranks[rank].computes.push_back(
        {Transfer{own, state_.SourcePlace(own, rank), {ResidentPlace(state_.problem, own, rank)}},
         kComputeLane});
  }

  // Returns the place at which `rank` reads `block` of an input, which is part of one chunk.
  Place PlaceRead(Rank rank, const Block& block) const {
    const PlacedMovement& input = Of(block.operand);
    if (!input.movement.travels()) return ResidentPlace(state_.problem, block, rank);
    if (!input.whole.empty())
      return PlaceWithin(state_.NeededAt(input, rank), input.whole[rank], block);
    const int chunk = input.movement.ChunksOf(block).front();
    const int arrival = input.movement.ArrivalAt(rank, chunk);
    if (arrival < 0) return ResidentPlace(state_.problem, block, rank);
    return PlaceWithin(input.movement.chunks().list[chunk].block, input.arrivals[arrival].place,
                       block);
  }

  // Returns the place at which `rank` computes `block`, which is part of `chunk` of a result (-1:
  // of all that it computes): in its shard, or in the workspace if a part of the chunk belongs
  // elsewhere.
  Place PlaceMade(Rank rank, int chunk, const Block& block) {
    const PlacedMovement& result = Of(block.operand);
    const Block shard = ShardBlock(state_.problem, block.operand, rank);
    const Block whole =
        chunk >= 0 ? result.movement.chunks().list[chunk].block : state_.NeededAt(result, rank);
    if (Intersect(shard, whole) == whole) return ResidentPlace(state_.problem, block, rank);
    RankSteps& mine = state_.ranks[rank];
    const auto [at, added] = mine.staging.try_emplace(chunk);
    if (added) at->second = {state_.Allocate(rank, whole), static_cast<int>(mine.computes.size())};
    return PlaceWithin(whole, at->second.place, block);
  }

  Step MultiplyStep(Rank rank, const Cell& cell) {
    Multiply multiply;
    multiply.a = cell.a;
    multiply.b = cell.b;
    multiply.c = cell.c;
    multiply.a_place = PlaceRead(rank, cell.a);
    multiply.b_place = PlaceRead(rank, cell.b);
    multiply.accumulate = cell.accumulate;
    multiply.finish = cell.finish;
    if (sum_) {
      multiply.acc = sum_->PlaceTerms(rank, cell.c_chunk, cell.c);
      multiply.finish = false;
      return {multiply, kComputeLane};
    }
    if (cell.sum >= 0) {
      const auto [at, added] = state_.ranks[rank].sums.try_emplace(cell.sum);
      if (added)
        at->second =
            state_.resources.Allocate(rank, cell.c.rows.size(), cell.c.cols.size(), DType::kF32);
      multiply.acc = at->second;
    }
    if (cell.finish) multiply.out = PlaceMade(rank, cell.c_chunk, cell.c);
    return {multiply, kComputeLane};
  }

  void AddMultiplies(Rank rank, const std::vector<Cell>& cells) {
    std::vector<Step>& computes = state_.ranks[rank].computes;
    const int first = static_cast<int>(computes.size());
    computes.reserve(computes.size() + cells.size());
    for (const Cell& cell : cells) computes.push_back(MultiplyStep(rank, cell));
    if (state_.options.carried) {
      for (auto& [chunk, cell] : state_.ranks[rank].carriers = CarriersOf(movements_, cells, rank))
        cell += first;
    }
    for (PlacedMovement& placed : state_.placed) {
      if (placed.is_read()) AddReads(rank, placed, cells, first);
      if (placed.is_made()) AddMakes(rank, placed, cells, first);
    }
  }

  // Adds a signal to the last multiply of each chunk of the result that the rank sends.
  void AddMakes(Rank rank, const PlacedMovement& result, const std::vector<Cell>& cells,
                int first) {
    RankSteps& mine = state_.ranks[rank];
    std::map<int, int> last;  // by chunk, the last multiply that computes a part of it
    for (int i = 0; i < static_cast<int>(cells.size()); ++i) {
      if (cells[i].c_chunk >= 0) last[cells[i].c_chunk] = first + i;
    }
    for (const auto& [chunk, step] : last) {
      const std::vector<Source>& sources = result.movement.chunks().list[chunk].sources;
      if (!result.is_summed() &&
          std::none_of(sources.begin(), sources.end(),
                       [&, self = rank](const Source& source) { return source.rank == self; }))
        continue;
      const int leaving = result.movement.LeavingFrom(rank, chunk);
      mine.computes[step].signals.push_back(mine.made[chunk] =
                                                leaving >= 0 && result.arrivals[leaving].in_place
                                                    ? result.arrivals[leaving].arrived
                                                    : state_.resources.NewSlot(rank));
    }
    if (!state_.MakesWhole(result) || cells.empty()) return;
    mine.computes.back().signals.push_back(mine.made[-1] = state_.resources.NewSlot(rank));
    if (result.is_summed()) return;
    // After its single multiply, the rank copies its own part of the result to its shard.
    const Block own =
        OwnCopy(state_.problem, result.movement.operand(), state_.work.parts[rank], rank);
    if (own.empty()) return;
    mine.computes.push_back(
        {Transfer{own, PlaceMade(rank, -1, own), {ResidentPlace(state_.problem, own, rank)}},
         kComputeLane});
  }

  // Adds the waits and signals of a rank's multiplies for the chunks of one input. The first
  // multiply that reads a chunk waits for it, and the last one gives its credit. This is enough,
  // because a lane runs in order.
  void AddReads(Rank rank, PlacedMovement& input, const std::vector<Cell>& cells, int first) {
    const Movement& movement = input.movement;
    if (!movement.travels()) return;
    RankSteps& mine = state_.ranks[rank];
    std::vector<std::pair<int, Readers>> uses;  // (arrival, use), in the order of first uses
    absl::flat_hash_map<int, size_t> use_of;
    for (int i = 0; i < static_cast<int>(cells.size()); ++i) {
      for (int chunk : movement.ChunksOf(cells[i].ReadOf(movement.operand()))) {
        const int arrival = movement.ArrivalAt(rank, chunk);
        if (arrival < 0) continue;
        const auto [at, added] = use_of.try_emplace(arrival, uses.size());
        if (added) uses.push_back({arrival, {first + i, 0}});
        uses[at->second].second.last = first + i;
      }
    }
    std::map<Rank, Readers> owners;  // of shards that are read in place
    for (const auto& [arrival, use] : uses) {
      if (ReadsShard(input.arrivals[arrival])) {
        const auto [at, added] = owners.try_emplace(movement.hops()[arrival].from, use);
        at->second = {std::min(at->second.first, use.first), std::max(at->second.last, use.last)};
      } else {
        AddRead(input, arrival, mine.computes[use.first], mine.computes[use.last]);
      }
    }
    for (const auto& [owner, use] : owners) {
      mine.computes[use.first].waits.push_back({state_.Begun(rank, owner), 0});
      const Slot read = state_.resources.NewSlot(owner);
      mine.computes[use.last].signals.push_back(read);
      state_.ranks[owner].exit.waits.push_back({read, 0});
    }
  }

  static bool ReadsShard(const PlacedChunk& arrival) {
    return arrival.in_place && arrival.reads < 0;
  }

  // Lets `first` wait for an arrival, and `last` give a credit to the sender of the next arrival at
  // the same place.
  static void AddRead(PlacedMovement& placed, int index, Step& first, Step& last) {
    PlacedChunk& arrival = placed.arrivals[index];
    PlacedChunk& copied = arrival.in_place ? placed.arrivals[arrival.reads] : arrival;
    first.waits.push_back({arrival.arrived, 0});
    if (placed.is_read()) last.signals.push_back(copied.credits[copied.granted++]);
  }

  const PlacedMovement& Of(Operand operand) const {
    return *std::find_if(
        state_.placed.begin(), state_.placed.end(),
        [operand](const PlacedMovement& placed) { return placed.movement.operand() == operand; });
  }

  // Adds the sends of all inputs in the order of their steps, then those of a sum and then those of
  // a result, which wait for multiplies.
  void AddSends() {
    struct Send {
      PlacedMovement* placed;
      int hop;
    };
    std::vector<Send> sends;
    const auto hop_of = [](const Send& send) -> const Movement::ChunkHop& {
      return send.placed->movement.hops()[send.hop];
    };
    for (PlacedMovement& placed : state_.placed) {
      for (int hop = 0; hop < static_cast<int>(placed.arrivals.size()); ++hop) {
        if (!placed.arrivals[hop].in_place) sends.push_back({&placed, hop});
      }
    }
    const auto turn = [&](const Send& send) {
      return std::pair(!OfInput(*send.placed), hop_of(send).step);
    };
    std::stable_sort(sends.begin(), sends.end(),
                     [&](const Send& x, const Send& y) { return turn(x) < turn(y); });
    for (const Send& send : sends)
      state_.ranks[hop_of(send).from].send_lanes.Expect(state_.BetweenNodes(hop_of(send)));
    for (const Send& send : sends)
      if (OfInput(*send.placed)) AddSend(*send.placed, send.hop);
    if (sum_) sum_->Add();
    for (const Send& send : sends)
      if (!OfInput(*send.placed) && !send.placed->is_summed()) AddSend(*send.placed, send.hop);
  }

  bool OfInput(const PlacedMovement& placed) const {
    return !state_.problem.Writes(placed.movement.operand());
  }

  void AddSend(PlacedMovement& placed, int index) {
    const Movement& movement = placed.movement;
    const Movement::ChunkHop& hop = movement.hops()[index];
    const PlacedChunk& arrival = placed.arrivals[index];
    RankSteps& sender = state_.ranks[hop.from];
    const auto carries = sender.carriers.find({movement.operand(), hop.chunk});
    int carrier = carries == sender.carriers.end() ? -1 : carries->second;
    const int lane =
        carrier < 0 ? -1 : sender.carried_lanes.Take(carrier, sender.send_lanes.count());
    if (lane < 0) carrier = -1;
    Step step;
    step.lane = carrier < 0 ? sender.send_lanes.Next(state_.BetweenNodes(hop))
                            : sender.send_lanes.end() + lane;
    step.waits = placed.gates[index];
    step.signals.push_back(arrival.arrived);
    const Block& block = movement.chunks().list[hop.chunk].block;
    const int held = movement.ArrivalAt(hop.from, hop.chunk);
    const int made = state_.MakesWhole(placed) ? -1 : hop.chunk;
    Place from;
    if (held >= 0) {
      from = placed.arrivals[held].place;
      AddRead(placed, held, step, step);
    } else if (placed.is_made()) {
      from = PlaceMade(hop.from, made, block);
      step.waits.push_back({sender.made.at(made), 0});
    } else if (movement.producer() == Producer::kSum) {
      from = sum_->PlaceSum(hop.from, block);
      for (const int summed : sum_->ChunksOf(block))
        step.waits.push_back({sender.finished.at(summed).slot, 0});
    } else {
      // Sent from the shard, not from the copy in a contiguous operand.
      from = state_.SourcePlace(block, hop.from);
    }
    if (movement.consumer() == Consumer::kShard) {
      step.waits.push_back({state_.Begun(hop.from, hop.to), 0});
      state_.ranks[hop.to].exit.waits.push_back({arrival.arrived, 0});
    }
    // The next epoch's multiply may overwrite the place only after this send has read it.
    if (placed.is_made() && from.buffer == kWorkspace) {
      step.signals.push_back(state_.resources.NewSlot(hop.from));
      const int first = sender.staging.at(made).first;
      sender.computes[first].waits.push_back({step.signals.back(), 1});
    }
    if (movement.producer() == Producer::kSum && held < 0 && from.buffer == kWorkspace) {
      step.signals.push_back(state_.resources.NewSlot(hop.from));
      for (const int summed : sum_->ChunksOf(block))
        sender.others[sender.finished.at(summed).step].waits.push_back({step.signals.back(), 1});
    }
    step.op = Transfer{block, from, {arrival.place}, carrier};
    sender.others.push_back(std::move(step));
  }

  // Adds joins that signal arrivals to the other ranks that read them in place.
  void AddReaderJoins(const PlacedMovement& input) {
    std::map<int, Step> joins;  // by arrival
    for (const PlacedChunk& arrival : input.arrivals) {
      if (arrival.in_place && arrival.reads >= 0)
        joins[arrival.reads].signals.push_back(arrival.arrived);
    }
    for (auto& [arrival, join] : joins) {
      RankSteps& mine = state_.ranks[input.movement.hops()[arrival].to];
      join.lane = mine.send_lanes.end();
      join.waits.push_back({input.arrivals[arrival].arrived, 0});
      mine.others.push_back(std::move(join));
    }
  }

  Schedule Assemble() {
    Schedule schedule;
    schedule.workspace_bytes = state_.resources.most_bytes();
    for (RankSteps& mine : state_.ranks) {
      std::vector<Step>& steps = schedule.ranks.emplace_back();
      if (!mine.entry.signals.empty()) steps.push_back(std::move(mine.entry));
      steps.reserve(steps.size() + mine.computes.size() + mine.others.size() + 1);
      const int shift = static_cast<int>(steps.size());
      std::move(mine.computes.begin(), mine.computes.end(), std::back_inserter(steps));
      for (Step& step : mine.others) {
        auto* transfer = std::get_if<Transfer>(&step.op);
        if (transfer != nullptr && transfer->carrier >= 0) transfer->carrier += shift;
        steps.push_back(std::move(step));
      }
      if (!mine.exit.waits.empty()) steps.push_back(std::move(mine.exit));
    }
    return schedule;
  }

  BuildState state_;
  const std::vector<Movement>& movements_;
  std::optional<SumSteps> sum_;
};

}  // namespace

Schedule Build(const Problem& problem, const Topology& topology, const Work& work,
               const std::vector<Movement>& movements, const BuildOptions& options) {
  return Builder(problem, topology, work, movements, options).Run();
}

double CountSteps(const Problem& problem, const Topology& topology, const Demands& demands,
                  const Algorithm& algorithm) {
  double steps = 0;
  std::vector<std::pair<Operand, Grid>> grids;
  for (const Demand& demand : demands.list) {
    if (demand.producer == Producer::kShard && demand.consumer == Consumer::kShard) {
      for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
        steps += !KeptBlock(problem, demand.operand, rank).empty();
    }
    if (!demand.travels) continue;
    steps += CountCopies(problem, topology, demand, algorithm);
    if (demand.consumer == Consumer::kSum)
      steps += CountReductions(problem, topology, demand, algorithm);
    if (algorithm.arrivals != Arrivals::kContiguous) {
      grids.emplace_back(demand.operand,
                         GridOf(demand.has, demand.needs, demand.pieces.rows, demand.pieces.cols));
      continue;
    }
    if (demand.consumer == Consumer::kSum || demand.producer == Producer::kSum) continue;
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank)
      steps += !OwnCopy(problem, demand.operand, demands.work.parts[rank], rank).empty();
  }
  const Cuts cuts(problem, grids);
  const auto count = [&](const Range& range, Dim dim) {
    return static_cast<double>(cuts.Count(range, dim));
  };
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    const LocalProduct& part = demands.work.parts[rank];
    const double slices = count(part.k, Dim::kK);
    if (demands.made.empty()) {
      steps += count(part.m, Dim::kM) * count(part.n, Dim::kN) * slices;
      continue;
    }
    for (const Block& c : demands.made[rank]) {
      steps += count(Along(problem, c.operand, c, Dim::kM), Dim::kM) *
               count(Along(problem, c.operand, c, Dim::kN), Dim::kN) * slices;
    }
  }
  return steps;
}

}  // namespace agmm
