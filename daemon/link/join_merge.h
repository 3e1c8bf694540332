// Merges messages of a Join call that wait for the stream, so that a burst travels in few messages.
#pragma once

#include "agmm/v1/peer.pb.h"

namespace agmm {

inline bool TravelsAlone(const v1::SequencerMessage& message) {
  // The member ignores all other fields of handshake messages.
  return message.has_refusal() || !message.challenge().empty() || !message.proof().empty();
}
inline bool TravelsAlone(const v1::MemberMessage& message) { return message.has_hello(); }
inline auto* ItemsOf(v1::SequencerMessage* message) { return message->mutable_commands(); }
inline auto* ItemsOf(v1::MemberMessage* message) { return message->mutable_reports(); }

// Appends `message` to `last`. Returns false if they must travel separately, because items are
// valid only in their own generation.
template <typename Message>
bool MergeInto(Message* last, Message* message) {
  if (TravelsAlone(*last) || TravelsAlone(*message)) return false;
  auto &into = *ItemsOf(last), &from = *ItemsOf(message);
  if (!into.empty() && !from.empty() && last->generation() != message->generation()) return false;
  if (!from.empty()) last->set_generation(message->generation());
  for (auto& item : from) into.Add()->Swap(&item);
  // A waiting usage is still the latest if this heartbeat has none.
  if (message->heartbeat().has_usage() || (message->has_heartbeat() && !last->has_heartbeat()))
    last->mutable_heartbeat()->Swap(message->mutable_heartbeat());
  return true;
}

}  // namespace agmm
