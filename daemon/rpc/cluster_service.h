// Status and sessions.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>

#include "absl/status/status.h"
#include "agmm/v1/cluster.grpc.pb.h"
#include "daemon/control.h"
#include "daemon/world/status_view.h"

namespace agmm {

class SessionStream;

class ClusterService final : public v1::ClusterService::CallbackService {
 public:
  // Both outlive the server. `node` is this daemon. `on_end` is told of each session that was
  // opened here when it has ended, on any thread.
  ClusterService(
      Control* control, const StatusView* view, int node,
      std::function<void(const std::string& session_id)> on_end = [](const auto&) {})
      : control_(control), view_(view), node_(node), on_end_(std::move(on_end)) {}

  grpc::ServerUnaryReactor* GetStatus(grpc::CallbackServerContext* context,
                                      const v1::GetStatusRequest* request,
                                      v1::GetStatusResponse* response) override;
  grpc::ServerWriteReactor<v1::SessionEvent>* OpenSession(
      grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) override;

  // Ends all sessions of this daemon's clients: the sequencer that knew them is gone.
  void EndSessions(const absl::Status& reason);

 private:
  friend class SessionStream;
  void Add(std::shared_ptr<SessionStream> session);
  void Remove(const std::shared_ptr<SessionStream>& session);

  Control* const control_;
  const StatusView* const view_;
  const int node_;
  const std::function<void(const std::string&)> on_end_;
  std::mutex mutex_;
  std::set<std::shared_ptr<SessionStream>> sessions_;
};

}  // namespace agmm
