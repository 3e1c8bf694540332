#include "daemon/node/tensor_io.h"

#include <algorithm>
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

// The sequencer notices a daemon's death at once, and its silence a little later. Where beats still
// arrive it takes longer; then the transport's words are passed on.
const absl::Duration kReasonLimit = kSilenceLimit + kTransportGrace + absl::Milliseconds(500);

// The overlap of a piece with one rank's shard.
struct Part {
  BulkBlock block;
  int64_t piece_offset = 0;  // of its first element in the piece's data, in bytes
};

// The parts of one call; done when all of them are, with the first error.
class Parts {
 public:
  explicit Parts(std::function<void(absl::Status)> done) : done_(std::move(done)) {}

  // Adds a part, and returns the callback of its end.
  static std::function<void(absl::Status)> Next(const std::shared_ptr<Parts>& parts) {
    std::lock_guard lock(parts->mutex_);
    ++parts->open_;
    return [parts](const absl::Status& status) { parts->End(status); };
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
  int open_ = 1;  // the caller's own part counts
};

// The part of mesh rank `rank`. Empty parts have no rows.
Part PartOf(const v1::Tensor& proto, const PlacedTensor& placed, const PiecePart& piece,
            Rank rank) {
  const Block shard = ShardBlock(placed.mesh, placed.tensor, 0, rank);
  const Range rows = Intersect(shard.rows, piece.rows);
  const Range cols = Intersect(shard.cols, piece.cols);
  Part part;
  part.block.tensor = proto.tensor_id();
  part.block.rank = placed.mesh.ranks[rank];
  if (rows.empty() || cols.empty()) return part;
  part.block.row_begin = rows.begin - shard.rows.begin;
  part.block.row_end = rows.end - shard.rows.begin;
  part.block.col_begin = cols.begin - shard.cols.begin;
  part.block.col_end = cols.end - shard.cols.begin;
  part.piece_offset = piece.offset_bytes + ((rows.begin - piece.rows.begin) * piece.cols.size() +
                                            cols.begin - piece.cols.begin) *
                                               SizeOf(placed.tensor.dtype);
  return part;
}

// The part's rows in the piece's data.
Rows RowsOf(const Part& part, const PlacedTensor& placed, const PiecePart& piece, std::byte* data) {
  const int64_t element = SizeOf(placed.tensor.dtype);
  return {data + part.piece_offset, part.block.row_end - part.block.row_begin,
          (part.block.col_end - part.block.col_begin) * element, piece.cols.size() * element};
}

}  // namespace

TensorIo::TensorIo(Loop* loop, TensorStore* store, UcxTransport* transport, int self_node,
                   std::vector<int> node_of_rank)
    : loop_(loop),
      store_(store),
      transport_(transport),
      self_node_(self_node),
      node_of_rank_(std::move(node_of_rank)) {}

absl::StatusOr<TensorIo::Pieces> TensorIo::Locate(const v1::Tensor& tensor, int64_t offset_bytes,
                                                  size_t size_bytes) const {
  Pieces located;
  AGMM_ASSIGN_OR_RETURN(located.tensor, FromProto(tensor.spec()));
  const PlacedTensor& placed = located.tensor;
  for (int rank : placed.mesh.ranks) {
    if (rank >= static_cast<int>(node_of_rank_.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %d lies on rank %d; the world has %d", tensor.tensor_id(), rank,
                          node_of_rank_.size()));
    }
  }
  AGMM_ASSIGN_OR_RETURN(located.pieces,
                        PartsOfPiece(placed.tensor.rows, placed.tensor.cols, placed.tensor.dtype,
                                     offset_bytes, static_cast<int64_t>(size_bytes)));
  return located;
}

absl::Status TensorIo::CheckGeneration(uint64_t tensor_id, uint64_t generation) const {
  if (generation == store_->generation()) return absl::OkStatus();
  return WithReason(
      absl::AbortedError(absl::StrFormat("%s; repeat the whole transfer of tensor %d",
                                         store_->ended(generation).message(), tensor_id)),
      kReasonPeerLost);
}

