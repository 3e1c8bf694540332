#include "tests/schedule/mutants.h"

#include <utility>

#include "absl/strings/str_format.h"

namespace agmm::test {
namespace {

void DropStep(std::vector<Step>& steps, int index) {
  steps.erase(steps.begin() + index);
  for (Step& step : steps) {
    auto* transfer = std::get_if<Transfer>(&step.op);
    if (transfer == nullptr || transfer->carrier < index) continue;
    transfer->carrier = transfer->carrier == index ? -1 : transfer->carrier - 1;
  }
}

template <typename Use>
void ForEachStep(const Schedule& schedule, Use use) {
  for (Rank r = 0; r < static_cast<int>(schedule.ranks.size()); ++r) {
    for (int s = 0; s < static_cast<int>(schedule.ranks[r].size()); ++s) {
      use(r, s, schedule.ranks[r][s], absl::StrFormat("rank %d step %d", r, s));
    }
  }
}

std::string WaitName(const std::string& where, int index, const Wait& wait) {
  return absl::StrFormat("%s wait %d (%d:%d lag %d)", where, index, wait.slot.rank, wait.slot.index,
                         wait.lag);
}

// A step's waits, its signals and the step itself.
int PartsOf(const Step& step) {
  return static_cast<int>(step.waits.size() + step.signals.size()) + 1;
}

Mutant WithoutPart(const Schedule& schedule, Rank r, int s, int part) {
  Mutant mutant = {absl::StrFormat("no rank %d step %d", r, s), schedule};
  std::vector<Step>& steps = mutant.schedule.ranks[r];
  std::vector<Wait>& waits = steps[s].waits;
  std::vector<Slot>& signals = steps[s].signals;
  const int signal = part - static_cast<int>(waits.size());
  if (signal < 0) {
    mutant.name = "no " + WaitName(absl::StrFormat("rank %d step %d", r, s), part, waits[part]);
    waits.erase(waits.begin() + part);
  } else if (signal < static_cast<int>(signals.size())) {
    absl::StrAppendFormat(&mutant.name, " signal %d", signal);
    signals.erase(signals.begin() + signal);
  } else {
    DropStep(steps, s);
  }
  return mutant;
}

// The workspace places of a step.
std::vector<Place*> WorkspacePlaces(Step& step) {
  std::vector<Place*> places, out;
  if (auto* transfer = std::get_if<Transfer>(&step.op)) {
    places.push_back(&transfer->from);
    for (Place& to : transfer->to) places.push_back(&to);
  } else if (auto* multiply = std::get_if<Multiply>(&step.op)) {
    places = {&multiply->a_place, &multiply->b_place, &multiply->out};
    if (multiply->acc) places.push_back(&*multiply->acc);
  } else if (auto* reduce = std::get_if<Reduce>(&step.op)) {
    for (Place& from : reduce->from) places.push_back(&from);
    if (reduce->acc) places.push_back(&*reduce->acc);
    places.push_back(&reduce->out);
  }
  for (Place* place : places) {
    if (place->buffer == kWorkspace && place->pitch_bytes > 0) out.push_back(place);
  }
  return out;
}

}  // namespace

std::vector<Mutant> WithOneLess(const Schedule& schedule) {
  std::vector<Mutant> mutants;
  ForEachStep(schedule, [&](Rank r, int s, const Step& step, const std::string&) {
    for (int part = 0; part < PartsOf(step); ++part)
      mutants.push_back(WithoutPart(schedule, r, s, part));
  });
  return mutants;
}

Mutant WithOneLess(const Schedule& schedule, std::mt19937_64& random) {
  while (true) {
    const Rank r = static_cast<Rank>(random() % schedule.ranks.size());
    const std::vector<Step>& steps = schedule.ranks[r];
    if (steps.empty()) continue;
    const int s = static_cast<int>(random() % steps.size());
    return WithoutPart(schedule, r, s, static_cast<int>(random() % PartsOf(steps[s])));
  }
}

std::vector<Mutant> WithAnotherLag(const Schedule& schedule) {
  std::vector<Mutant> mutants;
  ForEachStep(schedule, [&](Rank r, int s, const Step& step, const std::string& where) {
    for (int i = 0; i < static_cast<int>(step.waits.size()); ++i) {
      mutants.push_back({"other lag, " + WaitName(where, i, step.waits[i]), schedule});
      int& lag = mutants.back().schedule.ranks[r][s].waits[i].lag;
      lag = 1 - lag;
    }
  });
  return mutants;
}

Mutant Mistaken(const Schedule& schedule, std::mt19937_64& random) {
  Mutant mutant = {"", schedule};
  while (true) {
    const Rank r = static_cast<int>(random() % schedule.ranks.size());
    std::vector<Step>& steps = mutant.schedule.ranks[r];
    if (steps.empty()) continue;
    const int s = static_cast<int>(random() % steps.size());
    Step& step = steps[s];
    const std::string where = absl::StrFormat("rank %d step %d", r, s);
    switch (random() % 5) {
      case 0: return WithOneLess(schedule, random);
      case 1: {
        const int slots = SlotCounts(schedule)[r];
        if (step.waits.empty()) continue;
        Wait& wait = step.waits[random() % step.waits.size()];
        wait.slot.index = static_cast<int>(random() % slots);
        return {where + " waits for another slot", mutant.schedule};
      }
      case 2: {
        const int other = static_cast<int>(random() % steps.size());
        if (other == s) continue;
        std::swap(steps[s], steps[other]);
        return {absl::StrFormat("%s swapped with %d", where, other), mutant.schedule};
      }
      case 3:
        step.lane = step.lane == 0 ? 1 : 0;
        return {where + " on another lane", mutant.schedule};
      default: {
        const std::vector<Place*> places = WorkspacePlaces(step);
        if (places.empty()) continue;
        Place& place = *places[random() % places.size()];
        if (place.offset_bytes < kRowAlignBytes) continue;
        place.offset_bytes -= kRowAlignBytes * (1 + static_cast<int64_t>(random() % 4));
        if (place.offset_bytes < 0) place.offset_bytes = 0;
        return {where + " with a place shifted", mutant.schedule};
      }
    }
  }
}

}  // namespace agmm::test
