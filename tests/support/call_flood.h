// A client that floods a daemon with HTTP/2 of its own making.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>

namespace agmm {

// Begins calls of GetStatus and resets each at once ("rapid reset"), on one connection after the
// other, until the destructor.
class CallFlood {
 public:
  // `endpoint`: "127.0.0.1:port", or the path of a unix socket.
  explicit CallFlood(const std::string& endpoint);
  ~CallFlood();
  CallFlood(const CallFlood&) = delete;

  int64_t calls() const { return calls_; }
  // How often the daemon has broken the connection.
  int64_t broken() const { return broken_; }

 private:
  void Run();
  // Until the connection breaks.
  void Flood(int fd);

  const std::string endpoint_;
  std::atomic<bool> stopping_ = false;
  std::atomic<int64_t> calls_ = 0, broken_ = 0;
  std::thread thread_;
};

// A connected socket, or -1. `endpoint` as above.
int ConnectTo(const std::string& endpoint);

}  // namespace agmm
