#include "daemon/rpc/cluster_service.h"

#include <utility>
#include <vector>

#include "daemon/rpc/reply.h"
#include "kernels/base/random.h"

namespace agmm {

// One OpenSession call: told to the sequencer, then one event, then open until either side ends it.
// Held by the service until the call is done, and by the sequencer's answer.
class SessionStream final : public grpc::ServerWriteReactor<v1::SessionEvent>,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  SessionStream(ClusterService* service, const CallContext& call) : service_(service), call_(call) {
    event_.set_session_id(RandomHex(kIdBytes));
  }

  void Open() {
    v1::OpenedSessionRequest request;
    request.set_session_id(event_.session_id());
    request.set_node(service_->node_);
    request.set_key(key_);
    service_->control_->OpenedSession(
        call_, request,
        [self = shared_from_this()](absl::StatusOr<v1::OpenedSessionResponse> opened) {
          self->OnOpened(opened.status());
        });
  }

  void End(const absl::Status& status) {
    std::lock_guard lock(mutex_);
    if (ending_) return;
    ending_ = true;
    end_ = status;
    if (!writing_) Finish(ToGrpc(end_));
  }

  void OnWriteDone(bool ok) override {
    std::lock_guard lock(mutex_);
    writing_ = false;
    if (ending_) Finish(ToGrpc(end_));
  }
  // A client has no other way to end its session: this is the good end.
  void OnCancel() override { End(absl::OkStatus()); }
  void OnDone() override {
    const std::shared_ptr<SessionStream> self = shared_from_this();
    bool close = false;
    {
      std::lock_guard lock(mutex_);
      done_ = true;
      close = opened_;
    }
    if (close) Close();
    service_->Remove(self);
  }

 private:
  void OnOpened(const absl::Status& status) {
    if (!status.ok()) return End(status);
    bool close = false;
    {
      std::lock_guard lock(mutex_);
      opened_ = true;
      close = done_;
      if (!ending_) {
        writing_ = true;
        StartWrite(&event_);
      }
    }
    if (close) Close();
  }
  void Close() {
    service_->on_end_(event_.session_id());
    v1::CloseSessionRequest request;
    request.set_session_id(event_.session_id());
    request.set_key(key_);
    // A sequencer that cannot be told has lost this daemon, and ends its sessions for that.
    service_->control_->CloseSession({}, request,
                                     [](const absl::StatusOr<v1::CloseSessionResponse>&) {});
  }

  ClusterService* const service_;
  const CallContext call_;
  const uint64_t key_ = RandomId();
  v1::SessionEvent event_;
  std::mutex mutex_;
  absl::Status end_;
  bool opened_ = false, writing_ = false, ending_ = false, done_ = false;
};

grpc::ServerUnaryReactor* ClusterService::GetStatus(grpc::CallbackServerContext* context,
                                                    const v1::GetStatusRequest* request,
                                                    v1::GetStatusResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->GetStatus(
        call, *request,
        [view = view_, reply = std::move(reply)](absl::StatusOr<v1::GetStatusResponse> status) {
          if (status.ok()) view->Finish(&*status);
          reply(std::move(status));
        });
  });
}

grpc::ServerWriteReactor<v1::SessionEvent>* ClusterService::OpenSession(
    grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
  auto session = std::make_shared<SessionStream>(this, CallContextOf(context));
  Add(session);
  session->Open();
  return session.get();
}

void ClusterService::EndSessions(const absl::Status& reason) {
  std::vector<std::shared_ptr<SessionStream>> sessions;
  {
    std::lock_guard lock(mutex_);
    sessions.assign(sessions_.begin(), sessions_.end());
  }
  for (const auto& session : sessions) session->End(reason);
}

void ClusterService::Add(std::shared_ptr<SessionStream> session) {
  std::lock_guard lock(mutex_);
  sessions_.insert(std::move(session));
}

void ClusterService::Remove(const std::shared_ptr<SessionStream>& session) {
  std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

}  // namespace agmm
