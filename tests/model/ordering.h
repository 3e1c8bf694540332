// Which operation is before which, as streams, event waits and the host say.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/races.h"

namespace model {

// A point of a stream, and what is before it: what a recording of an event keeps.
struct Captured {
  int stream = 0;
  uint64_t count = 0;  // of the stream's operations with accesses, at the point
  std::string name;    // of the operation that captured it
  Clock clock;
};

// A wait for an event.
struct EventWait {
  int64_t number = 0;  // of those that leaves_out was called for, from 1
  int stream = 0;
  uint64_t count = 0;  // of the stream's operations with accesses, before the wait
  std::shared_ptr<const Captured> awaited;
  // The stream has the order neither from elsewhere nor from the waits beside this one.
  bool adds_order = false;
};

// Copies are independent. Not thread-safe: under the model's lock. Streams are numbered from 0.
class Ordering {
 public:
  // The stream with this number is a new one from now on.
  void BeginStream(int stream);
  // The next operation of `stream`, which is a wait for `awaited` unless that is null. Returns a
  // race that it is in, or "".
  [[nodiscard]] std::string Add(int stream, const std::string& name,
                                const std::vector<Access>& accesses,
                                std::shared_ptr<const Captured> awaited);
  // All that is in the stream, and before it.
  void Capture(int stream, Captured& into);
  // Every operation that is added later, to any stream, is behind what was captured.
  void HostSaw(const Captured& captured);
  bool HostHasSeenAll(int stream) const;
  // The number of the stream's operations so far that touch memory.
  uint64_t operations(int stream) const;
  // The clock of the stream's last operation that touches memory: that operation, and all
  // operations before it. Valid right after Add.
  const Clock& clock(int stream) const { return streams_[stream].clock; }
  // The name of an operation on these bytes that the host has not seen the end of, or "".
  std::string Unseen(const Rectangle& bytes) const { return races_.Unseen(bytes, host_); }
  void Forget(uint64_t address, int64_t bytes) { races_.Forget(address, bytes); }
  void ForgetStream(int stream) { races_.ForgetStream(stream); }

  // The number of waits so far that added an order.
  int64_t ordering_waits() const { return ordering_waits_; }
  // Called for each wait: whether to leave it out.
  std::function<bool(const EventWait& wait)> leaves_out;

 private:
  struct Stream {
    Clock clock;
    std::vector<std::shared_ptr<const Captured>> awaited;  // not in the clock yet
    uint64_t operations = 0;
  };
  // Takes into the stream's clock what is before its next operation.
  Stream& Joined(int stream);

  std::vector<Stream> streams_;  // by number
  Clock host_;
  Races races_;
  int64_t ordering_waits_ = 0, waits_ = 0;
};

}  // namespace model
