// The list of a daemon's mappings, and what may be mapped.
#include <algorithm>
#include <utility>

#include "absl/strings/str_format.h"
#include "daemon/rpc/map_tensor.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

constexpr size_t kMaxMappings = 256;

}  // namespace

Mappings::Mappings(const TransferParts& parts, TensorStore* store,
                   std::vector<std::string> node_names, absl::Duration silence)
    : parts_(parts), store_(store), node_names_(std::move(node_names)), silence_(silence) {}

absl::Status Mappings::CheckPlace(const v1::Tensor& tensor, bool writable) const {
  AGMM_ASSIGN_OR_RETURN(const PlacedTensor placed, FromProto(tensor.spec()));
  AGMM_ASSIGN_OR_RETURN(const auto shards, store_->Shards(tensor.tensor_id()));
  for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
    if (ShardBlock(placed.mesh, placed.tensor, 0, rank).empty()) continue;
    const int world_rank = placed.mesh.ranks[rank];
    const bool here = std::any_of(shards.begin(), shards.end(),
                                  [&](const auto& shard) { return shard.rank == world_rank; });
    if (here == writable) continue;
    if (here) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("tensor %d is written in place where all its shards are, and that of rank "
                        "%d is on node %s; "
                        "use upload",
                        tensor.tensor_id(), world_rank, node_names_[world_rank]));
  }
  if (writable) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "tensor %d has no shard on this daemon's devices; ask another daemon, or read it",
      tensor.tensor_id()));
}

absl::Status Mappings::Add(OpenMapping* key, std::weak_ptr<OpenMapping> mapping) {
  std::lock_guard lock(mutex_);
  if (open_.size() >= kMaxMappings) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d mappings are open at this daemon, or not let go of, as many as it takes; end one first",
        open_.size()));
  }
  open_[key] = {"", std::move(mapping)};
  return absl::OkStatus();
}

void Mappings::SetSession(OpenMapping* key, const std::string& session_id) {
  std::lock_guard lock(mutex_);
  // One that is just ending may have gone from here.
  if (const auto it = open_.find(key); it != open_.end()) it->second.session_id = session_id;
}

void Mappings::Remove(OpenMapping* key) {
  std::lock_guard lock(mutex_);
  open_.erase(key);
}

std::vector<std::shared_ptr<OpenMapping>> Mappings::Of(
    const std::optional<std::string>& session_id) {
  std::vector<std::shared_ptr<OpenMapping>> mappings;
  std::lock_guard lock(mutex_);
  for (const auto& [key, open] : open_) {
    if (session_id.has_value() && open.session_id != *session_id) continue;
    if (auto mapping = open.mapping.lock(); mapping != nullptr)
      mappings.push_back(std::move(mapping));
  }
  return mappings;
}

void Mappings::EndSession(const std::string& session_id) {
  for (const auto& mapping : Of(session_id))
    mapping->Fail(absl::CancelledError("the session of the mapping has ended"));
}

void Mappings::EndAll(const absl::Status& why) {
  for (const auto& mapping : Of(std::nullopt)) mapping->Fail(why);
}

std::vector<v1::MemoryHeld> Mappings::Held() {
  std::vector<v1::MemoryHeld> held;
  for (const auto& mapping : Of(std::nullopt))
    if (std::optional<v1::MemoryHeld> memory = mapping->Held()) held.push_back(*std::move(memory));
  return held;
}

size_t Mappings::count() {
  std::lock_guard lock(mutex_);
  return open_.size();
}

}  // namespace agmm
