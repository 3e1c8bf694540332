#include "kernels/schedule/build.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/arrivals.h"
#include "kernels/schedule/send_lanes.h"

namespace agmm {
namespace {

// A movement with its arrivals, by hop.
struct Placed {
  explicit Placed(const Movement& its_movement) : movement(its_movement) {}
  bool is_read() const { return movement.consumer() == Consumer::kMultiplies; }
  bool is_made() const { return movement.producer() == Producer::kMultiplies; }
  bool is_summed() const { return movement.consumer() == Consumer::kSum; }

  const Movement& movement;
  std::vector<Place> whole;  // by rank, the place of a contiguous input; else empty
  std::vector<PlacedChunk> arrivals;
  std::vector<std::vector<Wait>> gates;  // by hop: the credits that its sender waits for
};

// A place in the workspace for a block that a rank computes for others, or of which it has terms.
struct StagingPlace {
  Place place;
  int first = 0;  // index in `computes` of the first step that writes there
};

// The step that finishes a chunk of a sum.
struct Finished {
  Slot slot;
  int step = 0;  // index in `others`
};

struct RankSteps {
  explicit RankSteps(const Mesh& mesh) : send_lanes(mesh) {}
  Step entry, exit;            // joins at both ends of the epoch
  std::vector<Step> computes;  // copies and multiplies, on the compute lane
  std::vector<Step> others;    // on the other lanes
  std::map<int, Place> sums;   // by number
  // By chunk of the result, or -1 for all of it: the slot that is raised when the rank has computed
  // it, and its place if that is not in the shard.
  absl::flat_hash_map<int, Slot> made;
  absl::flat_hash_map<int, StagingPlace> staging;
  // The block that the rank sums, if parts of it belong elsewhere; and its chunks.
  std::optional<Place> sum;
  absl::flat_hash_map<int, Finished> finished;
  absl::flat_hash_map<Rank, Slot> begun;  // by owner of a shard that it reads or writes
  Carriers carriers;                      // indices of `computes`
  SendLanes send_lanes;
  CarriedLanes carried_lanes;  // on the lanes after send_lanes
};

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

class Builder {
 public:
  Builder(const Problem& problem, const Topology& topology, const Work& work,
          const std::vector<Movement>& movements, const BuildOptions& options)
      : problem_(problem),
        topology_(topology),
        work_(work),
        movements_(movements),
        options_(options),
        resources_(problem.mesh.size()),
        placed_(movements.begin(), movements.end()),
        ranks_(problem.mesh.size(), RankSteps(problem.mesh)) {
    for (Placed& placed : placed_)
      if (placed.is_summed() && placed.movement.travels()) sum_ = &placed;
  }

  Schedule Run() {
    for (Placed& placed : placed_) PlaceChunks(placed);
    const Taking taking = options_.arrivals == Arrivals::kContiguous ? Taking::kWhole
                          : options_.places > 0                      ? Taking::kByArrival
                                                                     : Taking::kChunks;
    std::vector<std::pair<Operand, Grid>> grids;
    for (const Movement& movement : movements_) {
      if (movement.travels() && taking != Taking::kWhole)
        grids.emplace_back(movement.operand(), movement.chunks().grid);
    }
    const Cuts cuts(problem_, grids);
    for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) {
      for (const Placed& placed : placed_) CopyOwn(rank, placed);
      AddMultiplies(rank, CellsOf(problem_, movements_, cuts, taking, work_.parts[rank], rank));
    }
    AddSends();
    for (const Placed& placed : placed_) AddReaderJoins(placed);
    return Assemble();
  }

 private:
  // The block of an input that a rank reads, or of a result that it computes.
  Block NeededAt(const Placed& placed, Rank rank) const {
    return NeededBlock(problem_, placed.movement.operand(), work_.parts[rank]);
  }

  void PlaceChunks(Placed& placed) {
    const Movement& movement = placed.movement;
    if (!movement.travels()) return;
    if (placed.is_read() && options_.arrivals == Arrivals::kContiguous) {
      for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) {
        const Block block = NeededAt(placed, rank);
        placed.whole.push_back(block.empty() ? Place{} : Allocate(rank, block));
      }
    }
    placed.arrivals =
        PlaceArrivals(problem_, work_, movement, options_.places, placed.whole, resources_);
    placed.gates.resize(placed.arrivals.size());
    for (const PlacedChunk& arrival : placed.arrivals) {
      for (const Slot& credit : arrival.credits)
        placed.gates[arrival.next].push_back({credit, arrival.lag});
    }
  }

