// Pieces of a tensor's contents to and from its shards, wherever they are: memcpy on this node, the
// transport to others.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/tensor/store.h"
#include "proto/convert/blocks.h"
#include "proto/convert/problem.h"

namespace agmm {

// Thread-safe.
class TensorIo {
 public:
  // `node_of_rank` by world rank; `transport` null in a world of one node.
  TensorIo(TensorStore* store, UcxTransport* transport, int self_node,
           std::vector<int> node_of_rank);

  // Names this generation; taken before a transfer asks for its lease.
  uint64_t era() const { return store_->era(); }

  // OK in the generation `era`, afterwards ABORTED with PEER_LOST: the leases of then are void.
  absl::Status CheckEra(const v1::Tensor& tensor, uint64_t era) const;

  // Writes `data` as bytes [offset_bytes, offset_bytes + its size) of the contents (row-major
  // without padding, whole elements) to every rank that holds a part of them. `data` must live
  // until `done`, which runs once, when the bytes are in place everywhere. Errors: INVALID_ARGUMENT
  // for bytes that are not the tensor's; ABORTED with PEER_LOST, also when `era` is over: the lease
  // went with it, and somebody else may be writing.
  void Write(const v1::Tensor& tensor, int64_t offset_bytes, absl::string_view data, uint64_t era,
             std::function<void(absl::Status)> done);

  // Fills `data` with the bytes of the contents from offset_bytes on. It must live until `done`.
  void Read(const v1::Tensor& tensor, int64_t offset_bytes, absl::Span<char> data,
            std::function<void(absl::Status)> done);

 private:
  // A tensor, and which of its elements a run of its contents is.
  struct Pieces {
    PlacedTensor tensor;
    absl::InlinedVector<PiecePart, 3> pieces;
  };
  absl::StatusOr<Pieces> Locate(const v1::Tensor& tensor, int64_t offset_bytes,
                                size_t size_bytes) const;
  // Writes `rows` to the block of a shard, or reads them from there; on this node before it
  // returns.
  void Move(bool write, const BulkBlock& block, const Rows& rows,
            std::function<void(absl::Status)> done);

  TensorStore* const store_;
  UcxTransport* const transport_;
  const int self_node_;
  const std::vector<int> node_of_rank_;
};

}  // namespace agmm
