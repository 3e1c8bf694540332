#include "daemon/node/filler.h"

#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {

Filler::Filler(TensorStore* store, ReportFn report) : store_(store), report_(std::move(report)) {}

void Filler::Fill(const v1::FillShards& command) {
  loop_.Post([this, command, local_generation = local_generation_.load()] {
    Run(command, local_generation);
  });
}

void Filler::EndGeneration(std::function<void()> drained) {
  ++local_generation_;
  loop_.Post(std::move(drained));
}

void Filler::Run(const v1::FillShards& command, uint64_t local_generation) {
  if (local_generation != local_generation_) return;
  v1::Report report;
  report.mutable_tensor_filled()->set_tensor_id(command.tensor_id());
  *report.mutable_tensor_filled()->mutable_error() = ToProto(FillAll(command, local_generation));
  // A report that is sent here comes before `drained`, so it cannot be mistaken for one of the next
  // generation.
  if (local_generation == local_generation_) report_(std::move(report));
}

absl::Status Filler::FillAll(const v1::FillShards& command, uint64_t local_generation) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<LocalShard> shards, store_->Shards(command.tensor_id()));
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

}  // namespace agmm
