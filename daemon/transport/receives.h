// Bytes that are on their way into place. Progress thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <unordered_set>

#include "absl/status/status.h"
#include "daemon/transport/done.h"
#include "daemon/transport/rows.h"
#include "daemon/transport/stats.h"
#include "daemon/transport/ucx_worker.h"

namespace agmm::transport {

// The payload of an active message as UCX presents it: bytes that are here, or a descriptor to
// fetch them by.
struct Payload {
  void* data = nullptr;
  int64_t length = 0;
  bool rendezvous = false;
};

class Receives {
 public:
  Receives(UcxWorker* worker, Stats* stats) : worker_(worker), stats_(stats) {}
  // The worker must have been closed by then.
  ~Receives();

  // Brings `payload` of `node` in `generation` to `to`, then runs `done`. True if UCX uses the
  // payload's descriptor up: the active-message callback that presented it must return
  // UCS_INPROGRESS. If not, the callback returns UCS_OK, or the keeper of the payload calls
  // Release. Errors given to `done`: as Place(); ABORTED when the peer is lost meanwhile.
  bool Take(int node, uint64_t generation, const Payload& payload, const Rows& to, Done done);
  // Gives back a payload that was kept; not inside the callback that presented it.
  void Release(const Payload& payload);

  // Tells the owners of what UCX has not given back, of `node` and as old as `generation`.
  void Abandon(int node, uint64_t generation);
  void AbandonAll();

  // Runs `done`, perhaps at once, when none older than `generation` is left but abandoned ones.
  void WhenQuiet(uint64_t generation, std::function<void()> done);

  bool idle() const { return receiving_.empty(); }

 private:
  struct Receive;
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* user);
  void Finish(Receive* receive, ucs_status_t status);
  void Abandon(Receive* receive);
  bool Quiet(uint64_t generation) const;
  void TellQuiet();

  UcxWorker* const worker_;
  Stats* const stats_;
  std::unordered_set<Receive*> receiving_;
  std::multimap<uint64_t, std::function<void()>> waiting_;  // for quiet, by generation
};

}  // namespace agmm::transport
