#include "kernels/schedule/build.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/arrivals.h"
#include "kernels/schedule/carriers.h"
#include "kernels/schedule/send_lanes.h"

namespace agmm {
namespace {

// An input with its arrivals, by hop.
struct Input {
  explicit Input(const Flow& its_flow) : flow(its_flow) {}
  const Flow& flow;
  std::vector<Place> whole;  // by rank, where all of it lies in one block; else empty
  std::vector<PlacedChunk> arrivals;
  std::vector<std::vector<Wait>> gates;  // by hop: the credits that its sender waits for
};

// A place in the workspace for what a rank makes of C for others.
struct Beside {
  Place place;
  int first = 0;  // index of `computes` that writes there first
};

struct RankSteps {
  explicit RankSteps(const Mesh& mesh) : send_lanes(mesh) {}
  Step entry, exit;            // joins at both ends of the epoch
  std::vector<Step> computes;  // copies and multiplies, on the compute lane
  std::vector<Step> others;    // on the other lanes
  std::map<int, Place> sums;   // by number
  // By chunk of C, -1 for all of it: that it has been made, and where, if it is not in the shard.
  absl::flat_hash_map<int, Slot> made;
  absl::flat_hash_map<int, Beside> beside_shard;
  absl::flat_hash_map<Rank, Slot> begun;  // by owner of a shard that it reads or writes
  Carriers carriers;                      // indices of `computes`
  SendLanes send_lanes;
  CarriedLanes carried_lanes;  // behind them
};

// The first and the last of a rank's multiplies that read something.
struct Use {
  int first = 0, last = 0;
};

class Builder {
 public:
  Builder(const Problem& problem, const Topology& topology, const Work& work, const Flow& a,
          const Flow& b, const Flow& c, const BuildOptions& options)
      : problem_(problem),
        topology_(topology),
        work_(work),
        options_(options),
        resources_(problem.mesh.size()),
        a_(a),
        b_(b),
        c_(c),
        ranks_(problem.mesh.size(), RankSteps(problem.mesh)) {}

  Schedule Run() {
    for (Input* input : {&a_, &b_}) PlaceInput(*input);
    for (const Flow::ChunkHop& hop : c_.hops()) c_arrived_.push_back(resources_.NewSlot(hop.to));
    const bool cut = options_.arrivals != Arrivals::kContiguous;
    const Cutting cutting = {problem_,
                             a_.flow,
                             b_.flow,
                             c_,
                             cut && a_.flow.travels(),
                             cut && b_.flow.travels(),
                             cut && c_.travels(),
                             options_.places > 0};
    for (Rank rank = 0; rank < problem_.mesh.size(); ++rank) {
      for (const Input* input : {&a_, &b_}) CopyOwn(rank, *input);
      AddMultiplies(rank, CellsOf(cutting, work_.parts[rank], rank));
    }
    AddSends();
    for (const Input* input : {&a_, &b_}) TellReaders(*input);
    return Assemble();
  }

 private:
  Block NeededAt(const Input& input, Rank rank) const {
    return NeededBlock(problem_, input.flow.operand(), work_.parts[rank]);
  }

  void PlaceInput(Input& input) {
    if (!input.flow.travels()) return;
    for (Rank rank = 0; options_.arrivals == Arrivals::kContiguous && rank < problem_.mesh.size();
         ++rank) {
      const Block block = NeededAt(input, rank);
      const DType dtype = problem_.tensors[block.operand].dtype;
      input.whole.push_back(
          block.empty() ? Place{}
                        : resources_.Allocate(rank, block.rows.size(), block.cols.size(), dtype));
    }
    input.arrivals = PlaceArrivals(problem_, topology_, work_, input.flow, options_.arrivals,
                                   options_.places, input.whole, resources_);
    input.gates.resize(input.arrivals.size());
    for (const PlacedChunk& arrival : input.arrivals) {
      for (const Slot& credit : arrival.credits)
        input.gates[arrival.next].push_back({credit, arrival.lag});
    }
  }

