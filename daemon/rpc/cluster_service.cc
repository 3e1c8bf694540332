#include "daemon/rpc/cluster_service.h"

#include <utility>
#include <vector>

#include "daemon/link/stream.h"
#include "daemon/rpc/validate.h"
#include "kernels/base/deadline.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"

namespace agmm {

// One OpenSession call. It registers the session at the sequencer, sends one event, and stays open
// until either side ends it.
class SessionStream final : public WriteStream<v1::SessionEvent> {
 public:
  SessionStream(ClusterService* service, grpc::CallbackServerContext* context,
                const v1::OpenSessionRequest& request)
      : ServerStream(context), service_(service), request_(request) {
    event_.set_session_id(RandomHex(kIdBytes));
  }

 private:
  void OnStart() override {
    if (absl::Status valid = Validate(request_); !valid.ok()) return End(valid);
    if (absl::Status full = service_->Add(Self<SessionStream>(), call_.principal); !full.ok())
      return End(full);
    admitted_ = true;
    v1::OpenedSessionRequest request;
    request.set_session_id(event_.session_id());
    request.set_node(service_->node_);
    request.set_key(key_);
    request.set_program(request_.program());
    // Never cancelled, because a session that was registered must be closed.
    CallContext call = call_;
    call.cancel = std::make_shared<CancelToken>();
    call.deadline = Deadline::Infinite();
    service_->sequencer_->opened_session(
        call, request,
        [self = Self<SessionStream>()](absl::StatusOr<v1::OpenedSessionResponse> opened) {
          self->OnOpened(opened.status());
        });
  }
  // The regular end of a session: a client ends it by cancelling the call.
  void OnBroken(absl::Status) override { End(absl::OkStatus()); }
  void OnOver() override {
    if (admitted_ && Pass(&over_)) Close();
  }

  void OnOpened(const absl::Status& status) {
    registered_ = status.ok();
    if (registered_) {
      Send(event_);
    } else {
      End(status);
    }
    if (Pass(&answered_)) Close();
  }
  // Sets the flag. Returns true once the sequencer has answered and the stream has ended.
  bool Pass(bool* flag) {
    std::lock_guard lock(mutex_);
    *flag = true;
    return answered_ && over_;
  }
  void Close() {
    // Removed only now, because a call that waits for the sequencer takes memory, too.
    service_->Remove(Self<SessionStream>(), call_.principal);
    if (!registered_) return;
    service_->on_end_(event_.session_id());
    v1::CloseSessionRequest request;
    request.set_session_id(event_.session_id());
    request.set_key(key_);
    // Errors are ignored, because a sequencer that loses this node ends its sessions itself.
    service_->sequencer_->close_session({}, request,
                                        [](const absl::StatusOr<v1::CloseSessionResponse>&) {});
  }

  ClusterService* const service_;
  const v1::OpenSessionRequest request_;
  const uint64_t key_ = RandomId();
  v1::SessionEvent event_;
  bool admitted_ = false;    // from OnStart on
  bool registered_ = false;  // at the sequencer; from its answer on
  std::mutex mutex_;         // guards what follows
  bool answered_ = false, over_ = false;
};

ClusterService::ClusterService(const SequencerCalls* sequencer, const StatusView* view, int node,
                               int max_sessions, std::function<void(const std::string&)> on_end)
    : MethodService("agmm.v1.ClusterService"),
      sequencer_(sequencer),
      node_(node),
      on_end_(std::move(on_end)),
      quota_({"sessions", "are open at this daemon",
              "close some, ask another daemon, or raise local.sessions"},
             OwnerQuota::Quarters(max_sessions)) {
  AddUnary<v1::GetStatusRequest, v1::GetStatusResponse>(
      [sequencer, view](const auto& call, const auto& request, auto reply) {
        sequencer->get_status(call, request, [view, reply = std::move(reply)](auto status) {
          if (!status.ok()) status = view->Alone(std::string(status.status().message()));
          view->Finish(&*status);
          reply(std::move(status));
        });
      });
  AddWriteStream<v1::OpenSessionRequest, v1::SessionEvent>(
      [this](grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
        return StartStream<SessionStream>(this, context, *request);
      });
  AddUnary<v1::ListSessionsRequest, v1::ListSessionsResponse>(
      [sequencer](const auto& call, const auto& request, auto reply) {
        sequencer->list_sessions(call, request, std::move(reply));
      });
}

void ClusterService::EndSessions(const absl::Status& reason) {
  std::vector<std::shared_ptr<SessionStream>> sessions;
  {
    std::lock_guard lock(mutex_);
    sessions.assign(sessions_.begin(), sessions_.end());
  }
  for (const auto& session : sessions) session->End(reason);
}

absl::Status ClusterService::Add(std::shared_ptr<SessionStream> session,
                                 const std::string& principal) {
  AGMM_RETURN_IF_ERROR(quota_.Take(principal));
  std::lock_guard lock(mutex_);
  sessions_.insert(std::move(session));
  return absl::OkStatus();
}

void ClusterService::Remove(const std::shared_ptr<SessionStream>& session,
                            const std::string& principal) {
  quota_.Return(principal);
  std::lock_guard lock(mutex_);
  sessions_.erase(session);
}

}  // namespace agmm
