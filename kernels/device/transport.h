// Messages between the executors of one plan on different nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "kernels/device/rows.h"
#include "kernels/schedule/schedule.h"

namespace agmm {

// Names one signal of one step in one epoch. The receiver finds the destination of the bytes, their
// number, and the slot to raise in its own copy of the schedule: no address is sent.
struct Message {
  uint64_t plan = 0;
  uint64_t epoch = 0;
  Rank source = 0;  // rank of the plan's mesh whose step this is
  int step = 0;     // index into Schedule::ranks[source]
  int part = 0;     // index into Step::signals, and into Transfer::to while that is shorter
  // If true, the bytes are sent at once and kept at the receiver until it wants them. Otherwise the
  // bytes of a large message are sent when the receiver asks for them. Not on the wire.
  bool push = false;
};

// The destination of an accepted message's bytes, and the slot that they set. The transport writes
// to `to` and returns the other fields unread.
struct Arrival {
  Rows to;                     // rows 0: a signal alone
  Slot slot;                   // raised to the message's epoch once the bytes are in place
  std::shared_ptr<void> plan;  // the receiver's own plan, alive until the message has arrived
};

// Sends to other nodes. Thread-safe.
class Transport {
 public:
  virtual ~Transport() = default;
  // Sends `message` and the bytes of `from` (rows 0: the signal alone) to `node`. Never blocks.
  // `done` runs exactly once, on any thread, when `from` may be overwritten: with OK, or with the
  // reason why the bytes were not sent. The receiver sets the slot after the last byte is in place.
  // A failed peer fails the message, never the process.
  virtual void Send(int node, const Message& message, Rows from,
                    std::function<void(absl::Status)> done) = 0;
};

// The receiving end, which knows the plans. Called on the transport's progress thread; must not
// block.
class Receiver {
 public:
  enum class Verdict {
    kReceive,  // `arrival` is set: write the bytes to `arrival->to`, then call Arrived
    kPark,     // keep the message and offer it again on request, or report it with Lost
    kDrop,     // stale or wrong: count the message and drop it
  };
  virtual ~Receiver() = default;
  // `from_node` sent `message`, followed by `bytes` bytes.
  virtual Verdict Accept(int from_node, const Message& message, int64_t bytes,
                         Arrival* arrival) = 0;
  // Called when a message that should have been parked was discarded for lack of room, for the
  // reason `why`.
  virtual void Lost(int from_node, const Message& message, const absl::Status& why) = 0;
  // Called once for each `arrival`: the bytes of an accepted message are in place, or the receive
  // failed.
  virtual void Arrived(int from_node, const Message& message, const Arrival& arrival,
                       const absl::Status& status) = 0;
};

}  // namespace agmm
