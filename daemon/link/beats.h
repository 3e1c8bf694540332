// Signs of life of the nodes beside their streams: small datagrams, sent and answered by a thread
// that does nothing else. What delays gRPC's threads, such as a flood of clients' calls, delays no
// beat, and so loses no node. Where UDP does not get through, the streams' own heartbeats remain.
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
// (JoinProof::BeatKey) that both ends know; a beat carries a keyed hash. Thread-safe.
// Without a thread for it neither end can be made: RESOURCE_EXHAUSTED.
class Beats {
 public:
  // Makes the sequencer's end; takes over `sockets`, bound to the peer port.
  static absl::StatusOr<std::unique_ptr<Beats>> Answer(std::vector<int> sockets);
  // Makes another daemon's end, which asks at `address` (host:port) while a stream lives.
  // Logs once that none of its first `patience` connections was answered.
  static absl::StatusOr<std::unique_ptr<Beats>> Ask(const std::string& address,
                                                    size_t patience = 5);
  ~Beats();
  Beats(const Beats&) = delete;

  // A stream with this key lives, until End.
  void Begin(const std::string& key);
  void End(const std::string& key);
  // When the other end of this stream was last heard, on the monotonic clock; 0: never.
  int64_t heard_ns(const std::string& key) const;
  // Beats of all streams that were heard.
  int64_t heard_total() const { return heard_total_; }

 private:
  struct Stream {
    std::string key;
    uint64_t sent = 0, received = 0;  // numbers of the last beats
    int64_t heard_ns = 0;
  };

  Beats(std::vector<int> sockets, std::string address, size_t patience);
  static absl::StatusOr<std::unique_ptr<Beats>> Start(std::unique_ptr<Beats> beats);
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
  std::map<std::string, std::string> answers_;  // since the last beat: DialAnswer by address
  int64_t connected_ns_ = 0;
  const int stop_;  // an event
  std::atomic<int64_t> heard_total_ = 0;
  mutable std::mutex mutex_;
  std::map<std::string, Stream> streams_;  // by id; guarded by mutex_
  std::thread thread_;
};

// True if a stream that last received a message at `message_ns`, and whose other end last beat at
// `beat_ns`, is to be ended as silent.
bool IsSilent(int64_t now_ns, int64_t message_ns, int64_t beat_ns);
// Why it is ended: "no message for 2.5s".
std::string SilenceOf(int64_t now_ns, int64_t message_ns);

}  // namespace agmm
