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
  // `catalog` and `scheduler` hold what belongs to sessions; both outlive this.
  Sessions(int node_count, Catalog* catalog, Scheduler* scheduler)
      : node_count_(node_count), catalog_(catalog), scheduler_(scheduler) {}

  // Errors: INVALID_ARGUMENT for a node outside the world, ALREADY_EXISTS for an id that is empty
  // or taken.
  absl::Status Open(const v1::OpenedSessionRequest& request);
  // Ends the session and all that belongs to it. No error for a session that is not open. Errors:
  // PERMISSION_DENIED for another key than it was opened with.
  absl::Status Close(const v1::CloseSessionRequest& request);
  // Ends the sessions of the clients of a node that was lost.
  void OnNodeLost(int node);
  // Errors: FAILED_PRECONDITION unless `session` is open or empty, because nothing would delete
  // what is made for a session that has ended.
  absl::Status Check(const std::string& session) const;

 private:
  struct Session {
    int node = 0;      // that its client is connected to
    uint64_t key = 0;  // of the node that may close it
  };
  void End(const std::string& session);

  const int node_count_;
  Catalog* const catalog_;
  Scheduler* const scheduler_;
  std::map<std::string, Session> open_;
};

}  // namespace agmm
