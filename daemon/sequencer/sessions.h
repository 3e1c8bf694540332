// The open sessions of clients. On the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/scheduler.h"

namespace agmm {

class Sessions {
 public:
  // `catalog` and `scheduler` hold the tensors and jobs of sessions; both must outlive this.
  Sessions(int node_count, Catalog* catalog, Scheduler* scheduler)
      : node_count_(node_count), catalog_(catalog), scheduler_(scheduler) {}

  // Errors: INVALID_ARGUMENT for a node outside the world, ALREADY_EXISTS for an id that is empty
  // or taken.
  absl::Status Open(const v1::OpenedSessionRequest& request) {
    if (request.node() < 0 || request.node() >= node_count_) {
      return absl::InvalidArgumentError(
          absl::StrFormat("the session is for node %d, but the world has nodes 0 to %d",
                          request.node(), node_count_ - 1));
    }
    if (request.session_id().empty() ||
        !open_.try_emplace(request.session_id(), Session{request.node(), request.key()}).second) {
      return absl::AlreadyExistsError("the session id is empty or taken; choose another");
    }
    return absl::OkStatus();
  }
  // Ends the session, its tensors and its jobs. Not an error if the session is not open. Errors:
  // PERMISSION_DENIED for a key that differs from the one in Open.
  absl::Status Close(const v1::CloseSessionRequest& request) {
    const auto it = open_.find(request.session_id());
    if (it == open_.end()) return absl::OkStatus();
    // The id is public, because the tensors and jobs of the session show it.
    if (it->second.key != request.key()) {
      return absl::PermissionDeniedError(absl::StrFormat(
          "session %s can be closed only by the daemon that opened it, with its key",
          request.session_id()));
    }
    open_.erase(it);
    End(request.session_id());
    return absl::OkStatus();
  }
  // Ends the sessions of the clients of a node that was lost.
  void OnNodeLost(int node) {
    std::vector<std::string> ended;
    for (const auto& [session, open] : open_)
      if (open.node == node) ended.push_back(session);
    for (const std::string& session : ended) {
      open_.erase(session);
      End(session);
    }
  }
  // Checks a session before something is created for it. Errors: FAILED_PRECONDITION unless
  // `session` is open or empty, because objects of a session that has ended would never be deleted.
  absl::Status Check(const std::string& session) const {
    if (session.empty() || open_.contains(session)) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("session %s has ended; open a new one", session));
  }

 private:
  struct Session {
    int node = 0;      // the node to which its client is connected
    uint64_t key = 0;  // of the node that may close it
  };
  void End(const std::string& session) {
    scheduler_->EndSession(session);
    catalog_->EndSession(session);
  }

  const int node_count_;
  Catalog* const catalog_;
  Scheduler* const scheduler_;
  std::map<std::string, Session> open_;
};

}  // namespace agmm