  // Copies what a rank holds of a contiguous operand, on the compute lane, so that the multiply
  // needs no slot to wait for.
  void CopyOwn(Rank rank, const Input& input) {
    if (input.whole.empty()) return;
    const Block needed = NeededAt(input, rank);
    const Block own = Intersect(needed, ShardBlock(problem_, input.flow.operand(), rank));
    if (own.empty()) return;
    ranks_[rank].computes.push_back({Transfer{own,
                                              ResidentPlace(problem_, own, rank),
                                              {PlaceWithin(needed, input.whole[rank], own)}},
                                     kComputeLane});
  }

  // Returns the place at which `rank` reads `block` of an input, which is part of one chunk.
  Place PlaceOf(const Input& input, Rank rank, const Block& block) const {
    if (!input.flow.travels()) return ResidentPlace(problem_, block, rank);
    if (!input.whole.empty()) return PlaceWithin(NeededAt(input, rank), input.whole[rank], block);
    return PlaceOfChunk(input, rank, input.flow.ChunksOf(block).front(), block);
  }
  Place PlaceOfChunk(const Input& input, Rank rank, int chunk, const Block& block) const {
    const int arrival = input.flow.ArrivalAt(rank, chunk);
    if (arrival < 0) return ResidentPlace(problem_, block, rank);
    return PlaceWithin(input.flow.chunks().list[chunk].block, input.arrivals[arrival].place, block);
  }

  // C is made by one multiply, and not chunk by chunk.
  bool MakesWholeC() const { return options_.arrivals == Arrivals::kContiguous && c_.travels(); }
  Block MadeAt(Rank rank) const {
    return NeededBlock(problem_, problem_.product.c, work_.parts[rank]);
  }

  // Returns the place at which `rank` computes `block`, of that chunk of C (-1: all of it): in its
  // shard, or in the workspace if a part of the chunk belongs elsewhere.
  Place PlaceOfC(Rank rank, int chunk, const Block& block) {
    const Block shard = ShardBlock(problem_, block.operand, rank);
    const Block whole = chunk >= 0 ? c_.chunks().list[chunk].block : MadeAt(rank);
    if (Intersect(shard, whole) == whole) return ResidentPlace(problem_, block, rank);
    RankSteps& mine = ranks_[rank];
    const auto [at, added] = mine.beside_shard.try_emplace(chunk);
    if (added) {
      const DType dtype = problem_.tensors[whole.operand].dtype;
      at->second = {resources_.Allocate(rank, whole.rows.size(), whole.cols.size(), dtype),
                    static_cast<int>(mine.computes.size())};
    }
    return PlaceWithin(whole, at->second.place, block);
  }

  Step MultiplyStep(Rank rank, const Cell& cell) {
    Multiply multiply;
    multiply.a = cell.a;
    multiply.b = cell.b;
    multiply.c = cell.c;
    multiply.a_place = PlaceOf(a_, rank, cell.a);
    multiply.b_place = PlaceOf(b_, rank, cell.b);
    multiply.accumulate = cell.accumulate;
    multiply.finish = cell.finish;
    if (cell.sum >= 0) {
      const auto [at, added] = ranks_[rank].sums.try_emplace(cell.sum);
      if (added)
        at->second = resources_.Allocate(rank, cell.c.rows.size(), cell.c.cols.size(), DType::kF32);
      multiply.acc = at->second;
    }
    if (cell.finish) multiply.out = PlaceOfC(rank, cell.c_chunk, cell.c);
    return {multiply, kComputeLane};
  }

  void AddMultiplies(Rank rank, const std::vector<Cell>& cells) {
    std::vector<Step>& computes = ranks_[rank].computes;
    const int first = static_cast<int>(computes.size());
    computes.reserve(computes.size() + cells.size());
    for (const Cell& cell : cells) computes.push_back(MultiplyStep(rank, cell));
    if (options_.carried) {
      for (auto& [chunk, cell] : ranks_[rank].carriers = CarriersOf(a_.flow, b_.flow, cells, rank))
        cell += first;
    }
    AddReads(rank, a_, cells, &Cell::a, first);
    AddReads(rank, b_, cells, &Cell::b, first);
    std::map<int, int> last;  // by chunk of C, the multiply that makes the last of it
    for (int i = 0; i < static_cast<int>(cells.size()); ++i) {
      if (cells[i].c_chunk >= 0) last[cells[i].c_chunk] = first + i;
    }
    for (const auto& [chunk, step] : last) {
      const std::vector<Source>& sources = c_.chunks().list[chunk].sources;
      if (std::none_of(sources.begin(), sources.end(),
                       [&, self = rank](const Source& source) { return source.rank == self; }))
        continue;
      computes[step].signals.push_back(ranks_[rank].made[chunk] = resources_.NewSlot(rank));
    }
    if (MakesWholeC() && !cells.empty()) KeepOwnC(rank);
  }

