// The open sessions of clients. On the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/scheduler.h"
#include "kernels/base/clock.h"

namespace agmm {

class Sessions {
 public:
  // `catalog` and `scheduler` hold the tensors and jobs of sessions; both must outlive this.
  Sessions(int node_count, Catalog* catalog, Scheduler* scheduler,
           const Clock* clock = Clock::Real())
      : node_count_(node_count), catalog_(catalog), scheduler_(scheduler), clock_(clock) {}

  // Errors: INVALID_ARGUMENT for a node outside the world, ALREADY_EXISTS for an id that is empty
  // or taken.
  absl::Status Open(const CallContext& ctx, const v1::OpenedSessionRequest& request);
  // Ends the session, its tensors and its jobs. Not an error if the session is not open. Errors:
  // PERMISSION_DENIED for a key that differs from the one in Open.
  absl::Status Close(const v1::CloseSessionRequest& request);
  // Ends the sessions of the clients of a node that was lost.
  void OnNodeLost(int node);
  // Checks a session before something is created for it. Errors: FAILED_PRECONDITION unless
  // `session` is open or empty, because objects of a session that has ended would never be deleted.
  absl::Status Check(const std::string& session) const;
  // Returns a page of the open sessions, with the tensors and jobs that would end with them.
  v1::ListSessionsResponse List(const v1::ListSessionsRequest& request) const;

 private:
  struct Opened {
    v1::Session session;  // without its tensors and jobs
    uint64_t key = 0;     // of the node that may close it
  };
  using ById = std::map<std::string, Opened>;
  void End(ById::iterator it);

  const int node_count_;
  Catalog* const catalog_;
  Scheduler* const scheduler_;
  const Clock* const clock_;
  ById open_;
  std::map<uint64_t, ById::iterator> by_number_;
  uint64_t next_number_ = 1;
};

}  // namespace agmm
