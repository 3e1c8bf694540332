// Fills this node's shards, one tensor after the other, on its own thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/time/clock.h"
#include "agmm/v1/peer.pb.h"
#include "daemon/node/store.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/loop.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {

// Thread-safe. Only the destructor blocks.
class Filler {
 public:
  // `report` takes TensorFilled, on the filler's thread.
  using ReportFn = std::function<void(v1::Report)>;
  Filler(TensorStore* store, ReportFn report) : store_(store), report_(std::move(report)) {}
  // Stops the running fill and waits for its end.
  ~Filler() { ++local_generation_; }
  Filler(const Filler&) = delete;

  // RESOURCE_EXHAUSTED if the thread could not be started; then no command may be given.
  const absl::Status& status() const { return loop_.status(); }

  // Requires that the tensor has been placed, and stays placed until TensorFilled is reported or
  // the generation has ended.
  void Fill(const v1::FillShards& command) {
    loop_.Post([this, command, local_generation = local_generation_.load()] {
      Run(command, local_generation);
    });
  }

  // Drops the waiting fills and stops the running one after its current piece, without a report.
  // `drained` runs on the filler's thread, once no earlier fill writes.
  void EndGeneration(std::function<void()> drained) {
    ++local_generation_;
    loop_.Post(std::move(drained));
  }

 private:
  void Run(const v1::FillShards& command, uint64_t local_generation) {
    if (local_generation != local_generation_) return;
    v1::Report report;
    report.mutable_tensor_filled()->set_tensor_id(command.tensor_id());
    *report.mutable_tensor_filled()->mutable_error() = ToProto(FillAll(command, local_generation));
    // A report that is sent here comes before `drained`, so it cannot be mistaken for one of the
    // next generation.
    if (local_generation == local_generation_) report_(std::move(report));
  }
  // CANCELLED once `local_generation` is over.
  absl::Status FillAll(const v1::FillShards& command, uint64_t local_generation) {
    AGMM_ASSIGN_OR_RETURN(const std::vector<LocalShard> shards,
                          store_->Shards(command.tensor_id()));
    AGMM_ASSIGN_OR_RETURN(const FillSpec fill, FromProto(command.fill()));
    const auto stop = [&] {
      while (AGMM_FAILPOINT("filler.stuck") && local_generation == local_generation_)
        absl::SleepFor(absl::Milliseconds(1));
      return local_generation != local_generation_;
    };
    for (const LocalShard& shard : shards) {
      AGMM_RETURN_IF_ERROR(CheckFill(fill, shard.dtype));
      const int64_t first = shard.rows.begin * shard.tensor_cols + shard.cols.begin;
      AGMM_RETURN_IF_ERROR(
          shard.heap->Fill(shard.place(), fill, shard.dtype, first, shard.tensor_cols, stop));
    }
    return absl::OkStatus();
  }

  TensorStore* const store_;
  const ReportFn report_;
  std::atomic<uint64_t> local_generation_{0};  // fills of earlier ones stop
  Loop loop_{"fills"};                         // last: its tasks use all of the above
};

}  // namespace agmm