  // Behind the one multiply of a rank: says that C is made, and copies what belongs to the shard.
  void KeepOwnC(Rank rank) {
    RankSteps& mine = ranks_[rank];
    mine.computes.back().signals.push_back(mine.made[-1] = resources_.NewSlot(rank));
    const Block own = Intersect(MadeAt(rank), ShardBlock(problem_, problem_.product.c, rank));
    if (own.empty() || own == MadeAt(rank)) return;
    mine.computes.push_back(
        {Transfer{own, PlaceOfC(rank, -1, own), {ResidentPlace(problem_, own, rank)}},
         kComputeLane});
  }

  // The waits and signals of a rank's multiplies for the chunks of one input. The first multiply
  // that reads a chunk waits for it and the last one gives its credit, because a lane runs in
  // order.
  void AddReads(Rank rank, Input& input, const std::vector<Cell>& cells, Block Cell::*block,
                int first) {
    if (!input.flow.travels()) return;
    RankSteps& mine = ranks_[rank];
    std::vector<std::pair<int, Use>> uses;  // of arrivals, in the order of their first use
    absl::flat_hash_map<int, size_t> use_of;
    for (int i = 0; i < static_cast<int>(cells.size()); ++i) {
      for (int chunk : input.flow.ChunksOf(cells[i].*block)) {
        const int arrival = input.flow.ArrivalAt(rank, chunk);
        if (arrival < 0) continue;
        const auto [at, added] = use_of.try_emplace(arrival, uses.size());
        if (added) uses.push_back({arrival, {first + i, 0}});
        uses[at->second].second.last = first + i;
      }
    }
    std::map<Rank, Use> owners;  // of shards that are read in place
    for (const auto& [arrival, use] : uses) {
      if (ReadsShard(input.arrivals[arrival])) {
        const auto [at, added] = owners.try_emplace(input.flow.hops()[arrival].from, use);
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

  // Lets `first` wait for an arrival, and `last` give a credit to the sender of the next one in its
  // place.
  static void AddRead(Input& input, int index, Step& first, Step& last) {
    PlacedChunk& arrival = input.arrivals[index];
    PlacedChunk& copied = arrival.in_place ? input.arrivals[arrival.reads] : arrival;
    first.waits.push_back({arrival.arrived, 0});
    last.signals.push_back(copied.credits[copied.granted++]);
  }

  // The slot at `rank` that says that the epoch of `owner` has begun.
  Slot Begun(Rank rank, Rank owner) {
    const auto [at, added] = ranks_[rank].begun.try_emplace(owner);
    if (added) {
      at->second = resources_.NewSlot(rank);
      ranks_[owner].entry.signals.push_back(at->second);
    }
    return at->second;
  }

  // The hops of both inputs by step; behind them those of C, which wait for multiplies.
  void AddSends() {
    struct Send {
      Input* input;
      int hop;
    };
    std::vector<Send> sends;
    const auto hop_of = [](const Send& send) -> const Flow::ChunkHop& {
      return send.input->flow.hops()[send.hop];
    };
    for (Input* input : {&a_, &b_}) {
      for (int hop = 0; hop < static_cast<int>(input->arrivals.size()); ++hop) {
        if (!input->arrivals[hop].in_place) sends.push_back({input, hop});
      }
    }
    std::stable_sort(sends.begin(), sends.end(),
                     [&](const Send& x, const Send& y) { return hop_of(x).step < hop_of(y).step; });
    const auto expect = [&](const Flow::ChunkHop& hop) {
      ranks_[hop.from].send_lanes.Expect(BetweenNodes(hop));
    };
    for (const Send& send : sends) expect(hop_of(send));
    for (const Flow::ChunkHop& hop : c_.hops()) expect(hop);
    for (const Send& send : sends) AddSend(*send.input, send.hop);
    for (int hop = 0; hop < static_cast<int>(c_.hops().size()); ++hop) AddSendOfC(hop);
  }

  bool BetweenNodes(const Flow::ChunkHop& hop) const {
    return !topology_.SameNode(hop.from, hop.to);
  }

  void AddSend(Input& input, int index) {
    const Flow::ChunkHop& hop = input.flow.hops()[index];
    const PlacedChunk& arrival = input.arrivals[index];
    RankSteps& sender = ranks_[hop.from];
    const auto carries = sender.carriers.find({input.flow.operand(), hop.chunk});
    int carrier = carries == sender.carriers.end() ? -1 : carries->second;
    const int lane =
        carrier < 0 ? -1 : sender.carried_lanes.Take(carrier, sender.send_lanes.count());
    if (lane < 0) carrier = -1;
    Step step;
    step.lane =
        carrier < 0 ? sender.send_lanes.Next(BetweenNodes(hop)) : sender.send_lanes.end() + lane;
    step.waits = input.gates[index];
    step.signals.push_back(arrival.arrived);
    if (const int held = input.flow.ArrivalAt(hop.from, hop.chunk); held >= 0)
      AddRead(input, held, step, step);
    const Block& block = input.flow.chunks().list[hop.chunk].block;
    // A rank sends its own shard from where it lies, not from the copy in a contiguous operand.
    step.op =
        Transfer{block, PlaceOfChunk(input, hop.from, hop.chunk, block), {arrival.place}, carrier};
    sender.others.push_back(std::move(step));
  }

  void AddSendOfC(int index) {
    const Flow::ChunkHop& hop = c_.hops()[index];
    RankSteps& sender = ranks_[hop.from];
    const Block& block = c_.chunks().list[hop.chunk].block;
    Step step;
    step.lane = sender.send_lanes.Next(BetweenNodes(hop));
    const int held = c_.ArrivalAt(hop.from, hop.chunk), chunk = MakesWholeC() ? -1 : hop.chunk;
    step.waits = {{held < 0 ? sender.made.at(chunk) : c_arrived_[held], 0},
                  {Begun(hop.from, hop.to), 0}};
    step.signals = {c_arrived_[index]};
    const Place from =
        held < 0 ? PlaceOfC(hop.from, chunk, block) : ResidentPlace(problem_, block, hop.from);
    step.op = Transfer{block, from, {ResidentPlace(problem_, block, hop.to)}};
    // The next epoch's multiply may overwrite it once it has been read.
    if (from.buffer == kWorkspace) {
      step.signals.push_back(resources_.NewSlot(hop.from));
      const int first = sender.beside_shard.at(chunk).first;
      sender.computes[first].waits.push_back({step.signals.back(), 1});
    }
    sender.others.push_back(std::move(step));
    ranks_[hop.to].exit.waits.push_back({c_arrived_[index], 0});
  }

  // Arrivals that other ranks of the node read in place: a join tells them.
  void TellReaders(const Input& input) {
    std::map<int, Step> joins;  // by arrival
    for (const PlacedChunk& arrival : input.arrivals) {
      if (arrival.in_place && arrival.reads >= 0)
        joins[arrival.reads].signals.push_back(arrival.arrived);
    }
    for (auto& [arrival, join] : joins) {
      RankSteps& mine = ranks_[input.flow.hops()[arrival].to];
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
  const BuildOptions& options_;
  Resources resources_;
  Input a_, b_;
  const Flow& c_;
  std::vector<Slot> c_arrived_;  // by hop of C
  std::vector<RankSteps> ranks_;
};

}  // namespace

Schedule Build(const Problem& problem, const Topology& topology, const Work& work, const Flow& a,
               const Flow& b, const Flow& c, const BuildOptions& options) {
  return Builder(problem, topology, work, a, b, c, options).Run();
}

}  // namespace agmm
