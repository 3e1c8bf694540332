#include "kernels/schedule/sum_steps.h"

#include <algorithm>
#include <iterator>
#include <utility>

namespace agmm {

Place SumSteps::PlaceTerms(Rank rank, int chunk, const Block& block) {
  const Block whole =
      chunk >= 0 ? sum_.movement.chunks().list[chunk].block : state_.NeededAt(sum_, rank);
  RankSteps& mine = state_.ranks[rank];
  const auto [at, added] = mine.staging.try_emplace(chunk);
  if (added) {
    at->second = {
        state_.resources.Allocate(rank, whole.rows.size(), whole.cols.size(), DType::kF32),
        static_cast<int>(mine.computes.size())};
  }
  return PlaceWithin(whole, at->second.place, block);
}

Place SumSteps::PlaceSum(Rank rank, const Block& chunk) {
  if (Intersect(ShardBlock(state_.problem, chunk.operand, rank), chunk) == chunk)
    return ResidentPlace(state_.problem, chunk, rank);
  const Block& whole = sum_.movement.summed_at(rank);
  std::optional<Place>& sum = state_.ranks[rank].sum;
  if (!sum) sum = state_.Allocate(rank, whole);
  return PlaceWithin(whole, *sum, chunk);
}

void SumSteps::Add() {
  struct Part {
    int step;
    int chunk;
    Rank rank;
  };
  const Movement& movement = sum_.movement;
  std::vector<Part> parts;
  const auto add = [&](int chunk, Rank rank) {
    const int leaving = movement.LeavingFrom(rank, chunk);
    if (leaving >= 0 && sum_.arrivals[leaving].in_place) return;
    const int step = leaving >= 0 ? movement.hops()[leaving].step
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

SumSteps::Term SumSteps::HeldTerm(Rank rank, Rank from, int chunk, const Slot& ready,
                                  const Slot& used) {
  const Block& block = sum_.movement.chunks().list[chunk].block;
  if (sum_.is_made()) {
    // The next epoch's multiply may overwrite the terms of `from` only after they have been used.
    const int made = state_.MakesWhole(sum_) ? -1 : chunk;
    Term term = {from, PlaceTerms(from, made, block), ready, used};
    RankSteps& its = state_.ranks[from];
    its.computes[its.staging.at(made).first].waits.push_back({used, 1});
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
  const auto grows = [](const Term& term) {
    return term.place.buffer == kWorkspace && term.place.dtype == DType::kF32;
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
  const auto scratch = [&](DType dtype) {
    return state_.resources.Allocate(rank, block.rows.size(), block.cols.size(), dtype);
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
    steps.back().signals.push_back(state_.resources.NewSlot(rank));
    mine.finished[chunk] = {steps.back().signals.back(),
                            static_cast<int>(mine.others.size() + steps.size()) - 1};
  }
  if (base && base->ready) steps.front().waits.push_back({*base->ready, 0});
  if (base && base->used) steps.back().signals.push_back(*base->used);
  std::move(steps.begin(), steps.end(), std::back_inserter(mine.others));
}

}  // namespace agmm
