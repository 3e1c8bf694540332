#include "daemon/node/tensor_io.h"

#include <map>
#include <memory>
#include <mutex>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "daemon/link/protocol.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "kernels/base/status.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {

// The sequencer notices a daemon's death at once, and its silence a little later. While UDP
// heartbeats still arrive it takes longer; then the transport's own error is reported.
const absl::Duration kReasonLimit = kSilenceLimit + kTransportGrace + absl::Milliseconds(500);

// The overlap of a rectangle of a piece with one rank's shard: where it is in the shard, and its
// rows in the piece's data. An empty overlap has no rows.
struct Overlap {
  BulkBlock block;
  Rows rows;
};

// The moves of one call. It is done when all of them are done, with the first error.
class PendingMoves {
 public:
  explicit PendingMoves(std::function<void(absl::Status)> done) : done_(std::move(done)) {}

  // Adds a move, and returns the callback for its end.
  static std::function<void(absl::Status)> Next(const std::shared_ptr<PendingMoves>& moves) {
    std::lock_guard lock(moves->mutex_);
    ++moves->open_;
    return [moves](const absl::Status& status) { moves->End(status); };
  }
  void End(const absl::Status& status) {
    {
      std::lock_guard lock(mutex_);
      if (status_.ok()) status_ = status;
      if (--open_ > 0) return;
    }
    done_(status_);
  }

 private:
  const std::function<void(absl::Status)> done_;
  std::mutex mutex_;
  absl::Status status_;
  int open_ = 1;  // includes the caller's own End
};

// Returns the overlap with the shard of mesh rank `rank`.
Overlap OverlapOf(const v1::Tensor& proto, const PlacedTensor& placed, const PieceRect& rect,
                  Rank rank, std::byte* data) {
  const Block shard = ShardBlock(placed.mesh, placed.tensor, 0, rank);
  const Range rows = Intersect(shard.rows, rect.rows);
  const Range cols = Intersect(shard.cols, rect.cols);
  Overlap overlap;
  overlap.block.tensor = proto.tensor_id();
  overlap.block.rank = placed.mesh.ranks[rank];
  if (rows.empty() || cols.empty()) return overlap;
  overlap.block.row_begin = rows.begin - shard.rows.begin;
  overlap.block.row_end = rows.end - shard.rows.begin;
  overlap.block.col_begin = cols.begin - shard.cols.begin;
  overlap.block.col_end = cols.end - shard.cols.begin;
  const int64_t element = SizeOf(placed.tensor.dtype);
  const int64_t first =
      (rows.begin - rect.rows.begin) * rect.cols.size() + cols.begin - rect.cols.begin;
  overlap.rows = {data + rect.offset_bytes + first * element, rows.size(), cols.size() * element,
                  rect.cols.size() * element};
  return overlap;
}

}  // namespace

TensorIo::TensorIo(Loop* loop, TensorStore* store, UcxTransport* transport, int self_node,
                   std::vector<int> node_of_rank)
    : loop_(loop),
      store_(store),
      transport_(transport),
      self_node_(self_node),
      node_of_rank_(std::move(node_of_rank)) {}

absl::StatusOr<TensorIo::Located> TensorIo::Locate(const v1::Tensor& tensor, int64_t offset_bytes,
                                                   size_t size_bytes) const {
  Located located;
  AGMM_ASSIGN_OR_RETURN(located.tensor, FromProto(tensor.spec()));
  const PlacedTensor& placed = located.tensor;
  for (int rank : placed.mesh.ranks) {
    if (rank >= static_cast<int>(node_of_rank_.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %d lies on rank %d, but the world has ranks 0 to %d",
                          tensor.tensor_id(), rank, node_of_rank_.size() - 1));
    }
  }
  AGMM_ASSIGN_OR_RETURN(located.rects,
                        RectsOfPiece(placed.tensor.rows, placed.tensor.cols, placed.tensor.dtype,
                                     offset_bytes, static_cast<int64_t>(size_bytes)));
  return located;
}

absl::Status TensorIo::CheckGeneration(uint64_t tensor_id, uint64_t local_generation) const {
  if (local_generation == store_->local_generation()) return absl::OkStatus();
  return WithReason(
      absl::AbortedError(absl::StrFormat("%s; repeat the whole transfer of tensor %d",
                                         store_->ended(local_generation).message(), tensor_id)),
      kReasonPeerLost);
}

