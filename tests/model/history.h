// The order of all that happens now, and, for a stretch of it, which event waits it needs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/ordering.h"

namespace model {

// A place in a stream: behind its `operation`-th of the `operations` with accesses of a stretch.
struct StretchPlace {
  int stream = 0;
  uint64_t operation = 0, operations = 0;
};

// An event wait that adds an order.
struct WaitVerdict {
  StretchPlace waits, awaited;
  bool needed = false;  // without it two operations race
};

// Hands everything on to an Ordering, and writes it down while a stretch is recorded. Not
// thread-safe: under the model's lock.
class History {
 public:
  Ordering& now() { return now_; }
  const Ordering& now() const { return now_; }

  void BeginStream(int stream);
  [[nodiscard]] std::string Add(int stream, const std::string& name,
                                const std::vector<Access>& accesses,
                                std::shared_ptr<const Captured> awaited);
  std::shared_ptr<const Captured> Capture(int stream, const std::string& name);
  void HostSaw(std::shared_ptr<const Captured> captured);
  void Forget(uint64_t address, int64_t bytes);
  void ForgetStream(int stream);

  bool recording() const { return start_ != nullptr; }
  void Record();
  // Ends the stretch. Plays it again once for each wait that adds an order, without that wait.
  std::vector<WaitVerdict> Verdicts();

 private:
  struct Event {
    enum class Kind { kBegin, kAdd, kCapture, kHostSaw, kForget, kForgetStream } kind;
    int stream = 0;
    std::string name;
    std::vector<Access> accesses;
    std::shared_ptr<const Captured> captured;
  };
  void Write(Event event);
  // The first race of the stretch, from `start_` on; "" if there is none.
  std::string Replay() const;

  Ordering now_;
  std::unique_ptr<Ordering> start_;  // while recording
  std::vector<Event> events_;
};

}  // namespace model
