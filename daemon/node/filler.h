// Fills this node's shards, one tensor after the other, on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "agmm/v1/peer.pb.h"
#include "daemon/node/store.h"
#include "kernels/base/loop.h"

namespace agmm {

// Thread-safe. Only the destructor blocks.
class Filler {
 public:
  // `report` takes TensorFilled, on the filler's thread.
  using ReportFn = std::function<void(v1::Report)>;
  Filler(TensorStore* store, ReportFn report);
  // Stops the running fill and waits for its end.
  ~Filler() { ++local_generation_; }
  Filler(const Filler&) = delete;

  // RESOURCE_EXHAUSTED if the thread could not be started; then no command may be given.
  const absl::Status& status() const { return loop_.status(); }

  // Requires that the tensor has been placed, and stays placed until TensorFilled is reported or
  // the generation has ended.
  void Fill(const v1::FillShards& command);

  // Drops the waiting fills and stops the running one after its current piece, without a report.
  // `drained` runs on the filler's thread, once no earlier fill writes.
  void EndGeneration(std::function<void()> drained);

 private:
  void Run(const v1::FillShards& command, uint64_t local_generation);
  // CANCELLED once `local_generation` is over.
  absl::Status FillAll(const v1::FillShards& command, uint64_t local_generation);

  TensorStore* const store_;
  const ReportFn report_;
  std::atomic<uint64_t> local_generation_{0};  // fills of earlier ones stop
  Loop loop_{"fills"};                         // last: its tasks use all of the above
};

}  // namespace agmm
