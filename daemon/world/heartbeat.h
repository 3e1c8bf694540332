// One thread that makes streams beat and judges their silence, whatever the control thread is
// doing.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace agmm {

class Pulse {
 public:
  virtual ~Pulse() = default;
  // Twice a kHeartbeatPeriod: ends the stream when nothing came for kSilenceLimit. Left out when
  // this machine itself slept: then what has come may still wait to be read.
  virtual void Judge(int64_t now_ns) = 0;
  // After that: sends a heartbeat where one is `due`, every other time, or has something to tell.
  virtual void Beat(bool due) = 0;
};

// Thread-safe. Sleeps while it has nobody to watch.
class Heartbeat {
 public:
  Heartbeat();
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;

  // Beats `pulse` as long as somebody else holds it.
  void Watch(std::weak_ptr<Pulse> pulse);

 private:
  void Run();

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::weak_ptr<Pulse>> pulses_;
  bool stopping_ = false;
  std::thread thread_;
};

}  // namespace agmm
