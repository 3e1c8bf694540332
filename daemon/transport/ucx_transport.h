// Messages and bulk bytes between the daemons of a world, over UCX active messages.
//
// One UCX worker for each generation of the world, and one thread, which sleeps while nothing
// happens. A message names a step of a plan, and the receiver finds the destination in its own
// schedule. Every header carries the generation of the world and a keyed check; messages with
// another generation or check are dropped and counted.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "daemon/transport/tcp_paths.h"
#include "daemon/transport/types.h"
#include "kernels/device/progress_engine.h"
#include "kernels/device/transport.h"

namespace agmm {

using transport::TcpUse;

// The address at which the other nodes connect.
struct TransportPort {
  std::string address;   // opaque bytes, for their Connect
  std::string endpoint;  // "10.0.0.1:7301", for people
};

// Thread-safe. Callbacks run on the progress thread and must not block; they may call any method
// except the destructor.
class UcxTransport : public Transport {
 public:
  // `receiver` and `store` must outlive the transport.
  // Errors: INVALID_ARGUMENT if no interface of this host has the bind address, RESOURCE_EXHAUSTED
  // if no port of the range is free, FAILED_PRECONDITION if UCX or OpenSSL lack a feature.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const TransportOptions& options,
                                                              Receiver* receiver, BulkStore* store);
  // The destructor ends all connections. All outstanding messages and requests fail with ABORTED
  // before it returns. No other call may run or follow.

  // Describes the transport of plan messages: "ucx 1.13.1, tcp, active messages, rendezvous from 64
  // KiB".
  virtual std::string description() const = 0;

  // Returns the number of connections that were closed without a valid token.
  virtual int64_t refused_connections() const = 0;

  // Returns the engine for a thread that would otherwise wait. Valid as long as the transport; a
  // thread with the seat must leave it before the transport ends.
  virtual ProgressEngine* progress() = 0;

  // Ends all connections and transfers at once: outstanding messages, receives and requests fail
  // with ABORTED, and parked messages are dropped. Then `done` runs with the address at which the
  // other nodes can connect from now on; earlier connections no longer write to memory here. Errors
  // passed to `done`: those of Create; then nothing can connect until a later call.
  virtual void Renew(std::function<void(absl::StatusOr<TransportPort>)> done) = 0;

  // Connects to `node` at `address`, in the background; OnPeerFailure reports a broken connection.
  // To be called once for every peer between two calls of Renew, after SetWorld. Errors:
  // INVALID_ARGUMENT if `address` is not that of a TransportPort.
  virtual absl::Status Connect(int node, const std::string& address) = 0;

  // Runs `done` with OK once `node` has answered. To be called after SetWorld and Connect on both
  // nodes. An answer may be lost while the other node connects. Errors: those of Send.
  virtual void Ping(int node, std::function<void(absl::Status)> done) = 0;

  // Sets the generation that messages carry and must have from now on, and the key of their check.
  // Drops the parked messages of other generations, and fails their bulk requests with ABORTED.
  virtual void SetWorld(uint64_t generation, int self_node, const std::array<uint8_t, 16>& key) = 0;

  // Send passes these errors to `done`: ABORTED when the peer is not connected or was lost,
  // FAILED_PRECONDITION before SetWorld, INVALID_ARGUMENT for invalid rows, RESOURCE_EXHAUSTED
  // without memory to stage them.

  // Offers the parked messages to the Receiver again, in the order of arrival.
  virtual void Resume() = 0;

  // Writes `from` to `block` on `node`. `done` runs once: with OK when the bytes are in place
  // there, or with the error; then `from` may be overwritten. Errors: those of Send and of the
  // store there.
  virtual void WriteBlock(int node, const BulkBlock& block, Rows from,
                          std::function<void(absl::Status)> done) = 0;
  // Reads `block` on `node` into `to`. `done` runs once: with OK when the bytes are in place, or
  // with the error.
  virtual void ReadBlock(int node, const BulkBlock& block, Rows to,
                         std::function<void(absl::Status)> done) = 0;

  // Returns the live counters, valid as long as the transport.
  virtual const TransportCounters& counters() const = 0;

  // Returns the counters by node. Scans the descriptors of the process, so it is meant for people's
  // requests only.
  virtual std::map<int, TcpUse> tcp_uses() const = 0;

  // Sets the handler that runs when the connection to a peer breaks (not for Renew). Its sends have
  // failed by then; its receives fail in Renew, which should follow soon.
  virtual void OnPeerFailure(std::function<void(int, absl::Status)> handler) = 0;
};

}  // namespace agmm
