// A client that floods a daemon with hand-made HTTP/2 frames.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>

namespace agmm {

// Until its destructor, begins calls on one connection after the other: calls of GetStatus, unless
// the kind names another method.
class CallFlood {
 public:
  enum class Kind {
    kReset,         // resets each at once ("rapid reset")
    kLeave,         // leaves them to the end of the connection
    kHeaders,       // full frames of headers, whose calls never end
    kFields,        // 200 fields of one byte each, whose calls never end
    kContinuation,  // one call, whose headers never end
    kHalf,          // uploads, whose first message never ends
    kUnreadJobs,    // 4,000 calls of ListJobs, whose answers are not read
    kUnreadTensor,  // calls of ReadTensor for "flood", likewise
  };
  // `endpoint`: "127.0.0.1:port", or the path of a unix socket.
  explicit CallFlood(const std::string& endpoint, Kind kind = Kind::kReset);
  // `connect` returns a connected socket, or -1.
  explicit CallFlood(std::function<int()> connect, Kind kind = Kind::kReset);
  ~CallFlood();
  CallFlood(const CallFlood&) = delete;

  int64_t calls() const { return calls_; }
  // The number of connections that the daemon has broken or the flood has closed.
  int64_t ended() const { return ended_; }

 private:
  void Run();
  // Floods until the connection breaks.
  void Flood(int fd);

  const std::function<int()> connect_;
  const Kind kind_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> calls_ = 0, ended_ = 0;
  std::thread thread_;
};

// A connected socket, or -1. `endpoint` as above.
int ConnectTo(const std::string& endpoint);

}  // namespace agmm
