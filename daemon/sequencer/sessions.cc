#include "daemon/sequencer/sessions.h"

#include <utility>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/time/time.h"
#include "proto/limits.h"

namespace agmm {

absl::Status Sessions::Open(const CallContext& ctx, const v1::OpenedSessionRequest& request) {
  if (request.node() < 0 || request.node() >= node_count_) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the session is for node %d, but the world has nodes 0 to %d",
                        request.node(), node_count_ - 1));
  }
  if (request.session_id().empty() || open_.contains(request.session_id()))
    return absl::AlreadyExistsError("the session id is empty or taken; choose another");
  const auto it = open_.try_emplace(request.session_id()).first;
  it->second.key = request.key();
  v1::Session& session = it->second.session;
  session.set_session_id(request.session_id());
  session.set_number(next_number_++);
  session.set_node(request.node());
  session.set_owner(ctx.principal);
  session.set_program(request.program());
  session.set_opened_unix_us(absl::ToUnixMicros(clock_->Now()));
  by_number_[session.number()] = it;
  return absl::OkStatus();
}

absl::Status Sessions::Close(const v1::CloseSessionRequest& request) {
  const auto it = open_.find(request.session_id());
  if (it == open_.end()) return absl::OkStatus();
  // The id is public, because the tensors and jobs of the session show it.
  if (it->second.key != request.key()) {
    return absl::PermissionDeniedError(
        absl::StrFormat("session %s can be closed only by the daemon that opened it, with its key",
                        request.session_id()));
  }
  End(it);
  return absl::OkStatus();
}

void Sessions::OnNodeLost(int node) {
  std::vector<ById::iterator> ended;
  for (auto it = open_.begin(); it != open_.end(); ++it)
    if (it->second.session.node() == node) ended.push_back(it);
  for (const ById::iterator it : ended) End(it);
}

absl::Status Sessions::Check(const std::string& session) const {
  if (session.empty() || open_.contains(session)) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("session %s has ended; open a new one", session));
}

// A page fits a message: each of its sessions has less than 1 KiB, because the id, the owner and
// the program are bounded where they enter.
v1::ListSessionsResponse Sessions::List(const v1::ListSessionsRequest& request) const {
  const int size = request.page_size() > 0 ? request.page_size() : kDefaultPage;
  const std::map<std::string, TensorUse> tensors = catalog_->UseBySession();
  const std::map<std::string, int> jobs = scheduler_->JobsBySession();
  v1::ListSessionsResponse response;
  for (auto it = by_number_.upper_bound(request.after_number()); it != by_number_.end(); ++it) {
    if (response.sessions_size() == size) {
      response.set_next_after_number(response.sessions(size - 1).number());
      break;
    }
    v1::Session& session = *response.add_sessions();
    session = it->second->second.session;
    if (const auto use = tensors.find(session.session_id()); use != tensors.end()) {
      session.set_tensor_count(use->second.count);
      session.set_tensor_bytes(use->second.bytes);
    }
    if (const auto count = jobs.find(session.session_id()); count != jobs.end())
      session.set_job_count(count->second);
  }
  return response;
}

void Sessions::End(ById::iterator it) {
  const std::string session = it->first;
  by_number_.erase(it->second.session.number());
  open_.erase(it);
  scheduler_->EndSession(session);
  catalog_->EndSession(session);
}

}  // namespace agmm
