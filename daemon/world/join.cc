#include "daemon/world/join.h"

#include <spdlog/spdlog.h>

#include <utility>

#include "daemon/world/protocol.h"
#include "proto/channel/channel.h"

namespace agmm {
std::shared_ptr<grpc::Channel> PeerChannel(const std::string& address) {
  grpc::ChannelArguments args;
  args.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 100);
  args.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, 1000);  // how long one attempt may take
  args.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 250);
  args.SetInt(GRPC_ARG_DNS_MIN_TIME_BETWEEN_RESOLUTIONS_MS, 500);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveTimeMs);
  args.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveTimeoutMs);
  args.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  args.SetInt(GRPC_ARG_HTTP2_BDP_PROBE,
              0);  // its pings wake both ends of an idle stream; large data goes another way
  args.SetMaxReceiveMessageSize(kMaxMessageBytes);
  args.SetMaxSendMessageSize(kMaxMessageBytes);
  return OpenChannel(address, std::move(args));
}

Join::Join(std::shared_ptr<grpc::Channel> channel, Loop* loop, Heartbeat* heartbeat, Member* member,
           const StatusView* view)
    : stub_(v1::PeerService::NewStub(std::move(channel))),
      loop_(loop),
      heartbeat_(heartbeat),
      member_(member),
      view_(view) {}

void Join::Start() {
  if (stopping_) return;
  {
    std::lock_guard lock(mutex_);
    running_ = true;
  }
  JoinStream::Handlers handlers;
  handlers.message = [this](v1::SequencerMessage message) {
    loop_->Post([this, message = std::move(message)] { member_->OnMessage(message); });
  };
  handlers.outcomes = outcomes_;
  handlers.ended = [this](std::string how) {
    loop_->Post([this, how = std::move(how)] {
      stream_ = nullptr;
      if (std::exchange(last_how_, how) != how)
        spdlog::debug("the stream to the sequencer ended: {}", how);
      member_->OnStreamEnded(how);
      const absl::Duration retry = member_->retry();
      if (!stopping_ && retry < absl::InfiniteDuration())
        retry_ = loop_->PostAfter(retry, [this] { Start(); });
      std::lock_guard lock(mutex_);
      running_ = false;
      ended_.notify_all();
    });
  };
  handlers.usage = [view = view_] { return view->Usage(); };  // a last beat may outlive this
  stream_ = JoinStream::Start(stub_.get(), heartbeat_, std::move(handlers));
  member_->OnStream(stream_);
}

Join::~Join() {
  std::mutex mutex;
  std::condition_variable posted;
  bool closed = false;
  loop_->Post([&] {
    stopping_ = true;
    loop_->Cancel(retry_);
    if (stream_ != nullptr) stream_->Close();
    std::lock_guard lock(mutex);
    closed = true;
    posted.notify_all();
  });
  {
    std::unique_lock lock(mutex);
    posted.wait(lock, [&] { return closed; });
  }
  std::unique_lock lock(mutex_);
  ended_.wait(lock, [this] { return !running_; });
}

}  // namespace agmm
