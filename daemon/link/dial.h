// Attempts to connect to another daemon's address, only to describe their outcome in a warning.
#pragma once

#include <atomic>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kernels/base/socket_address.h"

namespace agmm {

// Describes the outcome of an attempt to reach `to`, "10.0.0.1:7100". `error` is its errno, 0 if it
// connected. "10.0.0.1:7100 did not answer (a firewall drops the packets, or the host is down)".
std::string DialAnswer(absl::string_view to, int error);

// TCP connections to several addresses at the same time.
class Dial {
 public:
  // Starts to connect, without waiting.
  explicit Dial(std::vector<SocketAddress> to);
  ~Dial();
  Dial(const Dial&) = delete;

  // Returns the DialAnswer of each address, joined by "; ", once all are known or `patience` is
  // over.
  std::string Answers(absl::Duration patience);

 private:
  struct Attempt {
    SocketAddress to;
    int fd = -1;
    int error = 0;
  };
  std::vector<Attempt> attempts_;
};

// Dials the addresses of a name on its own thread, because the system may take long to resolve the
// name.
class Dialer {
 public:
  // Waits for the attempt in progress.
  ~Dialer();

  // Calls `say` on any thread, with the Answers of host:port or the reason why it has no address.
  // Does nothing while an attempt is in progress. Not thread-safe.
  void Try(const std::string& address, std::function<void(const std::string& answers)> say);

 private:
  std::thread thread_;
  std::atomic<bool> busy_ = false;
};

}  // namespace agmm