void TensorIo::Explain(uint64_t tensor_id, uint64_t local_generation, absl::Status status,
                       std::function<void(absl::Status)> done) {
  if (status.ok()) return done(std::move(status));
  std::unique_lock lock(mutex_);
  const uint64_t id = next_broken_++;
  const bool wait = absl::IsAborted(status) && !stopped_;
  broken_.emplace(id, Broken{tensor_id, local_generation, std::move(status), std::move(done)});
  lock.unlock();
  if (!wait || store_->local_generation() != local_generation) return Answer(id);
  loop_->PostAfter(kReasonLimit, [this, id] { Answer(id); });
}

void TensorIo::Answer(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = broken_.extract(id);
  lock.unlock();
  if (found.empty()) return;
  const Broken& broken = found.mapped();
  const absl::Status reason = CheckGeneration(broken.tensor_id, broken.local_generation);
  broken.done(reason.ok() ? broken.status : reason);
}

void TensorIo::OnGenerationEnd() {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, broken] : broken_) ids.push_back(id);
  }
  for (uint64_t id : ids) Answer(id);
}

void TensorIo::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  OnGenerationEnd();
}

void TensorIo::Move(bool write, const BulkBlock& block, const Rows& rows,
                    std::function<void(absl::Status)> done) {
  if (rows.rows == 0) return done(absl::OkStatus());
  const int node = node_of_rank_[block.rank];
  if (node != self_node_) {
    if (write) return transport_->WriteBlock(node, block, rows, std::move(done));
    return transport_->ReadBlock(node, block, rows, std::move(done));
  }
  const absl::StatusOr<Rows> shard = store_->Resolve(self_node_, block, write);
  if (AGMM_FAILPOINT("tensor_io.slow_copy")) absl::SleepFor(absl::Milliseconds(100));
  if (!shard.ok()) return done(shard.status());
  done(write ? WriteRows(rows, *shard) : ReadRows(*shard, rows));
}

void TensorIo::Write(const v1::Tensor& tensor, int64_t offset_bytes, absl::string_view data,
                     uint64_t local_generation, std::function<void(absl::Status)> done) {
  const absl::StatusOr<Located> located = Locate(tensor, offset_bytes, data.size());
  if (!located.ok()) return done(located.status());
  const PlacedTensor& placed = located->tensor;
  // Rows cannot be const; nothing is written through these.
  auto* bytes = reinterpret_cast<std::byte*>(const_cast<char*>(data.data()));
  std::shared_lock<std::shared_mutex> kept = store_->HoldGeneration();
  if (absl::Status status = CheckGeneration(tensor.tensor_id(), local_generation); !status.ok()) {
    kept.unlock();
    return done(std::move(status));
  }
  auto moves = std::make_shared<PendingMoves>([this, id = tensor.tensor_id(), local_generation,
                                               done = std::move(done)](absl::Status status) {
    Explain(id, local_generation, std::move(status), done);
  });
  for (const PieceRect& rect : located->rects) {
    for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
      const Overlap overlap = OverlapOf(tensor, placed, rect, rank, bytes);
      Move(/*write=*/true, overlap.block, overlap.rows, PendingMoves::Next(moves));
    }
  }
  // `done` may write again, and must not do so under the lock.
  kept.unlock();
  moves->End(absl::OkStatus());
}

void TensorIo::Read(const v1::Tensor& tensor, int64_t offset_bytes, absl::Span<char> data,
                    uint64_t local_generation, std::function<void(absl::Status)> done) {
  const absl::StatusOr<Located> located = Locate(tensor, offset_bytes, data.size());
  if (!located.ok()) return done(located.status());
  if (absl::Status status = CheckGeneration(tensor.tensor_id(), local_generation); !status.ok())
    return done(std::move(status));
  const PlacedTensor& placed = located->tensor;
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  // Reads each shard from one of the ranks that hold it, preferably one of this node.
  std::map<std::pair<int64_t, int64_t>, Rank> holders;
  for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
    const Block shard = ShardBlock(placed.mesh, placed.tensor, 0, rank);
    if (shard.empty()) continue;
    const auto [it, first] = holders.try_emplace({shard.rows.begin, shard.cols.begin}, rank);
    if (!first && node_of_rank_[placed.mesh.ranks[rank]] == self_node_) it->second = rank;
  }
  auto moves = std::make_shared<PendingMoves>([this, id = tensor.tensor_id(), local_generation,
                                               done = std::move(done)](absl::Status status) {
    Explain(id, local_generation, std::move(status), done);
  });
  for (const PieceRect& rect : located->rects) {
    for (const auto& [begin, rank] : holders) {
      const Overlap overlap = OverlapOf(tensor, placed, rect, rank, bytes);
      Move(/*write=*/false, overlap.block, overlap.rows, PendingMoves::Next(moves));
    }
  }
  moves->End(absl::OkStatus());
}

}  // namespace agmm
