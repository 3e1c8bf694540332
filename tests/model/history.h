// The order of all operations, and the event waits that a recorded stretch of them needs.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/history_calls.h"
#include "tests/model/ordering.h"

namespace model {

// Passes everything on to an Ordering, and records it during a stretch. Not thread-safe: used under
// the model's lock.
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

  // Like the functions of history_calls.h.
  void Record();
  bool recording() const { return recording_; }
  std::vector<agmmModelWait> Waits();
  agmmModelLoss Without(int wait) const;

 private:
  struct Event {
    enum class Kind { kBegin, kAdd, kCapture, kHostSaw, kForget, kForgetStream } kind;
    int stream = 0;
    std::string name;
    std::vector<Access> accesses;
    std::shared_ptr<const Captured> captured;
  };
  void Write(Event event);
  // Replays the stretch without some waits: see Ordering::leaves_out. Calls `added` with the clock
  // of each operation that touches memory. Returns the first race, or "".
  std::string Replay(std::function<bool(const EventWait&)> leaves_out,
                     const std::function<void(const Clock&)>& added) const;

  Ordering now_;
  bool recording_ = false;
  Ordering start_;  // of the stretch
  std::vector<Event> events_;
  std::vector<Clock> clocks_;     // of the stretch's operations that touch memory
  std::vector<bool> adds_order_;  // by wait: EventWait::adds_order
};

}  // namespace model
