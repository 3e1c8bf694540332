// The connections to the other nodes, and what is being sent on them. Progress thread only.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <string>
#include <unordered_set>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "daemon/transport/done.h"
#include "daemon/transport/rows.h"
#include "daemon/transport/stats.h"
#include "daemon/transport/ucx_worker.h"
#include "daemon/transport/wire.h"
#include "daemon/transport/world.h"

namespace agmm::transport {

struct Endpoint;

// One active message. UCX reads header and data until it gives the message back.
struct Outbound {
  wire::Kind kind = wire::kPlan;
  std::array<std::byte, sizeof(wire::BulkHeader)> header;
  size_t header_length = 0;
  Outgoing data;
  bool push = false;  // eager, however large
  std::string text;   // what data.data points to, of an answer that is an error
  Done done;
  std::shared_ptr<Endpoint> endpoint;

  template <typename Header>
  void SetHeader(const Header& from) {
    static_assert(sizeof(Header) <= sizeof(header));
    std::memcpy(header.data(), &from, sizeof(from));
    header_length = sizeof(from);
  }
};

// The error of everything that a lost peer leaves behind.
absl::Status PeerLost(int node, absl::string_view why);

class Endpoints {
 public:
  // `on_failure`: a connection broke. `on_cut`: nothing of `node` that is as old as `generation`
  // can come any more, and what UCX has not given back by now is to be given up.
  Endpoints(UcxWorker* worker, const CurrentWorld& worlds, Stats* stats,
            absl::Duration flush_timeout,
            std::function<void(int node, absl::Status why)> on_failure,
            std::function<void(int node, uint64_t generation)> on_cut);
  // The worker must have been closed by then.
  ~Endpoints();

  // `generation` is the last one an older connection to the node can have served.
  void Open(int node, const std::string& worker_address, uint64_t incarnation, uint64_t generation);
  void Close(int node, uint64_t generation);
  void CloseAll(uint64_t generation);
  // Tells the owners of all that UCX has not given back.
  void AbandonAll();

  void Send(int node, std::unique_ptr<Outbound> message);

  bool idle() const { return open_.empty() && closing_.empty(); }
  bool busy() const { return sending_ > 0 || !closing_.empty(); }

 private:
  static void OnError(void* endpoint, ucp_ep_h handle, ucs_status_t status);
  static void OnFlushed(void* request, ucs_status_t status, void* endpoint);
  static void OnSent(void* request, ucs_status_t status, void* message);
  void Fail(const std::shared_ptr<Endpoint>& endpoint, absl::Status why);
  void StartClose(const std::shared_ptr<Endpoint>& endpoint, uint64_t generation);
  void Drained(const std::shared_ptr<Endpoint>& endpoint);
  void Cut(const std::shared_ptr<Endpoint>& endpoint);
  void Abandon(Endpoint* endpoint);

  UcxWorker* const worker_;
  const CurrentWorld& worlds_;
  Stats* const stats_;
  const absl::Duration flush_timeout_;
  const std::function<void(int, absl::Status)> on_failure_;
  const std::function<void(int, uint64_t)> on_cut_;
  std::map<int, std::shared_ptr<Endpoint>> open_;
  std::list<std::shared_ptr<Endpoint>> closing_;  // until UCX has given everything back
  int64_t sending_ = 0;
};

}  // namespace agmm::transport
