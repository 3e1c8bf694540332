#include "daemon/tensor/tensor_io.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"

namespace agmm {
namespace {

// What a block has in common with one rank's shard.
struct Part {
  BulkBlock block;
  int64_t block_offset = 0;  // of its first element in TensorBlock.data, in bytes
};

// The parts of one call; done when all of them are, with the first error.
class Parts {
 public:
  explicit Parts(std::function<void(absl::Status)> done) : done_(std::move(done)) {}

  void Begin() {
    absl::MutexLock lock(&mutex_);
    ++open_;
  }
  void End(const absl::Status& status) {
    {
      absl::MutexLock lock(&mutex_);
      if (status_.ok()) status_ = status;
      if (--open_ > 0) return;
    }
    done_(status_);
  }

 private:
  const std::function<void(absl::Status)> done_;
  absl::Mutex mutex_;
  absl::Status status_;
  int open_ = 1;  // the caller's own
};

Range Intersect(const Range& a, const Range& b) {
  return {std::max(a.begin, b.begin), std::min(a.end, b.end)};
}

absl::Status CheckBlock(const PlacedTensor& placed, const v1::TensorBlock& block) {
  const Tensor& tensor = placed.tensor;
  const auto inside = [](int64_t begin, int64_t end, int64_t size) {
    return begin >= 0 && begin < end && end <= size;
  };
  if (inside(block.row_begin(), block.row_end(), tensor.rows) &&
      inside(block.col_begin(), block.col_end(), tensor.cols)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      absl::StrFormat("the block of rows [%d, %d) x columns [%d, %d) is empty or outside the "
                      "tensor, which is %d x %d",
                      block.row_begin(), block.row_end(), block.col_begin(), block.col_end(),
                      tensor.rows, tensor.cols));
}

// Of mesh rank `rank`. Empty parts have no rows.
Part PartOf(const v1::Tensor& proto, const PlacedTensor& placed, const v1::TensorBlock& block,
            Rank rank) {
  const Block shard = ShardBlock(placed.mesh, placed.tensor, 0, rank);
  const Range rows = Intersect(shard.rows, {block.row_begin(), block.row_end()});
  const Range cols = Intersect(shard.cols, {block.col_begin(), block.col_end()});
  Part part;
  part.block.tensor = proto.tensor_id();
  part.block.rank = placed.mesh.ranks[rank];
  if (rows.empty() || cols.empty()) return part;
  part.block.row_begin = rows.begin - shard.rows.begin;
  part.block.row_end = rows.end - shard.rows.begin;
  part.block.col_begin = cols.begin - shard.cols.begin;
  part.block.col_end = cols.end - shard.cols.begin;
  part.block_offset = ((rows.begin - block.row_begin()) * (block.col_end() - block.col_begin()) +
                       cols.begin - block.col_begin()) *
                      SizeOf(placed.tensor.dtype);
  return part;
}

// The part's rows in the block's data.
Rows RowsOf(const Part& part, const PlacedTensor& placed, const v1::TensorBlock& block,
            std::byte* data) {
  const int64_t element = SizeOf(placed.tensor.dtype);
  return {data + part.block_offset, part.block.row_end - part.block.row_begin,
          (part.block.col_end - part.block.col_begin) * element,
          (block.col_end() - block.col_begin()) * element};
}

void Copy(const Rows& from, const Rows& to) {
  for (int64_t row = 0; row < from.rows; ++row)
    std::memcpy(to.data + row * to.pitch_bytes, from.data + row * from.pitch_bytes, from.row_bytes);
}

absl::Status NoWay(int rank, int node) {
  return absl::FailedPreconditionError(absl::StrFormat(
      "rank %d is on node %d, and this daemon was started for a world of one node", rank, node));
}

}  // namespace

TensorIo::TensorIo(TensorStore* store, UcxTransport* transport, int self_node,
                   std::vector<int> node_of_rank)
    : store_(store),
      transport_(transport),
      self_node_(self_node),
      node_of_rank_(std::move(node_of_rank)) {}

absl::StatusOr<PlacedTensor> TensorIo::Check(const v1::Tensor& tensor,
                                             const v1::TensorBlock& block) const {
  AGMM_ASSIGN_OR_RETURN(PlacedTensor placed, FromProto(tensor.spec()));
  AGMM_RETURN_IF_ERROR(CheckBlock(placed, block));
  for (int rank : placed.mesh.ranks) {
    if (rank >= static_cast<int>(node_of_rank_.size())) {
      return absl::InvalidArgumentError(
          absl::StrFormat("tensor %d lies on rank %d; the world has %d", tensor.tensor_id(), rank,
                          node_of_rank_.size()));
    }
  }
  return placed;
}

void TensorIo::Write(const v1::Tensor& tensor, const v1::TensorBlock& block, uint64_t era,
                     std::function<void(absl::Status)> done) {
  if (era != store_->era()) {
    return done(WithReason(
        absl::AbortedError(absl::StrFormat(
            "the world changed while tensor %d was being written; repeat the whole transfer",
            tensor.tensor_id())),
        kReasonPeerLost));
  }
  const absl::StatusOr<PlacedTensor> placed = Check(tensor, block);
  if (!placed.ok()) return done(placed.status());
  const int64_t bytes = (block.row_end() - block.row_begin()) *
                        (block.col_end() - block.col_begin()) * SizeOf(placed->tensor.dtype);
  if (static_cast<int64_t>(block.data().size()) != bytes) {
    return done(absl::InvalidArgumentError(
        absl::StrFormat("the block of rows [%d, %d) x columns [%d, %d) carries %d B; %s takes %d",
                        block.row_begin(), block.row_end(), block.col_begin(), block.col_end(),
                        block.data().size(), std::string(Name(placed->tensor.dtype)), bytes)));
  }
  // Rows have no const form; nothing is written through these.
  auto* data = reinterpret_cast<std::byte*>(const_cast<char*>(block.data().data()));
  auto parts = std::make_shared<Parts>(std::move(done));
  for (Rank rank = 0; rank < placed->mesh.size(); ++rank) {
    const Part part = PartOf(tensor, *placed, block, rank);
    const Rows from = RowsOf(part, *placed, block, data);
    if (from.rows == 0) continue;
    parts->Begin();
    const int node = node_of_rank_[part.block.rank];
    if (node != self_node_) {
      if (transport_ == nullptr) {
        parts->End(NoWay(part.block.rank, node));
      } else {
        transport_->WriteBlock(node, part.block, from,
                               [parts](absl::Status status) { parts->End(status); });
      }
      continue;
    }
    const absl::StatusOr<Rows> to = store_->Resolve(self_node_, part.block, /*write=*/true);
    if (to.ok()) Copy(from, *to);
    parts->End(to.status());
  }
  parts->End(absl::OkStatus());
}

void TensorIo::Read(const v1::Tensor& tensor, v1::TensorBlock* block,
                    std::function<void(absl::Status)> done) {
  const absl::StatusOr<PlacedTensor> placed = Check(tensor, *block);
  if (!placed.ok()) return done(placed.status());
  block->mutable_data()->resize((block->row_end() - block->row_begin()) *
                                (block->col_end() - block->col_begin()) *
                                SizeOf(placed->tensor.dtype));
  auto* data = reinterpret_cast<std::byte*>(block->mutable_data()->data());
  // Each shard from one of the ranks that hold it, one of this node's where there is one.
  std::map<std::pair<int64_t, int64_t>, Rank> holders;
  for (Rank rank = 0; rank < placed->mesh.size(); ++rank) {
    const Block shard = ShardBlock(placed->mesh, placed->tensor, 0, rank);
    if (shard.empty()) continue;
    const auto [it, first] = holders.try_emplace({shard.rows.begin, shard.cols.begin}, rank);
    if (!first && node_of_rank_[placed->mesh.ranks[rank]] == self_node_) it->second = rank;
  }
  auto parts = std::make_shared<Parts>(std::move(done));
  for (const auto& [begin, rank] : holders) {
    const Part part = PartOf(tensor, *placed, *block, rank);
    const Rows to = RowsOf(part, *placed, *block, data);
    if (to.rows == 0) continue;
    parts->Begin();
    const int node = node_of_rank_[part.block.rank];
    if (node != self_node_) {
      if (transport_ == nullptr) {
        parts->End(NoWay(part.block.rank, node));
      } else {
        transport_->ReadBlock(node, part.block, to,
                              [parts](absl::Status status) { parts->End(status); });
      }
      continue;
    }
    const absl::StatusOr<Rows> from = store_->Resolve(self_node_, part.block, /*write=*/false);
    if (from.ok()) Copy(*from, to);
    parts->End(from.status());
  }
  parts->End(absl::OkStatus());
}

}  // namespace agmm