  Place Allocate(Rank rank, const Block& block) {
    return resources_.Allocate(rank, block.rows.size(), block.cols.size(),
                               problem_.tensors[block.operand].dtype);
  }

  // Copies a rank's own part of a contiguous operand. Uses the compute lane, so that the multiply
  // needs no slot to wait for.
  void CopyOwn(Rank rank, const Placed& input) {
    if (input.whole.empty()) return;
    const Block needed = NeededAt(input, rank);
    const Block own = OwnCopy(problem_, needed.operand, work_.parts[rank], rank);
    if (own.empty()) return;
    ranks_[rank].computes.push_back({Transfer{own,
                                              ResidentPlace(problem_, own, rank),
                                              {PlaceWithin(needed, input.whole[rank], own)}},
                                     kComputeLane});
  }

  // Returns the place at which `rank` reads `block` of an input, which is part of one chunk.
  Place PlaceRead(Rank rank, const Block& block) const {
    const Placed& input = Of(block.operand);
    if (!input.movement.travels()) return ResidentPlace(problem_, block, rank);
    if (!input.whole.empty()) return PlaceWithin(NeededAt(input, rank), input.whole[rank], block);
    const int chunk = input.movement.ChunksOf(block).front();
    const int arrival = input.movement.ArrivalAt(rank, chunk);
    if (arrival < 0) return ResidentPlace(problem_, block, rank);
    return PlaceWithin(input.movement.chunks().list[chunk].block, input.arrivals[arrival].place,
                       block);
  }

  // Returns true if the result travels and one multiply computes all of a rank's part.
  bool MakesWhole(const Placed& result) const {
    return options_.arrivals == Arrivals::kContiguous && result.movement.travels();
  }

  // Returns the place for the terms that `rank` has of `block`, which is part of `chunk` of a sum
  // (-1: of all that it computes).
  Place PlaceTerms(Rank rank, int chunk, const Block& block) {
    const Block whole =
        chunk >= 0 ? sum_->movement.chunks().list[chunk].block : NeededAt(*sum_, rank);
    RankSteps& mine = ranks_[rank];
    const auto [at, added] = mine.staging.try_emplace(chunk);
    if (added) {
      at->second = {resources_.Allocate(rank, whole.rows.size(), whole.cols.size(), DType::kF32),
                    static_cast<int>(mine.computes.size())};
    }
    return PlaceWithin(whole, at->second.place, block);
  }

  // Returns the place at which `rank` finishes a chunk of its sum: in its shard, or in the
  // workspace if the chunk belongs elsewhere.
  Place PlaceSum(Rank rank, const Block& chunk) {
    if (Intersect(ShardBlock(problem_, chunk.operand, rank), chunk) == chunk)
      return ResidentPlace(problem_, chunk, rank);
    const Block& whole = sum_->movement.summed_at(rank);
    std::optional<Place>& sum = ranks_[rank].sum;
    if (!sum) sum = Allocate(rank, whole);
    return PlaceWithin(whole, *sum, chunk);
  }

  // Returns the place at which `rank` computes `block`, which is part of `chunk` of a result (-1:
  // of all that it computes): in its shard, or in the workspace if a part of the chunk belongs
  // elsewhere.
  Place PlaceMade(Rank rank, int chunk, const Block& block) {
    const Placed& result = Of(block.operand);
    const Block shard = ShardBlock(problem_, block.operand, rank);
    const Block whole =
        chunk >= 0 ? result.movement.chunks().list[chunk].block : NeededAt(result, rank);
    if (Intersect(shard, whole) == whole) return ResidentPlace(problem_, block, rank);
    RankSteps& mine = ranks_[rank];
    const auto [at, added] = mine.staging.try_emplace(chunk);
    if (added) at->second = {Allocate(rank, whole), static_cast<int>(mine.computes.size())};
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
    if (sum_ != nullptr) {
      multiply.acc = PlaceTerms(rank, cell.c_chunk, cell.c);
      multiply.finish = false;
      return {multiply, kComputeLane};
    }
    if (cell.sum >= 0) {
      const auto [at, added] = ranks_[rank].sums.try_emplace(cell.sum);
      if (added)
        at->second = resources_.Allocate(rank, cell.c.rows.size(), cell.c.cols.size(), DType::kF32);
      multiply.acc = at->second;
    }
    if (cell.finish) multiply.out = PlaceMade(rank, cell.c_chunk, cell.c);
    return {multiply, kComputeLane};
  }

