// The stream between the sequencer and the member of its own daemon: none but the loop. On the loop
// only.
#pragma once

#include <memory>
#include <utility>

#include "daemon/world/link.h"
#include "daemon/world/loop.h"
#include "daemon/world/member.h"
#include "daemon/world/sequencer.h"

namespace agmm {

// Both outlive the loop's run.
class LocalMemberLink final : public MemberLink {
 public:
  LocalMemberLink(Loop* loop, Member* member, bool alone)
      : loop_(loop), member_(member), alone_(alone) {}
  void Send(v1::SequencerMessage message) override {
    // Posted, so that a command never runs within the call that gave it.
    auto give = [member = member_, message = std::move(message)] { member->OnMessage(message); };
    if (alone_) return loop_->Post(std::move(give));
    // Behind what streams write to the others, which they do last: theirs has further to go, and a
    // worker here would take the core.
    loop_->PostLast(
        [loop = loop_, give = std::move(give)]() mutable { loop->Post(std::move(give)); });
  }
  void Refuse(v1::Refusal refusal) override {
    v1::SequencerMessage message;
    *message.mutable_refusal() = std::move(refusal);
    Send(std::move(message));
  }
  // Ends with the daemon.
  void Close() override {}

 private:
  Loop* const loop_;
  Member* const member_;
  const bool alone_;  // in a world of one node
};

class LocalSequencerLink final : public SequencerLink {
 public:
  LocalSequencerLink(Sequencer* sequencer, std::shared_ptr<MemberLink> member)
      : sequencer_(sequencer), member_(std::move(member)) {}
  void Send(v1::MemberMessage message) override { sequencer_->OnMessage(member_, message); }

 private:
  Sequencer* const sequencer_;
  const std::shared_ptr<MemberLink> member_;
};

}  // namespace agmm
