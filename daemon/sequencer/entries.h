// Tensors: their ids, names, owners and places in the heaps. Touched on the loop only.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/sequencer/lost_tensors.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/placement.h"
#include "kernels/base/deferred.h"
#include "kernels/schedule/problem.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {

struct Entry {
  v1::Tensor tensor;
  std::vector<int> ranks;
  std::set<int> nodes;
  std::string request_key, request_body;  // of the request that made it; empty if it had no id
  std::set<int> placing;  // nodes that have not answered PlaceTensor; no lease is granted before
  absl::Status place_error;
  std::vector<Reply<v1::Tensor>> creators;
  enum class Link {
    kPut,      // made by a put that is still open; no other client sees it
    kLinked,   // found by its id, and by its name if it has one
    kUnlinked  // deleted; lives until its last lease ends
  } link = Link::kLinked;
  int holds = 0;  // holds on its memory, which counts as held while there are any
};

// Returns true if a tensor of one spec can have the contents of the other. Names of dimensions do
// not matter.
bool SameSpec(const PlacedTensor& a, const PlacedTensor& b);
// Checks the ranks of a mesh. Errors: INVALID_ARGUMENT for ranks that the world does not have, or
// with devices of two kinds; UNAVAILABLE with WORLD_INCOMPLETE while a node of the mesh is missing.
absl::Status CheckRanks(const Mesh& mesh, const Members& members);
// Checks that `session` (empty: none) may write `found` by its name. `replaces`: by another tensor,
// instead of only its contents. A session's tensors can be written by name only within that
// session. A session can rewrite the contents of a permanent tensor, which stays permanent, but
// cannot replace it. Errors: FAILED_PRECONDITION.
absl::Status CheckOwner(const v1::Tensor& found, const std::string& session, bool replaces);

// The tensors of a session, and the memory that they take on all ranks.
struct TensorUse {
  int count = 0;
  int64_t bytes = 0;
};

class Entries {
 public:
  Entries(Members* members, Placement* placement);
  ~Entries() { placement_->set_describe_tensors(nullptr); }

  // Return null: Find if no tensor, deleted or not, has the id; FindLinked if clients cannot find
  // one.
  Entry* Find(uint64_t tensor_id);
  const Entry* Find(uint64_t tensor_id) const {
    return const_cast<Entries*>(this)->Find(tensor_id);
  }
  Entry* FindLinked(uint64_t tensor_id);
  Entry* FindNamed(const std::string& name);
  // Returns the tensor that `ref` stands for. Errors: NOT_FOUND, INVALID_ARGUMENT for an empty ref.
  absl::StatusOr<uint64_t> Resolve(const v1::TensorRef& ref) const;
  // Returns the error for an id without a linked entry.
  absl::Status NotFound(uint64_t tensor_id) const;
  v1::ListTensorsResponse List(const v1::ListTensorsRequest& request) const;
  // Returns, by rank, the memory of tensors that clients may still have mapped.
  std::map<int, int64_t> HeldBytes() const;
  // Returns, by session, the tensors in memory. They include tensors of open puts, and deleted ones
  // that are still in use.
  std::map<std::string, TensorUse> UseBySession() const;
  std::map<uint64_t, Entry>& all() { return entries_; }

  // Reserves space for a new entry and sends it to the nodes. A linked entry takes its name at
  // once. Errors: ALREADY_EXISTS for a name in use.
  absl::StatusOr<Entry*> Make(const CallContext& ctx, const v1::CreateTensorRequest& request,
                              Entry::Link link);
  // Returns the entry that the request made before for the same purpose (`link`); else, for a put,
  // the entry with the same name and spec; else a new one. Errors: ALREADY_EXISTS for a request id
  // with another body, and those of Make and CheckOwner.
  absl::StatusOr<Entry*> FindOrMake(const CallContext& ctx, const v1::CreateTensorRequest& request,
                                    Entry::Link link);
  // Returns the tensor at the place that a node's clients hold or, if the tensor or its sequencer
  // is lost, an unlinked entry made for that memory. Null if other tensors have taken the place.
  Entry* FindHeld(const v1::MemoryHeld& memory);
  // Returns the entry once every node has answered PlaceTensor; else null.
  Entry* OnPlaced(int node, const v1::TensorPlaced& placed);
  // Gives the entry of a put its name.
  void LinkEntry(Entry* entry);
  // Frees the name at once. The entry stays until it is erased.
  void Unlink(Entry* entry);
  void Erase(Entry* entry);

  // Erases entries on lost nodes and entries that were not linked. All leases must have ended
  // before.
  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason,
                         Deferred* replies);
  void OnReady();
  // False between two generations, when nothing may be sent or begin.
  bool IsOpen() const { return !world_down_ && members_->Ready({}).ok(); }

 private:
  void SendPlace(const Entry& entry);
  void SendDrops();
  // Describes the largest tensors with a shard on the rank: " (W 1.00 GiB, X 512 MiB, 3 more)", and
  // how much of them is held.
  std::string DescribeLargest(int rank) const;

  Members* const members_;
  Placement* const placement_;
  std::map<uint64_t, Entry> entries_;
  LostTensors lost_;
  std::map<std::string, uint64_t> names_, requests_;
  std::vector<std::pair<int, uint64_t>> drops_;  // node, tensor: sent once the world is complete
  bool world_down_ = false;
  uint64_t next_tensor_ = 1;
};

// Called at the end of a write: the tensor has new contents, or none.
void SetContents(Entry* entry, bool ready);

}  // namespace agmm
