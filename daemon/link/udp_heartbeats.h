// Heartbeats of the nodes as UDP datagrams, sent and answered by a thread that does nothing else. A
// flood of calls delays gRPC's threads and the streams' own heartbeats, but not these, and so loses
// no node. Where UDP does not get through, the streams' own heartbeats remain.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/base/socket_address.h"

namespace agmm {

// One end: the sequencer's daemon answers, the others ask. Each stream that lives has a key
// (JoinProof::HeartbeatKey) that both ends know; a datagram carries a keyed hash. Thread-safe.
// Answer and Ask return RESOURCE_EXHAUSTED if no thread can be started.
class UdpHeartbeats {
 public:
  // Makes the sequencer's end; takes over `sockets`, bound to the peer port.
  static absl::StatusOr<std::unique_ptr<UdpHeartbeats>> Answer(std::vector<int> sockets);
  // Makes another daemon's end, which asks at `address` (host:port) while a stream lives.
  // Logs once that none of its first `patience` connections was answered.
  static absl::StatusOr<std::unique_ptr<UdpHeartbeats>> Ask(const std::string& address,
                                                            size_t patience = 5);
  ~UdpHeartbeats();
  UdpHeartbeats(const UdpHeartbeats&) = delete;

  // A stream with this key lives, until End.
  void Begin(const std::string& key);
  void End(const std::string& key);
  // When the other end of this stream was last heard, on the monotonic clock; 0: never.
  int64_t heard_ns(const std::string& key) const;
  // The valid datagrams received, of all streams.
  int64_t heard_total() const { return heard_total_; }

 private:
  struct Stream {
    std::string key;
    uint64_t sent = 0, received = 0;  // numbers of the last datagrams
    int64_t heard_ns = 0;
  };

  UdpHeartbeats(std::vector<int> sockets, std::string address, size_t patience);
  static absl::StatusOr<std::unique_ptr<UdpHeartbeats>> Start(std::unique_ptr<UdpHeartbeats> made);
  void Loop();
  void Receive(int fd);
  void AskAll();
  bool AllAnswered() const;
  // Connects to the next of the addresses that the host has, unless answers come from this one.
  void Reconnect(int64_t heard_ns);
  void Connect();
  // Keeps what the address in use says, by errno.
  void Note(int error);

  const std::string address_;  // empty: answers
  const size_t patience_;
  std::vector<int> sockets_;  // these five on the thread
  size_t attempts_ = 0;
  SocketAddress dialled_;
  std::map<std::string, std::string> answers_;  // since the last datagram: DialAnswer by address
  int64_t connected_ns_ = 0;
  const int stop_;  // an event
  std::atomic<int64_t> heard_total_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, Stream> streams_;  // by id; guarded by mutex_
  std::thread thread_;
};

// Returns true if a stream must end as silent: its last message arrived at `message_ns`, and the
// last UDP heartbeat of its other end at `heartbeat_ns`.
bool IsSilent(int64_t now_ns, int64_t message_ns, int64_t heartbeat_ns);
// Why it is ended: "no message for 2.5s".
std::string SilenceOf(int64_t now_ns, int64_t message_ns);

}  // namespace agmm
