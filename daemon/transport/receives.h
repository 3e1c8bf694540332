// Payloads being received into place. Progress thread only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_set>

#include "absl/status/status.h"
#include "daemon/transport/done.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/staging.h"
#include "daemon/transport/ucx_worker.h"

namespace agmm::transport {

// The payload of an active message in UCX's form: the bytes themselves, or a descriptor to fetch
// them.
struct Payload {
  void* data = nullptr;
  int64_t length = 0;
  bool rendezvous = false;
};

class Receives {
 public:
  explicit Receives(Shared& shared) : shared_(shared) {}
  // Requires that the worker is closed.
  ~Receives();

  // Receives `payload` of `node` into `to`, then runs `done`. Returns true if UCX consumes the
  // payload's descriptor: the active-message callback that presented it must return UCS_INPROGRESS.
  // Otherwise the callback returns UCS_OK, or the owner of the payload calls Release. Errors passed
  // to `done`: those of Place() and of Heap::Write; ABORTED if the peer is lost during the receive.
  bool Take(int node, const Payload& payload, const Rows& to, Done done);
  // Releases a payload that was kept; must not be called inside the callback that presented it.
  void Release(const Payload& payload);

  // Fails the receives that UCX has not completed. Requires that the worker is closed, so that
  // nothing writes to their places.
  void Reset(const absl::Status& why);

  bool idle() const { return receiving_.empty(); }

 private:
  struct Receive;
  static void OnReceived(void* request, ucs_status_t status, size_t length, void* user);
  void Finish(Receive* receive, ucs_status_t status);

  Shared& shared_;
  std::unordered_set<Receive*> receiving_;
};

}  // namespace agmm::transport
