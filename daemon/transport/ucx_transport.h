// Messages and bulk bytes between the daemons of a world, over UCX active messages.
//
// One UCX worker and one thread, which sleeps while nothing happens. A message names a step of a
// plan; where its bytes go, the receiver reads in its own schedule. Every header carries the
// generation of the world and a keyed check; what does not fit is dropped and counted.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "kernels/device/progress_engine.h"
#include "kernels/device/transport.h"

namespace agmm {

struct TransportOptions {
  // The IP address whose interface carries the messages. Empty: loopback.
  std::string bind_address;
  // Only TCP, also between processes of one host. Otherwise UCX may use shared memory between
  // those, which has not been seen to report a killed peer within a minute (NOTES.md).
  bool force_tcp = true;
  // UCX_RNDV_SCHEME; empty: UCX's own choice.
  std::string rndv_scheme;
  // UCX_TCP_PUT_ENABLE. With it the sender of a large message writes into the receiver's memory:
  // late bytes of a broken connection may still land there, and links carry less when both
  // directions are busy (NOTES.md).
  bool tcp_put = false;
  // Messages of at least so many bytes go by rendezvous, straight into place. 0: UCX's own choice.
  int64_t rndv_threshold_bytes = 64 << 10;
  // How long Disconnect and the destructor wait for what was sent before they cut it off; and then
  // how long for UCX to give the cut-off requests back.
  absl::Duration flush_timeout = absl::Milliseconds(500);
};

// A part of one rank's shard of a tensor. Names bytes; where they lie, their node knows.
struct BulkBlock {
  uint64_t tensor = 0;
  int rank = 0;                        // rank of the world
  int64_t row_begin = 0, row_end = 0;  // in the shard's own coordinates, in elements
  int64_t col_begin = 0, col_end = 0;
};

// Maps blocks to this node's memory.
class BulkStore {
 public:
  virtual ~BulkStore() = default;
  // The memory of `block`, which node `from_node` wants to write or read; it must stay valid until
  // no request of this generation is in flight. Called on the progress thread; must not block.
  // Errors go back to the asker: NOT_FOUND, OUT_OF_RANGE.
  virtual absl::StatusOr<Rows> Resolve(int from_node, const BulkBlock& block, bool write) = 0;
};

// A snapshot. Bytes are payload.
struct TransportCounters {
  struct Traffic {
    int64_t messages_sent = 0, bytes_sent = 0, messages_received = 0, bytes_received = 0;
  };
  Traffic plan, bulk_write, bulk_read, bulk_reply;
  // Dropped on arrival, by reason.
  int64_t malformed = 0;         // not a header of this version
  int64_t stale_generation = 0;  // of another generation of the world
  int64_t bad_check = 0;         // the keyed check of the header does not hold
  int64_t unknown = 0;           // for a plan, an epoch or a request that is not known (any more)
  int64_t wrong_length = 0;      // as many bytes as the receiver's own schedule does not expect
  int64_t too_many_parked = 0;   // above the bounds of plan_messages.h
  int64_t parked = 0;            // now
  int64_t parked_total = 0;      // ever
  int64_t staging_bytes = 0;     // now in copies for rows that cannot travel as they lie
  int64_t staging_bytes_peak = 0;
  int64_t peers_failed = 0;
  int64_t abandoned = 0;  // requests UCX had not given back when their owners were told

  int64_t dropped() const {
    return malformed + stale_generation + bad_check + unknown + wrong_length + too_many_parked;
  }
};

// Thread-safe. Callbacks run on the progress thread and must not block; they may call any method
// but the destructor.
class UcxTransport final : public Transport {
 public:
  // `receiver` and `store` must outlive the transport.
  // Errors: INVALID_ARGUMENT for an address no interface of this host has, FAILED_PRECONDITION
  // where UCX or OpenSSL lack what is needed.
  static absl::StatusOr<std::unique_ptr<UcxTransport>> Create(const TransportOptions& options,
                                                              Receiver* receiver, BulkStore* store);
  // Ends all connections within twice the flush timeout. Everything outstanding fails with ABORTED
  // before it returns. No other call may run or follow.
  ~UcxTransport() override;

  // What a peer needs for Connect: opaque bytes, for the hello.
  std::string address() const;
  // How plans' messages travel: "ucx 1.13.1, tcp, active messages, rendezvous from 64 KiB".
  std::string description() const;

  // For a thread that would wait otherwise. Valid as long as the transport; whoever has the seat
  // must have left it before the transport ends.
  ProgressEngine* progress();

  // Makes the connection to `node` at `address`, in the background; a broken one is reported by
  // OnPeerFailure. A connection to an older incarnation or a failed one is replaced. Call it for
  // every peer of a generation before SetWorld. Errors: INVALID_ARGUMENT for bytes that no
  // transport's address() made.
  absl::Status Connect(int node, const std::string& address, uint64_t incarnation);

  // Gives the messages under way to `node` the flush timeout, in the background, then cuts the
  // connection. What is outstanding then fails with ABORTED, within two flush timeouts of the call.
  // Messages sent after the call fail at once. Its parked messages are dropped.
  void Disconnect(int node);

  // From now on messages carry and need `generation` and are checked with `key`. Parked messages of
  // another generation are dropped; bulk requests of another generation fail with ABORTED.
  void SetWorld(uint64_t generation, int self_node, const std::array<uint8_t, 16>& key);

  // Runs `done` when no receive of a generation older than `generation` is in flight: nothing of
  // them is written here any more. Call it behind SetWorld, which lets no more of them begin.
  // Receives of peers that hang end with Disconnect. `done` may be dropped when the transport
  // closes.
  void Quiesce(uint64_t generation, std::function<void()> done);

  // Errors given to `done`: ABORTED when the peer is not connected or was lost, FAILED_PRECONDITION
  // before SetWorld, INVALID_ARGUMENT for rows that cannot be, RESOURCE_EXHAUSTED for no memory to
  // stage them.
  void Send(int node, const Message& message, Rows from,
            std::function<void(absl::Status)> done) override;

  // Offers the parked messages to the Receiver again, in the order they came.
  void Resume();

  // Writes `from` to `block` on `node`. `done` runs once: OK when the bytes are in place there,
  // else why not; in either case `from` may then be overwritten. Errors: as Send, and what the
  // store there answered.
  void WriteBlock(int node, const BulkBlock& block, Rows from,
                  std::function<void(absl::Status)> done);
  // Reads `block` on `node` into `to`. `done` runs once; OK: the bytes are in place.
  void ReadBlock(int node, const BulkBlock& block, Rows to, std::function<void(absl::Status)> done);

  TransportCounters counters() const;

  // `handler(node, why)` runs when the connection to a peer breaks (not for Disconnect). One
  // handler.
  void OnPeerFailure(std::function<void(int, absl::Status)> handler);

 private:
  class Core;
  explicit UcxTransport(std::unique_ptr<Core> core);
  const std::unique_ptr<Core> core_;
};

}  // namespace agmm
