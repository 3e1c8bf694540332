#include "tests/model/history.h"

#include <map>
#include <utility>

#include "tests/model/options.h"

namespace model {

void History::Write(Event event) {
  if (recording()) events_.push_back(std::move(event));
}

void History::BeginStream(int stream) {
  Write({.kind = Event::Kind::kBegin, .stream = stream});
  now_.BeginStream(stream);
}

std::string History::Add(int stream, const std::string& name, const std::vector<Access>& accesses,
                         std::shared_ptr<const Captured> awaited) {
  Write({Event::Kind::kAdd, stream, name, accesses, awaited});
  return now_.Add(stream, name, accesses, std::move(awaited));
}

std::shared_ptr<const Captured> History::Capture(int stream, const std::string& name) {
  const auto captured = std::make_shared<Captured>();
  captured->name = name;
  now_.Capture(stream, *captured);
  Write({.kind = Event::Kind::kCapture, .stream = stream, .captured = captured});
  return captured;
}

void History::HostSaw(std::shared_ptr<const Captured> captured) {
  now_.HostSaw(*captured);
  Write({.kind = Event::Kind::kHostSaw, .captured = std::move(captured)});
}

void History::Forget(uint64_t address, int64_t bytes) {
  Write({.kind = Event::Kind::kForget, .accesses = {{{address, 1, bytes, bytes}, true}}});
  now_.Forget(address, bytes);
}

void History::ForgetStream(int stream) {
  Write({.kind = Event::Kind::kForgetStream, .stream = stream});
  now_.ForgetStream(stream);
}

void History::Record() {
  start_ = now_;
  start_.leaves_out = nullptr;
  events_.clear();
  recording_ = true;
}

std::vector<agmmModelWait> History::Waits() {
  if (!recording()) Fail("agmmModelWaits without agmmModelRecord");
  recording_ = false;
  clocks_.clear();
  adds_order_.clear();
  std::vector<agmmModelWait> waits;
  const auto place = [&](int stream, uint64_t count) -> agmmModelPlace {
    const uint64_t before = start_.operations(stream);
    return {stream, static_cast<long long>(count - before),
            static_cast<long long>(now_.operations(stream) - before)};
  };
  const std::string race = Replay(
      [&](const EventWait& wait) {
        waits.push_back(
            {place(wait.stream, wait.count), place(wait.awaited->stream, wait.awaited->count)});
        adds_order_.push_back(wait.adds_order);
        return false;
      },
      [&](const Clock& clock) { clocks_.push_back(clock); });
  if (!race.empty()) Fail("the history, played again, has a race that was not there: " + race);
  return waits;
}

agmmModelLoss History::Without(int wait) const {
  if (!adds_order_.at(wait)) return kLosesNothing;
  size_t operation = 0;
  bool loses_order = false;
  const std::string race =
      Replay([&](const EventWait& at) { return at.number == wait + 1; },
             [&](const Clock& clock) { loses_order |= clock != clocks_[operation++]; });
  if (!race.empty()) return kLosesToARace;
  return loses_order ? kLosesOrder : kLosesNothing;
}

std::string History::Replay(std::function<bool(const EventWait&)> leaves_out,
                            const std::function<void(const Clock&)>& added) const {
  Ordering ordering = start_;
  ordering.leaves_out = std::move(leaves_out);
  // Without the wait, later recordings of events stand for less; these replace the original ones.
  std::map<const Captured*, std::shared_ptr<const Captured>> captured;
  const auto now = [&](const std::shared_ptr<const Captured>& then) {
    const auto found = captured.find(then.get());
    return found == captured.end() ? then : found->second;
  };
  for (const Event& event : events_) {
    switch (event.kind) {
      case Event::Kind::kBegin: ordering.BeginStream(event.stream); break;
      case Event::Kind::kAdd:
        if (std::string race =
                ordering.Add(event.stream, event.name, event.accesses, now(event.captured));
            !race.empty()) {
          return race;
        }
        if (!event.accesses.empty()) added(ordering.clock(event.stream));
        break;
      case Event::Kind::kCapture: {
        const auto again = std::make_shared<Captured>(*event.captured);
        ordering.Capture(event.stream, *again);
        captured[event.captured.get()] = again;
        break;
      }
      case Event::Kind::kHostSaw: ordering.HostSaw(*now(event.captured)); break;
      case Event::Kind::kForget:
        ordering.Forget(event.accesses[0].bytes.address, event.accesses[0].bytes.row_bytes);
        break;
      case Event::Kind::kForgetStream: ordering.ForgetStream(event.stream); break;
    }
  }
  return "";
}

}  // namespace model
