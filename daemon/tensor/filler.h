// Fills this node's shards, one tensor after the other, on a thread of its own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

#include "agmm/v1/peer.pb.h"
#include "daemon/tensor/store.h"

namespace agmm {

// Thread-safe; nothing blocks but the end.
class Filler {
 public:
  // `report` takes TensorFilled, on the filler's thread.
  using ReportFn = std::function<void(v1::Report)>;
  Filler(TensorStore* store, ReportFn report);
  // Stops what runs and waits for it.
  ~Filler();
  Filler(const Filler&) = delete;

  // The tensor has been placed, and stays until TensorFilled is reported or the generation has
  // ended.
  void Fill(const v1::FillShards& command);

  // Drops what waits and stops what runs, within a piece, with no report. `drained` runs once, on
  // any thread, when nothing of what came before writes any more.
  void EndGeneration(std::function<void()> drained);

 private:
  void Run();
  // CANCELLED when it was stopped.
  absl::Status FillAll(const v1::FillShards& command);

  TensorStore* const store_;
  const ReportFn report_;
  std::atomic<bool> stop_{false};  // the fill that runs
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<v1::FillShards> waiting_;
  bool running_ = false, ending_ = false;
  std::vector<std::function<void()>> drained_;  // when it does not run any more
  std::thread thread_;                          // last: uses all of the above
};

}  // namespace agmm
