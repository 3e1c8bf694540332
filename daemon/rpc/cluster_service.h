// Status and sessions, on every node.
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "daemon/link/owner_quota.h"
#include "daemon/link/sequencer_calls.h"
#include "daemon/node/status_view.h"
#include "daemon/rpc/method_service.h"

namespace agmm {

class SessionStream;

class ClusterService final : public MethodService {
 public:
  // Both must outlive the server. `node` is this node. At most `max_sessions` may be open here, a
  // quarter of them per owner. `on_end` runs on any thread at the end of each session that was
  // opened here.
  ClusterService(
      const SequencerCalls* sequencer, const StatusView* view, int node, int max_sessions,
      std::function<void(const std::string& session_id)> on_end = [](const auto&) {});

  // Ends all sessions of this daemon's clients, because the sequencer that knew them was lost.
  void EndSessions(const absl::Status& reason);

 private:
  friend class SessionStream;
  // Errors: RESOURCE_EXHAUSTED.
  absl::Status Add(std::shared_ptr<SessionStream> session, const std::string& principal);
  void Remove(const std::shared_ptr<SessionStream>& session, const std::string& principal);

  const SequencerCalls* const sequencer_;
  const int node_;
  const std::function<void(const std::string&)> on_end_;
  OwnerQuota quota_;
  std::mutex mutex_;
  std::set<std::shared_ptr<SessionStream>> sessions_;
};

}  // namespace agmm
