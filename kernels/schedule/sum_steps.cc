#include "kernels/schedule/sum_steps.h"

#include <algorithm>
#include <cassert>
#include <iterator>
#include <utility>

#include "kernels/base/units.h"

namespace agmm {

Place SumSteps::NewPlace(Rank rank, int chunk, DType dtype) {
  const std::vector<Chunk>& chunks = sum_.movement.chunks().list;
  Range rows = chunks[chunk].block.rows, cols = chunks[chunk].block.cols;
  if (state_.options.places > 0) {
    for (const Chunk& other : chunks) {
      if (other.block.rows.size() > rows.size()) rows = other.block.rows;
      if (other.block.cols.size() > cols.size()) cols = other.block.cols;
    }
  }
  return state_.resources.Allocate(rank, rows.size(), cols.size(), dtype);
}

// The rank computes terms in the order of the steps in which it adds them up. It waits only for
// sums of earlier steps, so ranks never wait for each other in a cycle.
Place SumSteps::TakePlace(Rank rank, int chunk) {
  const int places = state_.options.places;
  if (places == 0) return NewPlace(rank, chunk, DType::kF32);
  const Movement& movement = sum_.movement;
  std::deque<int>& latest = latest_[rank];
  Place place;
  if (static_cast<int>(latest.size()) >= places &&
      movement.AddStepAt(rank, latest.front()) < movement.AddStepAt(rank, chunk)) {
    place = state_.ranks[rank].staging.at(latest.front()).place;
    next_[{rank, latest.front()}] = {chunk, 0};
    latest.pop_front();
  } else {
    place = NewPlace(rank, chunk, DType::kF32);
    first_[rank][place.offset_bytes] = chunk;
  }
  place.pitch_bytes = RoundUp(movement.chunks().list[chunk].block.cols.size() * SizeOf(DType::kF32),
                              kRowAlignBytes);
  latest.push_back(chunk);
  next_[{rank, chunk}] = {first_[rank].at(place.offset_bytes), 1};
  return place;
}

Place SumSteps::PlaceTerms(Rank rank, int chunk, const Block& block) {
  const Block whole =
      chunk >= 0 ? sum_.movement.chunks().list[chunk].block : state_.NeededAt(sum_, rank);
  RankSteps& mine = state_.ranks[rank];
  const auto at = mine.staging.find(chunk);
  if (at != mine.staging.end()) return PlaceWithin(whole, at->second.place, block);
  const Place place = chunk >= 0 ? TakePlace(rank, chunk)
                                 : state_.resources.Allocate(rank, whole.rows.size(),
                                                             whole.cols.size(), DType::kF32);
  mine.staging[chunk] = {place, static_cast<int>(mine.computes.size())};
  return PlaceWithin(whole, place, block);
}

Place SumSteps::PlaceSum(Rank rank, const Block& block) {
  if (state_.problem.Writes(block.operand) &&
      Intersect(ShardBlock(state_.problem, block.operand, rank), block) == block)
    return ResidentPlace(state_.problem, block, rank);
  std::optional<Place>& place = places_[rank];
  if (!place) place = state_.Allocate(rank, SummedAt(rank));
  return PlaceWithin(SummedAt(rank), *place, block);
}

SumSteps::Finish& SumSteps::FinishOf(Rank rank, int chunk) {
  const auto [at, added] = finishes_.try_emplace({rank, chunk});
  if (added) at->second.slot = state_.resources.NewSlot(rank);
  return at->second;
}

void SumSteps::Await(Rank rank, const Block& block, Step& step) {
  for (const int chunk : sum_.movement.ChunksOf(block))
    step.waits.push_back({FinishOf(rank, chunk).slot, 0});
}

void SumSteps::FinishAfter(Rank rank, const Block& block, const Slot& read) {
  for (const int chunk : sum_.movement.ChunksOf(block)) FinishOf(rank, chunk).after.push_back(read);
}

void SumSteps::AddCredits() {
  for (const auto& [at, finish] : finishes_) {
    assert(finish.step >= 0);
    for (const Slot& read : finish.after)
      state_.ranks[at.first].others[finish.step].waits.push_back({read, 1});
  }
}

std::vector<SumSteps::Part> SumSteps::Parts() const {
  const Movement& movement = sum_.movement;
  std::vector<Part> parts;
  for (int hop = 0; hop < static_cast<int>(movement.hops().size()); ++hop) {
    const Movement::ChunkHop& way = movement.hops()[hop];
    if (movement.everywhere() && !way.in_place)
      parts.push_back({way.step, way.chunk, way.from, hop});
  }
  const auto add = [&](int chunk, Rank rank) {
    const int leaving = movement.LeavingFrom(rank, chunk);
    if (leaving >= 0 && sum_.arrivals[leaving].in_place) return;
    parts.push_back({movement.AddStepAt(rank, chunk), chunk, rank});
  };
  for (int chunk = 0; chunk < static_cast<int>(movement.chunks().list.size()); ++chunk) {
    for (const Source& source : movement.chunks().list[chunk].sources) {
      add(chunk, source.rank);
      if (movement.everywhere()) continue;
      for (Rank rank : source.needers) add(chunk, rank);
    }
  }
  return parts;
}

std::pair<int, int> SumSteps::FinishedAt(Rank rank, const Block& block) const {
  std::pair<int, int> last;
  for (const int chunk : ChunksOf(block))
    last = std::max(last, {sum_.movement.AddStepAt(rank, chunk), chunk});
  return last;
}

SumSteps::Term SumSteps::HeldTerm(Rank rank, Rank from, int chunk, const Slot& ready,
                                  const Slot& used) {
  const Block& block = sum_.movement.chunks().list[chunk].block;
  if (sum_.is_made()) {
    // A multiply may overwrite the terms of `from` only after they have been used.
    const int made = state_.MakesWhole(sum_) ? -1 : chunk;
    Term term = {from, PlaceTerms(from, made, block), ready, used};
    RankSteps& its = state_.ranks[from];
    const auto at = next_.find({from, made});
    const Next next = at == next_.end() ? Next{made, 1} : at->second;
    its.computes[its.staging.at(next.chunk).first].waits.push_back({used, next.lag});
    return term;
  }
  if (rank == from) return {from, state_.SourcePlace(block, from), {}, {}};
  state_.ranks[from].exit.waits.push_back({used, 0});
  return {from, state_.SourcePlace(block, from), state_.Begun(rank, from), used};
}

// A rank first adds its own terms and the ones that it reads in place, in the order of their ranks,
// up to kMostTerms - 1 in a step, and then each one that it has received, in the same order. If it
// reads none in place, its own terms have their place among the received ones. So a sum in which
// every rank sends its terms to the one that sums has the same bits whichever rank that is.
SumSteps::Addends SumSteps::AddendsOf(Rank rank, int chunk) {
  const Movement& movement = sum_.movement;
  std::vector<Term> loaded, received;
  for (const int hop : movement.TermsAt(rank, chunk)) {
    const PlacedChunk& arrival = sum_.arrivals[hop];
    const Rank from = movement.hops()[hop].from;
    if (arrival.in_place) {
      loaded.push_back(HeldTerm(rank, from, chunk, arrival.arrived, arrival.credits.front()));
    } else {
      received.push_back({from, arrival.place, arrival.arrived, arrival.credits.front()});
    }
  }
  const bool made = sum_.is_made();
  const int made_chunk = state_.MakesWhole(sum_) ? -1 : chunk;
  Term own = HeldTerm(rank, rank, chunk, made ? state_.ranks[rank].made.at(made_chunk) : Slot{},
                      made ? state_.resources.NewSlot(rank) : Slot{});
  const auto by_rank = [](const Term& x, const Term& y) { return x.from < y.from; };
  Addends addends;
  (loaded.empty() ? received : loaded).push_back(own);
  std::sort(loaded.begin(), loaded.end(), by_rank);
  std::sort(received.begin(), received.end(), by_rank);
  for (size_t i = 0; i < loaded.size(); ++i) {
    // The sum of the batches so far is one more term.
    if (i % (kMostTerms - 1) == 0) addends.batches.emplace_back();
    addends.batches.back().push_back(loaded[i]);
  }
  // If each rank sums everywhere, others read its own terms as they are.
  const auto grows = [&](const Term& term) {
    return term.place.buffer == kWorkspace && term.place.dtype == DType::kF32 &&
           !(movement.everywhere() && term.from == rank);
  };
  // If no term that has arrived can grow, the first two make the sum that grows.
  const bool arrives_narrow = sum_.movement.terms_dtype() != DType::kF32;
  for (const Term& term : received) {
    const bool second = arrives_narrow && loaded.empty() && addends.batches.size() == 1 &&
                        addends.batches.front().size() == 1;
    if (second) {
      addends.batches.front().push_back(term);
    } else if (!arrives_narrow && !addends.base && loaded.empty() && grows(term)) {
      addends.base = term;
    } else {
      addends.batches.push_back({term});
    }
  }
  return addends;
}

void SumSteps::SendTerms(int hop) {
  const Movement::ChunkHop& way = sum_.movement.hops()[hop];
  RankSteps& mine = state_.ranks[way.from];
  const bool made = sum_.is_made();
  const int made_chunk = state_.MakesWhole(sum_) ? -1 : way.chunk;
  const Term term =
      HeldTerm(way.from, way.from, way.chunk, made ? mine.made.at(made_chunk) : Slot{},
               made ? state_.resources.NewSlot(way.from) : Slot{});
  Step step{
      Transfer{
          sum_.movement.chunks().list[way.chunk].block, term.place, {sum_.arrivals[hop].place}},
      mine.send_lanes.Next(state_.BetweenNodes(way)),
      sum_.gates[hop],
      {sum_.arrivals[hop].arrived}};
  if (term.ready) step.waits.push_back({*term.ready, 0});
  if (term.used) step.signals.push_back(*term.used);
  mine.others.push_back(std::move(step));
}

void SumSteps::AddSum(Rank rank, int chunk) {
  const Movement& movement = sum_.movement;
  RankSteps& mine = state_.ranks[rank];
  const Block& block = movement.chunks().list[chunk].block;
  const int leaving = movement.LeavingFrom(rank, chunk);
  const int last_hop = leaving >= 0 ? leaving : movement.TermsAt(rank, chunk).back();
  const int lane = mine.send_lanes.Next(state_.BetweenNodes(movement.hops()[last_hop]));
  Addends addends = AddendsOf(rank, chunk);
  std::optional<Term>& base = addends.base;
  // Terms that a rank only sends on need no sum if they have the dtype in which they travel.
  if (leaving >= 0 && !base && addends.batches.size() == 1 && addends.batches.front().size() == 1 &&
      addends.batches.front().front().place.dtype == movement.terms_dtype()) {
    base = addends.batches.front().front();
    addends.batches.clear();
  }
  // The steps of a lane can share a place, because they run in order.
  const auto scratch = [&](DType dtype) {
    if (state_.options.places == 0) return NewPlace(rank, chunk, dtype);
    const auto [at, added] = scratch_.try_emplace({rank, lane, dtype});
    if (added) at->second = NewPlace(rank, chunk, dtype);
    Place place = at->second;
    place.pitch_bytes = RoundUp(block.cols.size() * SizeOf(dtype), kRowAlignBytes);
    return place;
  };
  std::optional<Place> acc;
  if (base) acc = base->place;
  std::vector<Step> steps;
  for (const std::vector<Term>& batch : addends.batches) {
    Step step{Reduce{block, {}, acc, {}, acc.has_value()}, lane};
    auto& reduce = std::get<Reduce>(step.op);
    for (const Term& term : batch) {
      reduce.from.push_back(term.place);
      if (term.ready) step.waits.push_back({*term.ready, 0});
      if (term.used) step.signals.push_back(*term.used);
    }
    const bool last = &batch == &addends.batches.back();
    reduce.finish = leaving < 0 && last;
    if (reduce.finish) {
      reduce.out = PlaceSum(rank, block);
    } else if (last && movement.terms_dtype() != DType::kF32) {
      // The sum leaves rounded, once.
      if (acc) reduce.from.insert(reduce.from.begin(), *acc);
      reduce.accumulate = false;
      acc = reduce.acc = scratch(movement.terms_dtype());
    } else if (!acc) {
      acc = reduce.acc = scratch(DType::kF32);
    }
    steps.push_back(std::move(step));
  }
  if (leaving >= 0) {
    const PlacedChunk& arrival = sum_.arrivals[leaving];
    steps.push_back({Transfer{block, *acc, {arrival.place}}, lane, sum_.gates[leaving]});
    steps.back().signals.push_back(arrival.arrived);
  } else {
    Finish& finish = FinishOf(rank, chunk);
    steps.back().signals.push_back(finish.slot);
    finish.step = static_cast<int>(mine.others.size() + steps.size()) - 1;
  }
  if (base && base->ready) steps.front().waits.push_back({*base->ready, 0});
  if (base && base->used) steps.back().signals.push_back(*base->used);
  std::move(steps.begin(), steps.end(), std::back_inserter(mine.others));
}

}  // namespace agmm
