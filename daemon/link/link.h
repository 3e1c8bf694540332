// The two ends of a member's stream, over the network or in one process.
#pragma once

#include "agmm/v1/peer.pb.h"

namespace agmm {

// The sequencer's end. Thread-safe; nothing blocks.
class MemberLink {
 public:
  virtual ~MemberLink() = default;
  // Queues `message`, which may be merged with others of its generation. Drops it if the stream has
  // ended.
  virtual void Send(v1::SequencerMessage message) = 0;
  // Sends the last message and ends the stream after it.
  virtual void Refuse(v1::Refusal refusal) = 0;
  // Ends the stream at once.
  virtual void Close() = 0;
};

// The member's end. Thread-safe; nothing blocks.
class SequencerLink {
 public:
  virtual ~SequencerLink() = default;
  virtual void Send(v1::MemberMessage message) = 0;
};

}  // namespace agmm
