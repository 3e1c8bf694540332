// Messages of a Join call that wait for the stream are merged, so that a burst travels in few.
#pragma once

#include "agmm/v1/peer.pb.h"

namespace agmm {

inline bool TravelsAlone(const v1::SequencerMessage& message) {
  // The member takes nothing else from the messages that prove.
  return message.has_refusal() || !message.challenge().empty() || !message.proof().empty();
}
inline bool TravelsAlone(const v1::MemberMessage& message) { return message.has_hello(); }
inline auto* ItemsOf(v1::SequencerMessage* message) { return message->mutable_commands(); }
inline auto* ItemsOf(v1::MemberMessage* message) { return message->mutable_reports(); }

// Appends `message` to `last`. False if they are to travel separately: items count in their
// generation alone.
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
