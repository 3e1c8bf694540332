// The open sessions of clients. On the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <string>

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
  absl::Status Open(const v1::OpenedSessionRequest& request);
  // Ends the session, its tensors and its jobs. Not an error if the session is not open. Errors:
  // PERMISSION_DENIED for a key that differs from the one in Open.
  absl::Status Close(const v1::CloseSessionRequest& request);
  // Ends the sessions of the clients of a node that was lost.
  void OnNodeLost(int node);
  // Checks a session before something is created for it. Errors: FAILED_PRECONDITION unless
  // `session` is open or empty, because objects of a session that has ended would never be deleted.
  absl::Status Check(const std::string& session) const;

 private:
  struct Session {
    int node = 0;      // the node to which its client is connected
    uint64_t key = 0;  // of the node that may close it
  };
  void End(const std::string& session);

  const int node_count_;
  Catalog* const catalog_;
  Scheduler* const scheduler_;
  std::map<std::string, Session> open_;
};

}  // namespace agmm
