// Heartbeats of the nodes as UDP datagrams, sent and answered by a thread that does nothing else. A
// flood of calls delays gRPC's threads and the streams' own heartbeats, but not these, so no node
// is dropped. If UDP is blocked, the streams' own heartbeats remain.
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

// One end: the sequencer's daemon answers, the others ask. Each stream has a key
// (JoinProof::HeartbeatKey) that both ends know; a datagram carries a keyed hash. Thread-safe.
// Answer and Ask return RESOURCE_EXHAUSTED if no thread can be started.
class UdpHeartbeats {
 public:
  // Makes the sequencer's end; takes over `sockets`, bound to the peer port.
  static absl::StatusOr<std::unique_ptr<UdpHeartbeats>> Answer(std::vector<int> sockets);
  // Makes another daemon's end, which asks at `address` (host:port) while a stream is registered.
  // Logs once if none of its first `patience` connections was answered.
  static absl::StatusOr<std::unique_ptr<UdpHeartbeats>> Ask(const std::string& address,
                                                            size_t patience = 5);
  ~UdpHeartbeats();
  UdpHeartbeats(const UdpHeartbeats&) = delete;

  // Registers the stream with this key, until End.
  void Begin(const std::string& key);
  void End(const std::string& key);
  // Returns the time of the last datagram from the other end of this stream, on the monotonic
  // clock; 0 before the first.
  int64_t heard_ns(const std::string& key) const;
  // The number of valid datagrams received on all streams.
  int64_t received_total() const { return received_total_; }

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
  // Connects to the next of the host's addresses, unless the current one answers.
  void Reconnect(int64_t heard_ns);
  void Connect();
  // Records the answer of the current address, as an errno.
  void Note(int error);

  const std::string address_;  // empty on the end that answers
  const size_t patience_;
  std::vector<int> sockets_;  // these five are used on the thread only
  size_t attempts_ = 0;
  SocketAddress dialled_;
  std::map<std::string, std::string> answers_;  // since the last datagram: DialAnswer by address
  int64_t connected_ns_ = 0;
  const int stop_;  // an event
  std::atomic<int64_t> received_total_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, Stream> streams_;  // by id; guarded by mutex_
  std::thread thread_;
};

// Returns true if a stream must end as silent. Its last message arrived at `message_ns`, and the
// last UDP heartbeat of its other end at `heartbeat_ns`.
bool IsSilent(int64_t now_ns, int64_t message_ns, int64_t heartbeat_ns);
// Returns the reason: "no message for 2.5s".
std::string SilenceOf(int64_t now_ns, int64_t message_ns);

}  // namespace agmm
