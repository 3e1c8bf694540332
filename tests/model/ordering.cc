#include "tests/model/ordering.h"

#include <algorithm>
#include <utility>

namespace model {

void Ordering::BeginStream(int stream) {
  streams_.resize(std::max<size_t>(streams_.size(), stream + 1));
  // The count continues, because the clocks of others may contain the earlier stream.
  streams_[stream] = {.operations = streams_[stream].operations};
}

std::string Ordering::Add(int number, const std::string& name, const std::vector<Access>& accesses,
                          std::shared_ptr<const Captured> awaited) {
  // Consecutive waits take effect together, with the next operation.
  Stream& stream = awaited ? streams_[number] : Joined(number);
  if (awaited) stream.awaited.push_back(std::move(awaited));
  // Only operations that touch memory can race, so the others need not be distinguished.
  if (accesses.empty()) return "";
  ++stream.operations;
  stream.clock.resize(std::max<size_t>(stream.clock.size(), number + 1));
  stream.clock[number] = stream.operations;
  return races_.Add({number, stream.operations, name}, stream.clock, host_, accesses);
}

void Ordering::Capture(int number, Captured& into) {
  const Stream& stream = Joined(number);
  into.stream = number;
  into.count = stream.operations;
  into.clock = stream.clock;
}

void Ordering::HostSaw(const Captured& captured) { Join(host_, captured.clock); }

bool Ordering::HostHasSeenAll(int stream) const {
  const uint64_t count = operations(stream);
  return count == 0 || Covers(host_, stream, count);
}

uint64_t Ordering::operations(int stream) const {
  return stream < static_cast<int>(streams_.size()) ? streams_[stream].operations : 0;
}

Ordering::Stream& Ordering::Joined(int number) {
  Stream& stream = streams_[number];
  Join(stream.clock, host_);
  const auto awaited = std::move(stream.awaited);
  stream.awaited.clear();
  const Clock before = stream.clock;
  for (size_t i = 0; i < awaited.size(); ++i) {
    Clock others = before;
    for (size_t j = 0; j < awaited.size(); ++j) {
      if (j != i) Join(others, awaited[j]->clock);
    }
    Clock all = others;
    Join(all, awaited[i]->clock);
    const bool adds_order = all != others;
    if (adds_order) ++ordering_waits_;
    if (leaves_out && leaves_out({++waits_, number, stream.operations, awaited[i], adds_order}))
      continue;
    Join(stream.clock, awaited[i]->clock);
  }
  return stream;
}

}  // namespace model
