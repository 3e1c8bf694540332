#include "kernels/schedule/build.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <map>
#include <tuple>
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

// Returns the part of a contiguous operand that its rank copies from what it holds of an input or,
// of the result, to its shard; may be empty. The operand travels.
Block OwnCopy(const Problem& problem, const Block& held, const LocalProduct& part) {
  const Block whole = NeededBlock(problem, held.operand, part);
  const Block own = Intersect(whole, held);
  // If the whole result is the rank's own, the multiply writes it to the shard.
  return problem.Writes(held.operand) && own == whole ? Block() : own;
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
      if (placed.is_summed() && placed.movement.travels()) sums_.emplace_back(state_, placed);
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
    for (SumSteps& sum : sums_) sum.AddCredits();
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
    for (const Movement::Bundle& bundle : movement.bundles())
      placed.bundles.push_back(state_.Allocate(bundle.from, bundle.block));
    placed.arrivals = PlaceArrivals(state_.problem, state_.work, movement, state_.options.places,
                                    placed.whole, placed.bundles, state_.resources);
    for (size_t i = 0; i < placed.arrivals.size(); ++i) {
      const Movement::ChunkHop& hop = movement.hops()[i];
      if (ReadsSum(placed, placed.arrivals[i]))
        placed.arrivals[i].place =
            SumOf(placed)->PlaceSum(hop.from, movement.chunks().list[hop.chunk].block);
    }
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
    SumSteps* const sum = SumOf(input);
    const Block held =
        sum != nullptr ? sum->SummedAt(rank) : ShardBlock(state_.problem, needed.operand, rank);
    const Block own = OwnCopy(state_.problem, held, state_.work.parts[rank]);
    if (own.empty()) return;
    const Place from =
        sum != nullptr ? sum->PlaceSum(rank, own) : ResidentPlace(state_.problem, own, rank);
    Step step{Transfer{own, from, {PlaceWithin(needed, input.whole[rank], own)}}, kComputeLane};
    if (sum != nullptr) ReadOwnSum(rank, *sum, own, step, step);
    state_.ranks[rank].computes.push_back(std::move(step));
  }

  // Lets `first` wait until `rank` has finished a block that it sums for itself, and lets the next
  // epoch's sum wait for `last`.
  void ReadOwnSum(Rank rank, SumSteps& sum, const Block& block, Step& first, Step& last) {
    sum.Await(rank, block, first);
    last.signals.push_back(state_.resources.NewSlot(rank));
    sum.FinishAfter(rank, block, last.signals.back());
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
  Place PlaceRead(Rank rank, const Block& block) {
    const PlacedMovement& input = Of(block.operand);
    if (!input.whole.empty())
      return PlaceWithin(state_.NeededAt(input, rank), input.whole[rank], block);
    if (input.movement.travels()) {
      const int chunk = input.movement.ChunksOf(block).front();
      const int arrival = input.movement.ArrivalAt(rank, chunk);
      if (arrival >= 0) {
        return PlaceWithin(input.movement.chunks().list[chunk].block, input.arrivals[arrival].place,
                           block);
      }
    }
    SumSteps* const sum = SumOf(input);
    return sum != nullptr ? sum->PlaceSum(rank, block) : ResidentPlace(state_.problem, block, rank);
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
    if (SumSteps* const sum = SumOfResult()) {
      multiply.acc = sum->PlaceTerms(rank, cell.c_chunk, cell.c);
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
    for (const auto& [chunk, step] : last) {
      for (const int hop : result.movement.SpreadFrom(rank, chunk))
        if (result.arrivals[hop].in_place)
          mine.computes[step].signals.push_back(result.arrivals[hop].arrived);
    }
    if (!state_.MakesWhole(result) || cells.empty()) return;
    mine.computes.back().signals.push_back(mine.made[-1] = state_.resources.NewSlot(rank));
    if (result.is_summed()) return;
    // After its single multiply, the rank copies its own part of the result to its shard.
    const Block own =
        OwnCopy(state_.problem, ShardBlock(state_.problem, result.movement.operand(), rank),
                state_.work.parts[rank]);
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
    AddReadsOfOwnSum(rank, input, cells, first);
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
      if (ReadsSum(input, input.arrivals[arrival])) {
        const Rank owner = movement.hops()[arrival].from;
        const Slot read = state_.resources.NewSlot(owner);
        mine.computes[use.first].waits.push_back({input.arrivals[arrival].arrived, 0});
        mine.computes[use.last].signals.push_back(read);
        SumOf(input)->FinishAfter(
            owner, movement.chunks().list[movement.hops()[arrival].chunk].block, read);
      } else if (ReadsShard(input.arrivals[arrival])) {
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

  // Adds the waits and signals of a rank's multiplies for the chunks that it sums of an input.
  void AddReadsOfOwnSum(Rank rank, const PlacedMovement& input, const std::vector<Cell>& cells,
                        int first) {
    SumSteps* const sum = SumOf(input);
    // A contiguous operand has a copy, which the compute lane has made before.
    if (sum == nullptr || !input.whole.empty()) return;
    std::map<int, Readers> uses;  // by chunk of the sum
    for (int i = 0; i < static_cast<int>(cells.size()); ++i) {
      const Block own = Intersect(cells[i].ReadOf(sum->operand()), sum->SummedAt(rank));
      for (const int chunk : sum->ChunksOf(own)) {
        const auto [at, added] = uses.try_emplace(chunk, Readers{first + i, 0});
        at->second.last = first + i;
      }
    }
    std::vector<Step>& computes = state_.ranks[rank].computes;
    for (const auto& [chunk, use] : uses)
      ReadOwnSum(rank, *sum, sum->ChunkBlock(chunk), computes[use.first], computes[use.last]);
  }

  static bool ReadsShard(const PlacedChunk& arrival) {
    return arrival.in_place && arrival.reads < 0;
  }
  // Returns true if the sender's sum is read in place.
  static bool ReadsSum(const PlacedMovement& input, const PlacedChunk& arrival) {
    return input.is_sum() && ReadsShard(arrival);
  }

  // Lets `first` wait for an arrival, and `last` give a credit to the sender of the next arrival at
  // the same place.
  static void AddRead(PlacedMovement& placed, int index, Step& first, Step& last) {
    PlacedChunk& arrival = placed.arrivals[index];
    PlacedChunk& copied = arrival.in_place ? placed.arrivals[arrival.reads] : arrival;
    first.waits.push_back({arrival.arrived, 0});
    if (!copied.credits.empty()) last.signals.push_back(copied.credits[copied.granted++]);
  }

  // The movement of an operand, not of the terms of its sum.
  const PlacedMovement& Of(Operand operand) const {
    return *std::find_if(state_.placed.begin(), state_.placed.end(),
                         [operand](const PlacedMovement& placed) {
                           return placed.movement.operand() == operand && !placed.is_summed();
                         });
  }

  // The steps of the sum whose blocks are those of `placed`; null if there is none.
  SumSteps* SumOf(const PlacedMovement& placed) {
    if (!placed.is_sum()) return nullptr;
    const auto at = std::find_if(sums_.begin(), sums_.end(), [&](const SumSteps& sum) {
      return sum.operand() == placed.movement.operand();
    });
    assert(at != sums_.end());  // terms of several ranks always travel
    return &*at;
  }
  SumSteps* SumOfResult() { return SumOf(Of(ResultOf(state_.problem))); }

  // Adds the sends and sums of all inputs, in the order of their steps. Then adds those of the
  // result in the same way, because they wait for multiplies.
  void AddSends() {
    for (const PlacedMovement& placed : state_.placed) {
      for (size_t hop = 0; hop < placed.arrivals.size(); ++hop) {
        const Movement::ChunkHop& way = placed.movement.hops()[hop];
        if (!placed.arrivals[hop].in_place)
          state_.ranks[way.from].send_lanes.Expect(state_.BetweenNodes(way));
      }
    }
    AddSendsOf(/*inputs=*/true);
    AddSendsOf(/*inputs=*/false);
  }

  void AddSendsOf(bool inputs) {
    // A part of a sum, or a hop. The order lets a rank send a finished chunk before it adds up the
    // next one.
    struct Item {
      int step, chunk;
      SumSteps* sum;
      SumSteps::Part part;
      PlacedMovement* placed;
      int hop;
    };
    std::vector<Item> items;
    for (SumSteps& sum : sums_) {
      if (state_.problem.Writes(sum.operand()) == inputs) continue;
      for (const SumSteps::Part& part : sum.Parts())
        items.push_back({part.step, part.chunk, &sum, part, nullptr, 0});
    }
    const bool sums = !items.empty();
    for (PlacedMovement& placed : state_.placed) {
      if (OfInput(placed) != inputs || placed.is_summed()) continue;
      for (int hop = 0; hop < static_cast<int>(placed.arrivals.size()); ++hop) {
        if (placed.arrivals[hop].in_place) continue;
        const Movement::ChunkHop& way = placed.movement.hops()[hop];
        Item item = {way.step, sums ? way.chunk : 0, nullptr, {}, &placed, hop};
        if (SumSteps* const sum = SumOf(placed)) {
          const Chunk& chunk = placed.movement.chunks().list[way.chunk];
          std::pair<int, int> finished;
          for (const Source& source : chunk.sources)
            finished = std::max(finished, sum->FinishedAt(source.rank, chunk.block));
          item.step += finished.first - 1;
          item.chunk = finished.second;
        }
        items.push_back(item);
      }
    }
    std::stable_sort(items.begin(), items.end(), [](const Item& x, const Item& y) {
      return std::pair(x.step, x.chunk) < std::pair(y.step, y.chunk);
    });
    for (const Item& item : items) {
      if (item.sum != nullptr) {
        item.sum->Add(item.part);
      } else {
        AddSend(*item.placed, item.hop);
      }
    }
  }

  bool OfInput(const PlacedMovement& placed) const {
    return !state_.problem.Writes(placed.movement.operand());
  }

  void AddSend(PlacedMovement& placed, int index) {
    const Movement::ChunkHop& hop = placed.movement.hops()[index];
    if (const Movement::Bundle* const bundle = placed.movement.BundleOf(index)) {
      if (bundle->hops.back() == index) AddBundle(placed, *bundle);
      return;
    }
    RankSteps& sender = state_.ranks[hop.from];
    const auto carries = sender.carriers.find({placed.movement.operand(), hop.chunk});
    int carrier = carries == sender.carriers.end() ? -1 : carries->second;
    const int lane =
        carrier < 0 ? -1 : sender.carried_lanes.Take(carrier, sender.send_lanes.count());
    if (lane < 0) carrier = -1;
    Step step;
    step.lane = carrier < 0 ? sender.send_lanes.Next(state_.BetweenNodes(hop))
                            : sender.send_lanes.end() + lane;
    step.waits = placed.gates[index];
    step.signals.push_back(placed.arrivals[index].arrived);
    const Block& block = placed.movement.chunks().list[hop.chunk].block;
    const Place from = ReadHeld(placed, hop, step);
    if (placed.arrivals[index].place.buffer != kWorkspace) AwaitShard(placed, index, step);
    step.op = Transfer{block, from, {placed.arrivals[index].place}, carrier};
    sender.others.push_back(std::move(step));
  }

  // Adds the send of a bundle. Before it, adds a copy into the bundle for each chunk that the
  // sender has not received. All of these steps share a lane.
  void AddBundle(PlacedMovement& placed, const Movement::Bundle& bundle) {
    const Movement& movement = placed.movement;
    const Place& place = placed.bundles[&bundle - movement.bundles().data()];
    RankSteps& sender = state_.ranks[bundle.from];
    Step send;
    send.lane = sender.send_lanes.Next(!state_.topology.SameNode(bundle.from, bundle.to));
    const int last = bundle.hops.back();
    send.signals.push_back(placed.arrivals[last].arrived);
    AwaitShard(placed, last, send);
    for (const int index : bundle.hops) {
      const Movement::ChunkHop& hop = movement.hops()[index];
      if (movement.ArrivalAt(hop.from, hop.chunk) >= 0) {
        ReadHeld(placed, hop, send);
        continue;
      }
      const Block& block = movement.chunks().list[hop.chunk].block;
      Step copy;
      copy.lane = send.lane;
      const Place from = ReadHeld(placed, hop, copy);
      copy.op = Transfer{block, from, {PlaceWithin(bundle.block, place, block)}};
      sender.others.push_back(std::move(copy));
    }
    send.op =
        Transfer{bundle.block, place, {ResidentPlace(state_.problem, bundle.block, bundle.to)}};
    sender.others.push_back(std::move(send));
  }

  // Lets a hop into a shard wait for the epoch of its owner, which ends only after the arrival.
  void AwaitShard(const PlacedMovement& placed, int index, Step& step) {
    const Movement::ChunkHop& hop = placed.movement.hops()[index];
    if (placed.movement.consumer() != Consumer::kShard) return;
    step.waits.push_back({state_.Begun(hop.from, hop.to), 0});
    state_.ranks[hop.to].exit.waits.push_back({placed.arrivals[index].arrived, 0});
  }

  // Returns the place where the sender of a hop has its chunk. Lets `step`, which reads it there,
  // wait for it, and lets the next epoch overwrite it only after `step`.
  Place ReadHeld(PlacedMovement& placed, const Movement::ChunkHop& hop, Step& step) {
    const Movement& movement = placed.movement;
    const Block& block = movement.chunks().list[hop.chunk].block;
    RankSteps& sender = state_.ranks[hop.from];
    const int held = movement.ArrivalAt(hop.from, hop.chunk);
    if (held >= 0) {
      AddRead(placed, held, step, step);
      return placed.arrivals[held].place;
    }
    const auto read = [&] {
      step.signals.push_back(state_.resources.NewSlot(hop.from));
      return step.signals.back();
    };
    if (placed.is_made()) {
      const int made = state_.MakesWhole(placed) ? -1 : hop.chunk;
      const Place from = PlaceMade(hop.from, made, block);
      step.waits.push_back({sender.made.at(made), 0});
      if (from.buffer == kWorkspace)
        sender.computes[sender.staging.at(made).first].waits.push_back({read(), 1});
      return from;
    }
    if (SumSteps* const sum = SumOf(placed)) {
      const Place from = sum->PlaceSum(hop.from, block);
      sum->Await(hop.from, block, step);
      if (from.buffer == kWorkspace) sum->FinishAfter(hop.from, block, read());
      return from;
    }
    // Sent from the shard, not from the copy in a contiguous operand.
    return state_.SourcePlace(block, hop.from);
  }

  // Adds joins that signal arrivals, or chunks of a sum, to the other ranks that read them in
  // place.
  void AddReaderJoins(const PlacedMovement& input) {
    // By arrival, or (true) by chunk of a sum, and by rank.
    std::map<std::tuple<bool, int, Rank>, Step> joins;
    const std::vector<Movement::ChunkHop>& hops = input.movement.hops();
    for (size_t i = 0; i < input.arrivals.size(); ++i) {
      const PlacedChunk& arrival = input.arrivals[i];
      if (!arrival.in_place || input.is_summed()) continue;
      const bool of_sum = ReadsSum(input, arrival);
      if (!of_sum && arrival.reads < 0) continue;
      const auto [at, added] =
          joins.try_emplace({of_sum, of_sum ? hops[i].chunk : arrival.reads, hops[i].from});
      Step& join = at->second;
      join.signals.push_back(arrival.arrived);
      if (!added) continue;
      if (of_sum) {
        SumOf(input)->Await(hops[i].from, input.movement.chunks().list[hops[i].chunk].block, join);
      } else {
        join.waits.push_back({input.arrivals[arrival.reads].arrived, 0});
      }
    }
    for (auto& [key, join] : joins) {
      RankSteps& mine = state_.ranks[std::get<2>(key)];
      join.lane = mine.send_lanes.end();
      mine.others.push_back(std::move(join));
    }
  }

  Schedule Assemble() {
    Schedule schedule;
    schedule.workspace_bytes = state_.resources.most_bytes();
    for (RankSteps& built : state_.ranks) {
      RankSteps mine = std::move(built);  // until its steps have moved
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
  std::vector<SumSteps> sums_;  // of the terms that travel, in the order of `movements_`
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
    const bool of_input = !problem.Writes(demand.operand);
    if (demand.consumer == Consumer::kSum || (demand.producer == Producer::kSum && !of_input))
      continue;
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
      const Block held = of_input ? demand.has[rank] : ShardBlock(problem, demand.operand, rank);
      steps += !OwnCopy(problem, held, demands.work.parts[rank]).empty();
    }
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
