// Attempts to connect, made only so that a warning can say what another daemon's address answers.
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

// Describes the outcome of an attempt to reach `to`, "10.0.0.1:7100". `error` is its errno; 0:
// connected.
// "10.0.0.1:7100 did not answer (a firewall drops the packets, or the host is down)".
std::string DialAnswer(absl::string_view to, int error);

// TCP connections to several addresses at the same time.
class Dial {
 public:
  // Begins to connect, without waiting.
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

// Dials what a name stands for on a thread of its own, because the system may take long to resolve
// it.
class Dialer {
 public:
  // Waits for the attempt under way.
  ~Dialer();

  // Calls `say` with the Answers of host:port, or why it has no address, on any thread; not while
  // an attempt is under way. Not thread-safe.
  void Try(const std::string& address, std::function<void(const std::string& answers)> say);

 private:
  std::thread thread_;
  std::atomic<bool> busy_ = false;
};

}  // namespace agmm
