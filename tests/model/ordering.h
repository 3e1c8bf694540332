// The order of operations that follows from streams, event waits and the host.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/races.h"

namespace model {

// A point of a stream and the operations before it, as kept by a recording of an event.
struct Captured {
  int stream = 0;
  uint64_t count = 0;  // of the stream's operations with accesses, at the point
  std::string name;    // of the operation that captured it
  Clock clock;
};

// A wait for an event.
struct EventWait {
  int64_t number = 0;  // among the waits for which leaves_out was called, from 1
  int stream = 0;
  uint64_t count = 0;  // of the stream's operations with accesses, before the wait
  std::shared_ptr<const Captured> awaited;
  // The order follows neither from other sources nor from adjacent waits.
  bool adds_order = false;
};

// Copies are independent. Not thread-safe: used under the model's lock. Streams are numbered from
// 0.
class Ordering {
 public:
  // From now on, this number stands for a new stream.
  void BeginStream(int stream);
  // Adds the next operation of `stream`, which is a wait for `awaited` unless that is null. Returns
  // a race that involves it, or "".
  [[nodiscard]] std::string Add(int stream, const std::string& name,
                                const std::vector<Access>& accesses,
                                std::shared_ptr<const Captured> awaited);
  // Captures all operations in the stream and before it.
  void Capture(int stream, Captured& into);
  // Orders every operation that is added later, to any stream, after the captured ones.
  void HostSaw(const Captured& captured);
  bool HostHasSeenAll(int stream) const;
  // Returns the number of the stream's operations so far that touch memory.
  uint64_t operations(int stream) const;
  // Returns the clock of the stream's last operation that touches memory: that operation, and all
  // operations before it. Valid right after Add.
  const Clock& clock(int stream) const { return streams_[stream].clock; }
  // Returns the name of an operation on these bytes whose end the host has not seen, or "".
  std::string Unseen(const Rectangle& bytes) const { return races_.Unseen(bytes, host_); }
  void Forget(uint64_t address, int64_t bytes) { races_.Forget(address, bytes); }
  void ForgetStream(int stream) { races_.ForgetStream(stream); }

  // Returns the number of waits so far that added an order.
  int64_t ordering_waits() const { return ordering_waits_; }
  // Called for each wait; returns true to leave it out.
  std::function<bool(const EventWait& wait)> leaves_out;

 private:
  struct Stream {
    Clock clock;
    std::vector<std::shared_ptr<const Captured>> awaited;  // not in the clock yet
    uint64_t operations = 0;
  };
  // Adds the operations before the stream's next one to the stream's clock.
  Stream& Joined(int stream);

  std::vector<Stream> streams_;  // by number
  Clock host_;
  Races races_;
  int64_t ordering_waits_ = 0, waits_ = 0;
};

}  // namespace model
