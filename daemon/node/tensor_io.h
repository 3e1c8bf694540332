// Moves pieces of a tensor's contents to and from its shards: directly in this node's heaps, and by
// the transport on other nodes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/node/store.h"
#include "daemon/transport/ucx_transport.h"
#include "kernels/base/loop.h"
#include "proto/convert/blocks.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

// Thread-safe.
class TensorIo {
 public:
  // `node_of_rank` is by world rank; `transport` is null in a world of one node.
  TensorIo(Loop* loop, TensorStore* store, UcxTransport* transport, int self_node,
           std::vector<int> node_of_rank);

  // Like TensorStore::local_generation; to be read before a transfer requests its lease.
  uint64_t local_generation() const { return store_->local_generation(); }

  // OK until `local_generation` ends, then ABORTED with PEER_LOST, which says why it ended: its
  // leases are void.
  absl::Status CheckGeneration(uint64_t tensor_id, uint64_t generation) const;
  // Answers the transfers that wait in Explain. To be called when the store's generation has ended.
  void OnGenerationEnd();
  // From now on nothing waits in Explain. To be called when no further generation will end.
  void Stop();

  // Writes `data` as bytes [offset_bytes, offset_bytes + its size) of the contents (row-major
  // without padding, whole elements) to every rank that holds a part of them. `data` must live
  // until `done`, which runs once, when the bytes are in place everywhere. Errors: INVALID_ARGUMENT
  // for bytes outside the tensor; ABORTED with PEER_LOST, also if `local_generation` has ended,
  // because the lease ended with it and another transfer may be writing.
  void Write(const v1::Tensor& tensor, int64_t offset_bytes, absl::string_view data,
             uint64_t local_generation, std::function<void(absl::Status)> done);

  // Fills `data` with the bytes of the contents from offset_bytes on. It must live until `done`.
  // Errors: those of Write, and those of the store that holds the bytes.
  void Read(const v1::Tensor& tensor, int64_t offset_bytes, absl::Span<char> data,
            uint64_t local_generation, std::function<void(absl::Status)> done);

  // Passes `status`, with which a transfer ended, to `done`. If `local_generation` has ended, the
  // reason for that replaces an error. For ABORTED it waits for that end: when a node is lost, the
  // others renew their connections, and a transfer may notice this first. It could only blame a
  // healthy node, while the sequencer knows which node was lost.
  void Explain(uint64_t tensor_id, uint64_t local_generation, absl::Status status,
               std::function<void(absl::Status)> done);

 private:
  // A tensor, and the elements that a range of its contents covers.
  struct Located {
    PlacedTensor tensor;
    absl::InlinedVector<PieceRect, 3> rects;
  };
  absl::StatusOr<Located> Locate(const v1::Tensor& tensor, int64_t offset_bytes,
                                 size_t size_bytes) const;
  // Writes `rows` to the block of a shard, or reads them from it. Calls `done` before it returns if
  // the shard is on this node.
  void Move(bool write, const BulkBlock& block, const Rows& rows,
            std::function<void(absl::Status)> done);

  struct Broken {
    uint64_t tensor_id, local_generation;
    absl::Status status;
    std::function<void(absl::Status)> done;
  };
  void Answer(uint64_t id);

  Loop* const loop_;
  TensorStore* const store_;
  UcxTransport* const transport_;
  const int self_node_;
  const std::vector<int> node_of_rank_;
  std::mutex mutex_;  // guards what follows
  std::map<uint64_t, Broken> broken_;
  uint64_t next_broken_ = 0;
  bool stopped_ = false;
};

}  // namespace agmm
