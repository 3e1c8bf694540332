// Blocks of a tensor to and from its shards, wherever they are: memcpy on this node, the transport
// to others.
#pragma once

#include <functional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/tensor/store.h"
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

  // Checks the block against the tensor and writes it to every rank that holds a part of it. `data`
  // must live until `done`, which runs once, when the bytes are in place everywhere. Errors:
  // INVALID_ARGUMENT for a block that is not the tensor's; ABORTED with PEER_LOST, also when `era` is
  // over: the lease went with it, and somebody else may be writing.
  void Write(const v1::Tensor& tensor, const v1::TensorBlock& block, uint64_t era,
             std::function<void(absl::Status)> done);

  // Fills block->data for the rows and columns that `block` names. `block` must live until `done`.
  void Read(const v1::Tensor& tensor, v1::TensorBlock* block,
            std::function<void(absl::Status)> done);

 private:
  absl::StatusOr<PlacedTensor> Check(const v1::Tensor& tensor, const v1::TensorBlock& block) const;

  TensorStore* const store_;
  UcxTransport* const transport_;
  const int self_node_;
  const std::vector<int> node_of_rank_;
};

}  // namespace agmm