void TensorIo::Explain(uint64_t tensor_id, uint64_t generation, absl::Status status,
                       std::function<void(absl::Status)> done) {
  if (status.ok()) return done(std::move(status));
  std::unique_lock lock(mutex_);
  const uint64_t id = next_broken_++;
  const bool wait = absl::IsAborted(status) && !stopped_;
  broken_.emplace(id, Broken{tensor_id, generation, std::move(status), std::move(done)});
  lock.unlock();
  if (!wait || store_->generation() != generation) return Answer(id);
  loop_->PostAfter(kReasonLimit, [this, id] { Answer(id); });
}

void TensorIo::Answer(uint64_t id) {
  std::unique_lock lock(mutex_);
  const auto found = broken_.extract(id);
  lock.unlock();
  if (found.empty()) return;
  const Broken& broken = found.mapped();
  const absl::Status reason = CheckGeneration(broken.tensor_id, broken.generation);
  broken.done(reason.ok() ? broken.status : reason);
}

void TensorIo::AnswerAll() {
  std::vector<uint64_t> ids;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [id, broken] : broken_) ids.push_back(id);
  }
  for (uint64_t id : ids) Answer(id);
}

void TensorIo::OnGenerationEnd() { AnswerAll(); }

void TensorIo::Stop() {
  {
    std::lock_guard lock(mutex_);
    stopped_ = true;
  }
  AnswerAll();
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
                     uint64_t generation, std::function<void(absl::Status)> done) {
  const absl::StatusOr<Pieces> located = Locate(tensor, offset_bytes, data.size());
  if (!located.ok()) return done(located.status());
  const PlacedTensor& placed = located->tensor;
  // Rows have no const form; nothing is written through these.
  auto* bytes = reinterpret_cast<std::byte*>(const_cast<char*>(data.data()));
  std::shared_lock<std::shared_mutex> kept = store_->HoldGeneration();
  if (absl::Status status = CheckGeneration(tensor.tensor_id(), generation); !status.ok()) {
    kept.unlock();
    return done(std::move(status));
  }
  auto parts = std::make_shared<Parts>(
      [this, id = tensor.tensor_id(), generation, done = std::move(done)](absl::Status status) {
        Explain(id, generation, std::move(status), done);
      });
  for (const PiecePart& piece : located->pieces) {
    for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
      const Part part = PartOf(tensor, placed, piece, rank);
      Move(/*write=*/true, part.block, RowsOf(part, placed, piece, bytes), Parts::Next(parts));
    }
  }
  // `done` may write again, and must not do so under the lock.
  kept.unlock();
  parts->End(absl::OkStatus());
}

void TensorIo::Read(const v1::Tensor& tensor, int64_t offset_bytes, absl::Span<char> data,
                    uint64_t generation, std::function<void(absl::Status)> done) {
  const absl::StatusOr<Pieces> located = Locate(tensor, offset_bytes, data.size());
  if (!located.ok()) return done(located.status());
  if (absl::Status status = CheckGeneration(tensor.tensor_id(), generation); !status.ok())
    return done(std::move(status));
  const PlacedTensor& placed = located->tensor;
  auto* bytes = reinterpret_cast<std::byte*>(data.data());
  // Each shard from one of the ranks that hold it, one of this node's where there is one.
  std::map<std::pair<int64_t, int64_t>, Rank> holders;
  for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
    const Block shard = ShardBlock(placed.mesh, placed.tensor, 0, rank);
    if (shard.empty()) continue;
    const auto [it, first] = holders.try_emplace({shard.rows.begin, shard.cols.begin}, rank);
    if (!first && node_of_rank_[placed.mesh.ranks[rank]] == self_node_) it->second = rank;
  }
  auto parts = std::make_shared<Parts>(
      [this, id = tensor.tensor_id(), generation, done = std::move(done)](absl::Status status) {
        Explain(id, generation, std::move(status), done);
      });
  for (const PiecePart& piece : located->pieces) {
    for (const auto& [begin, rank] : holders) {
      const Part part = PartOf(tensor, placed, piece, rank);
      Move(/*write=*/false, part.block, RowsOf(part, placed, piece, bytes), Parts::Next(parts));
    }
  }
  parts->End(absl::OkStatus());
}

}  // namespace agmm
