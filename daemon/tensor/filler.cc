#include "daemon/tensor/filler.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/tensor/fill.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/status.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {
// Between two looks at whether to stop: a fraction of a millisecond.
constexpr int64_t kPiece = 1 << 16;
}  // namespace

Filler::Filler(TensorStore* store, ReportFn report)
    : store_(store), report_(std::move(report)), thread_([this] { Run(); }) {}

Filler::~Filler() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
    stop_ = true;
    wake_.notify_one();
  }
  thread_.join();
}

void Filler::Fill(const v1::FillShards& command) {
  std::lock_guard lock(mutex_);
  waiting_.push_back(command);
  wake_.notify_one();
}

void Filler::EndGeneration(std::function<void()> drained) {
  {
    std::lock_guard lock(mutex_);
    waiting_.clear();
    if (running_) {
      stop_ = true;
      drained_.push_back(std::move(drained));
      return;
    }
  }
  drained();
}

void Filler::Run() {
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [this] { return ending_ || !waiting_.empty(); });
    if (ending_) return;
    const v1::FillShards command = std::move(waiting_.front());
    waiting_.pop_front();
    running_ = true;
    lock.unlock();
    const absl::Status filled = FillAll(command);
    v1::Report report;
    report.mutable_tensor_filled()->set_tensor_id(command.tensor_id());
    *report.mutable_tensor_filled()->mutable_error() = ToProto(filled);
    // One that ended by itself while it was told to stop is of the generation that is over, too. A
    // report leaves while this still counts as running: nobody drains before it, so it cannot be
    // taken for one of the next generation.
    if (!stop_) report_(std::move(report));
    lock.lock();
    running_ = false;
    if (!ending_) stop_ = false;
    const std::vector<std::function<void()>> drained = std::exchange(drained_, {});
    lock.unlock();
    for (const auto& call : drained) call();
    lock.lock();
  }
}

absl::Status Filler::FillAll(const v1::FillShards& command) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<LocalShard> shards, store_->Shards(command.tensor_id()));
  for (const LocalShard& shard : shards) {
    AGMM_RETURN_IF_ERROR(CheckFill(command.fill(), shard.dtype));
    for (int64_t row = 0; row < shard.rows.size(); ++row) {
      const int64_t index = (shard.rows.begin + row) * shard.tensor_cols + shard.cols.begin;
      std::byte* const to = shard.data + row * shard.pitch_bytes;
      const int64_t begin = shard.offset_bytes + row * shard.pitch_bytes;
      shard.heap->Back(
          {begin, begin + shard.pitch_bytes},
          {shard.offset_bytes, shard.offset_bytes + shard.rows.size() * shard.pitch_bytes});
      for (int64_t col = 0; col < shard.cols.size(); col += kPiece) {
        while (AGMM_FAILPOINT("filler.stuck") && !stop_) absl::SleepFor(absl::Milliseconds(1));
        if (stop_) return absl::CancelledError("the generation has ended");
        FillValues(command.fill(), shard.dtype, index + col,
                   std::min(kPiece, shard.cols.size() - col), to + col * SizeOf(shard.dtype));
      }
    }
  }
  return absl::OkStatus();
}

}  // namespace agmm
