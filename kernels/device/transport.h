// Messages between the executors of one plan on different nodes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "kernels/schedule/topology.h"

namespace agmm {

// Names one signal of one step in one epoch. Where its bytes go, how many they are, and which slot
// they set, the receiver reads in its own copy of the schedule; nothing on the wire says where to
// write.
struct Message {
  uint64_t plan = 0;
  uint64_t epoch = 0;
  Rank source = 0;  // rank of the plan's mesh whose step this is
  int step = 0;     // index into Schedule::ranks[source]
  int part = 0;     // index into Step::signals, and into Transfer::to while that is shorter
  // The bytes are to go at once, and to be kept where nobody waits for them yet; large ones
  // otherwise go when the receiver asks for them. Not on the wire.
  bool push = false;
};

// Rows of memory on the host, `pitch_bytes` apart. rows == 0: no bytes.
struct Rows {
  std::byte* data = nullptr;
  int64_t rows = 0, row_bytes = 0, pitch_bytes = 0;
  // The bytes between two rows are padding, not columns of a wider block: they may travel along and
  // may be overwritten, which spares a copy at either end.
  bool padded = false;
  int64_t bytes() const { return rows * row_bytes; }
};

// Sends to other nodes. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  // Sends `message` and the bytes of `from` (rows 0: the signal alone) to `node`. Never blocks.
  // `done` runs exactly once, on any thread, when `from` may be overwritten: OK, or why the bytes
  // did not go. The receiver sets the slot after the last byte is in place. A failed peer fails the
  // message, never the process.
  virtual void Send(int node, const Message& message, Rows from,
                    std::function<void(absl::Status)> done) = 0;
};

// The receiving end: knows the plans. Called from the transport's progress thread; must not block.
class Receiver {
 public:
  enum class Verdict {
    kReceive,  // `to` is set: put the bytes there, then call Arrived
    kPark,     // keep the message, and offer it again after Transport wakes for it; or lose it, and
               // say so
    kDrop,     // stale or wrong: count it and forget it
  };
  virtual ~Receiver() = default;
  // `from_node` sent `message` with `bytes` bytes behind it.
  virtual Verdict Accept(int from_node, const Message& message, int64_t bytes, Rows* to) = 0;
  // A message that was to be parked is gone, for `why`: there was no room for it.
  virtual void Lost(int from_node, const Message& message, const absl::Status& why) = 0;
  // The bytes of an accepted message are in place, or the receive failed. Exactly once each.
  virtual void Arrived(int from_node, const Message& message, const absl::Status& status) = 0;
};

}  // namespace agmm
