#include "daemon/sequencer/sessions.h"

#include <vector>

#include "absl/strings/str_format.h"

namespace agmm {

absl::Status Sessions::Open(const v1::OpenedSessionRequest& request) {
  if (request.node() < 0 || request.node() >= node_count_) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a session of node %d; the world has nodes 0 to %d", request.node(), node_count_ - 1));
  }
  if (request.session_id().empty() ||
      !open_.try_emplace(request.session_id(), Session{request.node(), request.key()}).second) {
    return absl::AlreadyExistsError("the session id is empty or taken; choose another");
  }
  return absl::OkStatus();
}

absl::Status Sessions::Close(const v1::CloseSessionRequest& request) {
  const auto it = open_.find(request.session_id());
  if (it == open_.end()) return absl::OkStatus();
  // The id is public, because the tensors and jobs of the session show it.
  if (it->second.key != request.key()) {
    return absl::PermissionDeniedError(absl::StrFormat(
        "session %s is closed by the daemon that opened it, with its key", request.session_id()));
  }
  open_.erase(it);
  End(request.session_id());
  return absl::OkStatus();
}

void Sessions::OnNodeLost(int node) {
  std::vector<std::string> ended;
  for (const auto& [session, open] : open_)
    if (open.node == node) ended.push_back(session);
  for (const std::string& session : ended) {
    open_.erase(session);
    End(session);
  }
}

absl::Status Sessions::Check(const std::string& session) const {
  if (session.empty() || open_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("session %s has ended; open a new one", session));
}

void Sessions::End(const std::string& session) {
  scheduler_->EndSession(session);
  catalog_->EndSession(session);
}

}  // namespace agmm
