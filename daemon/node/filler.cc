#include "daemon/node/filler.h"

#include <algorithm>
#include <utility>

#include "absl/time/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/fill.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {
// Elements between two checks of whether to stop: a fraction of a millisecond.
constexpr int64_t kPiece = 1 << 16;
}  // namespace

Filler::Filler(TensorStore* store, ReportFn report) : store_(store), report_(std::move(report)) {}

void Filler::Fill(const v1::FillShards& command) {
  loop_.Post([this, command, generation = generation_.load()] { Run(command, generation); });
}

void Filler::EndGeneration(std::function<void()> drained) {
  ++generation_;
  loop_.Post(std::move(drained));
}

void Filler::Run(const v1::FillShards& command, uint64_t generation) {
  if (generation != generation_) return;
  v1::Report report;
  report.mutable_tensor_filled()->set_tensor_id(command.tensor_id());
  *report.mutable_tensor_filled()->mutable_error() = ToProto(FillAll(command, generation));
  // A report that leaves here comes before `drained`, so that it cannot be taken for one of the
  // next generation.
  if (generation == generation_) report_(std::move(report));
}

absl::Status Filler::FillAll(const v1::FillShards& command, uint64_t generation) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<LocalShard> shards, store_->Shards(command.tensor_id()));
  for (const LocalShard& shard : shards) {
    AGMM_RETURN_IF_ERROR(CheckFill(command.fill(), shard.dtype));
    for (int64_t row = 0; row < shard.rows.size(); ++row) {
      const int64_t index = (shard.rows.begin + row) * shard.tensor_cols + shard.cols.begin;
      std::byte* const to = shard.data + row * shard.pitch_bytes;
      const int64_t begin = shard.offset_bytes + row * shard.pitch_bytes;
      shard.heap->CommitPages(
          {begin, begin + shard.pitch_bytes},
          {shard.offset_bytes, shard.offset_bytes + shard.rows.size() * shard.pitch_bytes});
      for (int64_t col = 0; col < shard.cols.size(); col += kPiece) {
        while (AGMM_FAILPOINT("filler.stuck") && generation == generation_)
          absl::SleepFor(absl::Milliseconds(1));
        if (generation != generation_) return absl::CancelledError("the generation has ended");
        FillValues(command.fill(), shard.dtype, index + col,
                   std::min(kPiece, shard.cols.size() - col), to + col * SizeOf(shard.dtype));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace agmm
