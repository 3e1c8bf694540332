// The stream between the sequencer and the member of its own daemon, over the control loop.
#pragma once

#include <memory>
#include <utility>

#include "daemon/link/link.h"
#include "daemon/node/member.h"
#include "daemon/sequencer/sequencer.h"
#include "kernels/base/loop.h"

namespace agmm {

// The sequencer's end. `loop` and `member` outlive the loop's run. On the loop only.
class LocalMemberLink final : public MemberLink {
 public:
  LocalMemberLink(Loop* loop, Member* member, bool alone)
      : loop_(loop), member_(member), alone_(alone) {}
  void Send(v1::SequencerMessage message) override {
    // Posts the message, so that a command never runs within the call that sent it.
    auto give = [member = member_, message = std::move(message)] { member->OnMessage(message); };
    if (alone_) return loop_->Post(std::move(give));
    // Runs after the streams to other nodes have written, which happens in the last round of the
    // loop: those messages have further to go, and a worker here would take the core.
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

// The member's end.
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