  void AddMultiplies(Rank rank, const std::vector<Cell>& cells) {
    std::vector<Step>& computes = ranks_[rank].computes;
    const int first = static_cast<int>(computes.size());
    computes.reserve(computes.size() + cells.size());
    for (const Cell& cell : cells) computes.push_back(MultiplyStep(rank, cell));
    if (options_.carried) {
      for (auto& [chunk, cell] : ranks_[rank].carriers = CarriersOf(movements_, cells, rank))
        cell += first;
    }
    for (Placed& placed : placed_) {
      if (placed.is_read()) AddReads(rank, placed, cells, first);
      if (placed.is_made()) AddMakes(rank, placed, cells, first);
    }
  }

  // Adds a signal to the last multiply of each chunk of the result that the rank sends.
  void AddMakes(Rank rank, const Placed& result, const std::vector<Cell>& cells, int first) {
    RankSteps& mine = ranks_[rank];
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
                                                    : resources_.NewSlot(rank));
    }
    if (!MakesWhole(result) || cells.empty()) return;
    mine.computes.back().signals.push_back(mine.made[-1] = resources_.NewSlot(rank));
    if (result.is_summed()) return;
    // After its single multiply, the rank copies its own part of the result to its shard.
    const Block own = OwnCopy(problem_, result.movement.operand(), work_.parts[rank], rank);
    if (own.empty()) return;
    mine.computes.push_back(
        {Transfer{own, PlaceMade(rank, -1, own), {ResidentPlace(problem_, own, rank)}},
         kComputeLane});
  }

  // Adds the waits and signals of a rank's multiplies for the chunks of one input. The first
  // multiply that reads a chunk waits for it, and the last one gives its credit. This is enough,
  // because a lane runs in order.
  void AddReads(Rank rank, Placed& input, const std::vector<Cell>& cells, int first) {
    const Movement& movement = input.movement;
    if (!movement.travels()) return;
    RankSteps& mine = ranks_[rank];
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
      mine.computes[use.first].waits.push_back({Begun(rank, owner), 0});
      const Slot read = resources_.NewSlot(owner);
      mine.computes[use.last].signals.push_back(read);
      ranks_[owner].exit.waits.push_back({read, 0});
    }
  }

  static bool ReadsShard(const PlacedChunk& arrival) {
    return arrival.in_place && arrival.reads < 0;
  }

  // Lets `first` wait for an arrival, and `last` give a credit to the sender of the next arrival at
  // the same place.
  static void AddRead(Placed& placed, int index, Step& first, Step& last) {
    PlacedChunk& arrival = placed.arrivals[index];
    PlacedChunk& copied = arrival.in_place ? placed.arrivals[arrival.reads] : arrival;
    first.waits.push_back({arrival.arrived, 0});
    if (placed.is_read()) last.signals.push_back(copied.credits[copied.granted++]);
  }

  const Placed& Of(Operand operand) const {
    return *std::find_if(placed_.begin(), placed_.end(), [operand](const Placed& placed) {
      return placed.movement.operand() == operand;
    });
  }

  // The slot at `rank` that is raised when the epoch of `owner` has begun.
  Slot Begun(Rank rank, Rank owner) {
    const auto [at, added] = ranks_[rank].begun.try_emplace(owner);
    if (added) {
      at->second = resources_.NewSlot(rank);
      ranks_[owner].entry.signals.push_back(at->second);
    }
    return at->second;
  }

  // Adds the sends of all inputs in the order of their steps, then those of a sum and then those of
  // a result, which wait for multiplies.
  void AddSends() {
    struct Send {
      Placed* placed;
      int hop;
    };
    std::vector<Send> sends;
    const auto hop_of = [](const Send& send) -> const Movement::ChunkHop& {
      return send.placed->movement.hops()[send.hop];
    };
    for (Placed& placed : placed_) {
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
      ranks_[hop_of(send).from].send_lanes.Expect(BetweenNodes(hop_of(send)));
    for (const Send& send : sends)
      if (OfInput(*send.placed)) AddSend(*send.placed, send.hop);
    if (sum_ != nullptr) AddSums();
    for (const Send& send : sends)
      if (!OfInput(*send.placed) && !send.placed->is_summed()) AddSend(*send.placed, send.hop);
  }

  bool OfInput(const Placed& placed) const { return !problem_.Writes(placed.movement.operand()); }

  // Adds the reductions and sends of a sum, in the order in which chunks leave their ranks: each
  // waits for terms that left earlier, so ranks never wait for each other in a circle.
  void AddSums() {
    struct Part {
      int step;
      int chunk;
      Rank rank;
    };
    const Movement& movement = sum_->movement;
    std::vector<Part> parts;
    const auto add = [&](int chunk, Rank rank) {
      const int leaving = movement.LeavingFrom(rank, chunk);
      if (leaving >= 0 && sum_->arrivals[leaving].in_place) return;
      const int step = leaving >= 0
                           ? movement.hops()[leaving].step
                           : movement.hops()[movement.TermsAt(rank, chunk).back()].step + 1;
      parts.push_back({step, chunk, rank});
    };
    for (int chunk = 0; chunk < static_cast<int>(movement.chunks().list.size()); ++chunk) {
      for (const Source& source : movement.chunks().list[chunk].sources) {
        add(chunk, source.rank);
        for (Rank rank : source.needers) add(chunk, rank);
      }
    }
    std::stable_sort(parts.begin(), parts.end(),
                     [](const Part& x, const Part& y) { return x.step < y.step; });
    for (const Part& part : parts) AddSum(part.rank, part.chunk);
  }

  // Terms of a chunk that a rank adds up: its own ones, or the ones of a hop.
  struct Term {
    Rank from;
    Place place;
    Slot ready, used;
  };
  std::vector<Term> TermsOf(Rank rank, int chunk) {
    const Movement& movement = sum_->movement;
    RankSteps& mine = ranks_[rank];
    const int made = MakesWhole(*sum_) ? -1 : chunk;
    const Block& block = movement.chunks().list[chunk].block;
    std::vector<Term> terms;
    // The next epoch's multiply may overwrite the terms of `from` only after they have been used.
    const auto add_made = [&](Rank from, const Slot& ready, const Slot& used) {
      terms.push_back({from, PlaceTerms(from, made, block), ready, used});
      RankSteps& its = ranks_[from];
      its.computes[its.staging.at(made).first].waits.push_back({used, 1});
    };
    add_made(rank, mine.made.at(made), resources_.NewSlot(rank));
    for (const int hop : movement.TermsAt(rank, chunk)) {
      const PlacedChunk& arrival = sum_->arrivals[hop];
      const Rank from = movement.hops()[hop].from;
      if (arrival.in_place) {
        add_made(from, arrival.arrived, arrival.credits.front());
      } else {
        terms.push_back({from, arrival.place, arrival.arrived, arrival.credits.front()});
      }
    }
    std::sort(terms.begin(), terms.end(),
              [](const Term& x, const Term& y) { return x.from < y.from; });
    return terms;
  }

  // Adds what a rank does with a chunk of a sum: it adds up all terms, first one in its own
  // memory and then the others in the order of their ranks, and sends the sum on or finishes it.
  // All of this has one lane, so that multiplies never wait for terms.
  void AddSum(Rank rank, int chunk) {
    const Movement& movement = sum_->movement;
    RankSteps& mine = ranks_[rank];
    const Block& block = movement.chunks().list[chunk].block;
    const int leaving = movement.LeavingFrom(rank, chunk);
    const int last_hop = leaving >= 0 ? leaving : movement.TermsAt(rank, chunk).back();
    const int lane = mine.send_lanes.Next(BetweenNodes(movement.hops()[last_hop]));
    const std::vector<Term> terms = TermsOf(rank, chunk);
    // A rank adds only in its own memory.
    const auto first = std::find_if(terms.begin(), terms.end(),
                                    [&](const Term& term) { return term.place.rank == rank; });
    const Term& sum = *first;
    std::vector<Step> steps;
    for (auto term = terms.begin(); term != terms.end(); ++term) {
      if (term == first) continue;
      steps.push_back({Reduce{block, term->place, sum.place}, lane, {{term->ready, 0}}});
      steps.back().signals.push_back(term->used);
    }
    if (leaving >= 0) {
      const PlacedChunk& arrival = sum_->arrivals[leaving];
      steps.push_back({Transfer{block, sum.place, {arrival.place}}, lane, sum_->gates[leaving]});
      steps.back().signals.push_back(arrival.arrived);
    } else {
      auto& last = std::get<Reduce>(steps.back().op);
      last.finish = true;
      last.out = PlaceSum(rank, block);
      steps.back().signals.push_back(resources_.NewSlot(rank));
      mine.finished[chunk] = {steps.back().signals.back(),
                              static_cast<int>(mine.others.size() + steps.size()) - 1};
    }
    steps.front().waits.push_back({sum.ready, 0});
    steps.back().signals.push_back(sum.used);
    std::move(steps.begin(), steps.end(), std::back_inserter(mine.others));
  }

  bool BetweenNodes(const Movement::ChunkHop& hop) const {
    return !topology_.SameNode(hop.from, hop.to);
  }

  void AddSend(Placed& placed, int index) {
    const Movement& movement = placed.movement;
    const Movement::ChunkHop& hop = movement.hops()[index];
    const PlacedChunk& arrival = placed.arrivals[index];
    RankSteps& sender = ranks_[hop.from];
    const auto carries = sender.carriers.find({movement.operand(), hop.chunk});
    int carrier = carries == sender.carriers.end() ? -1 : carries->second;
    const int lane =
        carrier < 0 ? -1 : sender.carried_lanes.Take(carrier, sender.send_lanes.count());
    if (lane < 0) carrier = -1;
    Step step;
    step.lane =
        carrier < 0 ? sender.send_lanes.Next(BetweenNodes(hop)) : sender.send_lanes.end() + lane;
    step.waits = placed.gates[index];
    step.signals.push_back(arrival.arrived);
    const Block& block = movement.chunks().list[hop.chunk].block;
    const int held = movement.ArrivalAt(hop.from, hop.chunk);
    const int made = MakesWhole(placed) ? -1 : hop.chunk;
    Place from;
    if (held >= 0) {
      from = placed.arrivals[held].place;
      AddRead(placed, held, step, step);
    } else if (placed.is_made()) {
      from = PlaceMade(hop.from, made, block);
      step.waits.push_back({sender.made.at(made), 0});
    } else if (movement.producer() == Producer::kSum) {
      from = PlaceSum(hop.from, block);
      for (const int summed : sum_->movement.ChunksOf(block))
        step.waits.push_back({sender.finished.at(summed).slot, 0});
    } else {
      // Sent from the shard, not from the copy in a contiguous operand.
      from = ResidentPlace(problem_, block, hop.from);
    }
    if (movement.consumer() == Consumer::kShard) {
      step.waits.push_back({Begun(hop.from, hop.to), 0});
      ranks_[hop.to].exit.waits.push_back({arrival.arrived, 0});
    }
    // The next epoch's multiply may overwrite the place only after this send has read it.
    if (placed.is_made() && from.buffer == kWorkspace) {
      step.signals.push_back(resources_.NewSlot(hop.from));
      const int first = sender.staging.at(made).first;
      sender.computes[first].waits.push_back({step.signals.back(), 1});
    }
    if (movement.producer() == Producer::kSum && held < 0 && from.buffer == kWorkspace) {
      step.signals.push_back(resources_.NewSlot(hop.from));
      for (const int summed : sum_->movement.ChunksOf(block))
        sender.others[sender.finished.at(summed).step].waits.push_back({step.signals.back(), 1});
    }
    step.op = Transfer{block, from, {arrival.place}, carrier};
    sender.others.push_back(std::move(step));
  }

  // Adds joins that signal arrivals to the other ranks that read them in place.
  void AddReaderJoins(const Placed& input) {
    std::map<int, Step> joins;  // by arrival
    for (const PlacedChunk& arrival : input.arrivals) {
      if (arrival.in_place && arrival.reads >= 0)
        joins[arrival.reads].signals.push_back(arrival.arrived);
    }
    for (auto& [arrival, join] : joins) {
      RankSteps& mine = ranks_[input.movement.hops()[arrival].to];
      join.lane = mine.send_lanes.end();
      join.waits.push_back({input.arrivals[arrival].arrived, 0});
      mine.others.push_back(std::move(join));
    }
  }

  Schedule Assemble() {
    Schedule schedule;
    schedule.workspace_bytes = resources_.most_bytes();
    for (RankSteps& mine : ranks_) {
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

  const Problem& problem_;
  const Topology& topology_;
  const Work& work_;
  const std::vector<Movement>& movements_;
  const BuildOptions& options_;
  Resources resources_;
  std::vector<Placed> placed_;  // by movement
  Placed* sum_ = nullptr;       // the one whose terms ranks exchange
  std::vector<RankSteps> ranks_;
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
    if (!demand.travels) continue;
    steps += CountCopies(problem, topology, demand, algorithm);
    if (demand.consumer == Consumer::kSum) steps += CountHops(demand);  // the reductions
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
