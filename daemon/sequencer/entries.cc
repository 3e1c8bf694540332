#include "daemon/sequencer/entries.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"
#include "proto/limits.h"

namespace agmm {

bool SameSpec(const PlacedTensor& a, const PlacedTensor& b) {
  return a.mesh == b.mesh && a.tensor.sharding == b.tensor.sharding &&
         a.tensor.rows == b.tensor.rows && a.tensor.cols == b.tensor.cols &&
         a.tensor.dtype == b.tensor.dtype;
}

absl::Status CheckRanks(const Mesh& mesh, const Members& members) {
  const int world = static_cast<int>(members.ranks().size());
  for (int rank : mesh.ranks) {
    if (rank < world) continue;
    return absl::InvalidArgumentError(
        absl::StrFormat("mesh %s needs rank %d; the world has %d, 0 to %d: take a smaller mesh, or "
                        "other ranks",
                        mesh.ToString(), rank, world, world - 1));
  }
  AGMM_RETURN_IF_ERROR(members.Ready(mesh.ranks));
  const auto kind_of = [&](int rank) -> const std::string& { return members.ranks()[rank].kind; };
  const int first = mesh.ranks[0];
  for (int other : mesh.ranks) {
    if (kind_of(other) == kind_of(first)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "mesh %s has devices of two kinds: rank %d is %s and rank %d is %s; take ranks of one kind",
        mesh.ToString(), first, kind_of(first), other, kind_of(other)));
  }
  return absl::OkStatus();
}

absl::Status CheckOwner(const v1::Tensor& found, const std::string& session, bool replaces) {
  const bool permanent = found.session_id().empty();
  if (found.session_id() == session || (permanent && !replaces)) return absl::OkStatus();
  if (permanent) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "%s has another shape, dtype, sharding or mesh and does not belong to a session, so a "
        "session cannot replace it; choose another name, or delete it first",
        Describe(found)));
  }
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s belongs to another session, of %s, and is deleted with it; choose another name, or "
      "delete it first",
      Describe(found), found.owner()));
}

void SetContents(Entry* entry, bool ready) {
  entry->tensor.set_state(ready ? v1::Tensor::STATE_READY : v1::Tensor::STATE_EMPTY);
  if (ready) entry->tensor.set_version(entry->tensor.version() + 1);
}

Entries::Entries(Members* members, Placement* placement)
    : members_(members), placement_(placement) {
  placement_->set_describe_tensors([this](int rank) { return DescribeLargest(rank); });
}

Entry* Entries::Find(uint64_t tensor_id) {
  const auto it = entries_.find(tensor_id);
  return it == entries_.end() ? nullptr : &it->second;
}

Entry* Entries::FindLinked(uint64_t tensor_id) {
  Entry* entry = Find(tensor_id);
  return entry == nullptr || entry->link != Entry::Link::kLinked ? nullptr : entry;
}

Entry* Entries::FindNamed(const std::string& name) {
  const auto it = names_.find(name);
  return it == names_.end() ? nullptr : &entries_.at(it->second);
}

absl::StatusOr<uint64_t> Entries::Resolve(const v1::TensorRef& ref) const {
  if (ref.ref_case() == v1::TensorRef::kTensorId) return ref.tensor_id();
  if (ref.name().empty()) {
    return absl::InvalidArgumentError(
        "a tensor is named by its id or its name, but neither is set; set one");
  }
  if (const auto it = names_.find(ref.name()); it != names_.end()) return it->second;
  return lost_.NotFound(ref);
}

absl::Status Entries::NotFound(uint64_t tensor_id) const {
  v1::TensorRef ref;
  ref.set_tensor_id(tensor_id);
  return lost_.NotFound(ref);
}

v1::ListTensorsResponse Entries::List(const v1::ListTensorsRequest& request) const {
  const int limit = request.page_size() > 0 ? request.page_size() : kDefaultPage;
  v1::ListTensorsResponse response;
  for (auto it = entries_.upper_bound(request.after_tensor_id()); it != entries_.end(); ++it) {
    if (it->second.link != Entry::Link::kLinked) continue;
    if (response.tensors_size() == limit) {
      response.set_next_after_tensor_id(response.tensors(limit - 1).tensor_id());
      break;
    }
    *response.add_tensors() = it->second.tensor;
  }
  return response;
}

std::map<int, int64_t> Entries::HeldBytes() const {
  std::map<int, int64_t> held;
  for (const auto& [id, entry] : entries_) {
    if (entry.holds == 0) continue;
    for (int rank : entry.ranks) held[rank] += RoundUp(entry.tensor.shard_bytes(), kPlacementAlign);
  }
  return held;
}

std::map<std::string, TensorUse> Entries::UseBySession() const {
  std::map<std::string, TensorUse> uses;
  for (const auto& [id, entry] : entries_) {
    if (entry.tensor.session_id().empty()) continue;
    TensorUse& use = uses[entry.tensor.session_id()];
    ++use.count;
    use.bytes += entry.tensor.shard_bytes() * static_cast<int64_t>(entry.ranks.size());
  }
  return uses;
}

absl::StatusOr<Entry*> Entries::FindOrMake(const CallContext& ctx,
                                           const v1::CreateTensorRequest& request,
                                           Entry::Link link) {
  const bool put = link == Entry::Link::kPut;
  const std::string key = absl::StrCat(put ? "put " : "create ", request.request_id());
  const std::string body = request.request_id().empty() ? "" : request.SerializeAsString();
  if (const auto it = requests_.find(key); it != requests_.end() && !body.empty()) {
    Entry* known = &entries_.at(it->second);
    if (known->request_body == body) return known;
    return absl::AlreadyExistsError(absl::StrFormat(
        "request id %s was used for %s with another body; use a new id for a new tensor",
        request.request_id(), Describe(known->tensor)));
  }
  if (Entry* named = FindNamed(request.name()); put && named != nullptr) {
    AGMM_ASSIGN_OR_RETURN(const PlacedTensor wanted, FromProto(request.spec()));
    AGMM_ASSIGN_OR_RETURN(const PlacedTensor found, FromProto(named->tensor.spec()));
    const bool rewrites = SameSpec(wanted, found);
    AGMM_RETURN_IF_ERROR(CheckOwner(named->tensor, request.session_id(), /*replaces=*/!rewrites));
    if (rewrites) return named;
  }
  AGMM_ASSIGN_OR_RETURN(Entry* const made, Make(ctx, request, link));
  if (body.empty()) return made;
  made->request_key = key;
  made->request_body = body;
  requests_[key] = made->tensor.tensor_id();
  return made;
}

absl::StatusOr<Entry*> Entries::Make(const CallContext& ctx, const v1::CreateTensorRequest& request,
                                     Entry::Link link) {
  AGMM_RETURN_IF_ERROR(members_->Ready({}));
  if (const Entry* taken = FindNamed(request.name());
      taken != nullptr && link == Entry::Link::kLinked) {
    return absl::AlreadyExistsError(absl::StrFormat(
        "%s has this name; delete it first or choose another name", Describe(taken->tensor)));
  }
  AGMM_ASSIGN_OR_RETURN(const PlacedTensor placed, FromProto(request.spec()));
  AGMM_RETURN_IF_ERROR(CheckRanks(placed.mesh, *members_));
  // Allocates at least one row, so that every tensor has its own place.
  const int64_t bytes =
      std::max(ShardBytes(placed.mesh, placed.tensor), ShardPitchBytes(placed.mesh, placed.tensor));
  AGMM_ASSIGN_OR_RETURN(const int64_t offset,
                        placement_->Allocate(placed.mesh.ranks, bytes, MemoryClass::kTensor));

  const uint64_t id = next_tensor_++;
  Entry& entry = entries_[id];
  entry.ranks = placed.mesh.ranks;
  for (int rank : entry.ranks) entry.nodes.insert(members_->ranks()[rank].node);
  entry.link = link;
  entry.tensor.set_tensor_id(id);
  entry.tensor.set_name(request.name());
  *entry.tensor.mutable_spec() = ToProto(placed.mesh, placed.tensor);
  entry.tensor.set_state(v1::Tensor::STATE_EMPTY);
  entry.tensor.set_offset_bytes(offset);
  entry.tensor.set_shard_bytes(bytes);
  entry.tensor.set_owner(ctx.principal);
  entry.tensor.set_session_id(request.session_id());
  entry.tensor.set_sequencer(members_->incarnation());
  *entry.tensor.mutable_create_time() = ToProto(absl::Now());
  entry.placing = entry.nodes;
  if (link == Entry::Link::kLinked) LinkEntry(&entry);
  SendPlace(entry);
  return &entry;
}

Entry* Entries::FindHeld(const v1::MemoryHeld& memory) {
  const std::vector<int> ranks(memory.ranks().begin(), memory.ranks().end());
  for (auto& [id, entry] : entries_) {
    const auto has = [&entry = entry](int rank) {
      return std::find(entry.ranks.begin(), entry.ranks.end(), rank) != entry.ranks.end();
    };
    if (entry.tensor.offset_bytes() == memory.offset_bytes() &&
        entry.tensor.shard_bytes() == memory.bytes() &&
        std::all_of(ranks.begin(), ranks.end(), has)) {
      return &entry;
    }
  }
  if (!placement_->AllocateAt(ranks, memory.offset_bytes(), memory.bytes(), MemoryClass::kTensor))
    return nullptr;
  const uint64_t id = next_tensor_++;
  Entry& entry = entries_[id];
  entry.ranks = ranks;
  entry.link = Entry::Link::kUnlinked;
  entry.tensor.set_tensor_id(id);
  entry.tensor.set_name(memory.tensor_name());
  entry.tensor.set_offset_bytes(memory.offset_bytes());
  entry.tensor.set_shard_bytes(memory.bytes());
  return &entry;
}

Entry* Entries::OnPlaced(int node, const v1::TensorPlaced& placed) {
  Entry* entry = Find(placed.tensor_id());
  if (entry == nullptr || entry->placing.erase(node) == 0) return nullptr;
  if (entry->place_error.ok()) entry->place_error = FromProto(placed.error());
  return entry->placing.empty() ? entry : nullptr;
}

void Entries::LinkEntry(Entry* entry) {
  entry->link = Entry::Link::kLinked;
  const v1::Tensor& tensor = entry->tensor;
  if (tensor.name().empty()) return;
  names_[tensor.name()] = tensor.tensor_id();
  lost_.Forget(tensor.name());
}

void Entries::Unlink(Entry* entry) {
  entry->link = Entry::Link::kUnlinked;
  const uint64_t id = entry->tensor.tensor_id();
  for (auto [index, key] :
       {std::pair{&names_, &entry->tensor.name()}, {&requests_, &entry->request_key}}) {
    if (const auto it = index->find(*key); it != index->end() && it->second == id) index->erase(it);
  }
}

void Entries::Erase(Entry* entry) {
  Unlink(entry);
  placement_->Free(entry->ranks, entry->tensor.offset_bytes(), entry->tensor.shard_bytes(),
                   MemoryClass::kTensor);
  const uint64_t id = entry->tensor.tensor_id();
  for (int node : entry->nodes) drops_.emplace_back(node, id);
  if (IsOpen()) SendDrops();
  entries_.erase(id);
}

void Entries::SendPlace(const Entry& entry) {
  v1::Command command;
  *command.mutable_place_tensor()->mutable_tensor() = entry.tensor;
  for (int node : entry.nodes) members_->Send(node, command);
}

void Entries::SendDrops() {
  for (const auto& [node, tensor_id] : std::exchange(drops_, {})) {
    v1::Command command;
    command.mutable_drop_tensor()->set_tensor_id(tensor_id);
    members_->Send(node, std::move(command));
  }
}

void Entries::OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason,
                                Deferred* replies) {
  world_down_ = true;
  std::vector<v1::Tensor> lost_tensors;
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    ++it;  // the entry may be erased
    for (Reply<v1::Tensor>& reply : std::exchange(entry.creators, {}))
      replies->Add([reply = std::move(reply), reason] { reply(reason); });
    const bool created = entry.placing.empty() && entry.link == Entry::Link::kLinked;
    entry.placing.clear();
    if (entry.tensor.state() == v1::Tensor::STATE_WRITING) SetContents(&entry, false);
    const bool lost = std::any_of(lost_nodes.begin(), lost_nodes.end(),
                                  [&](int node) { return entry.nodes.count(node) > 0; });
    if (lost && created) lost_tensors.push_back(entry.tensor);
    if (lost || !created) Erase(&entry);
  }
  lost_.Add(lost_tensors, reason.message());
}

void Entries::OnReady() {
  const bool first = placement_->rank_count() == 0;
  bool changed = first;
  std::vector<int64_t> heaps;
  for (const WorldRank& rank : members_->ranks()) {
    const int64_t before = first ? 0 : placement_->heap_bytes(static_cast<int>(heaps.size()));
    // A missing node is expected to come back with the same heaps.
    heaps.push_back(rank.heap_bytes == 0 ? before : rank.heap_bytes);
    changed |= heaps.back() != before;
  }
  if (changed) {
    // In the first world, or with changed heaps, no tensor keeps its place.
    std::vector<v1::Tensor> lost_tensors;
    for (; !entries_.empty(); Erase(&entries_.begin()->second))
      lost_tensors.push_back(entries_.begin()->second.tensor);
    lost_.Add(lost_tensors, "a daemon has come back with another heap");
    placement_->Reset(heaps);
  }
  world_down_ = false;
  SendDrops();
  // Tensors keep their places, but a member may have forgotten them with the generation.
  for (const auto& [id, entry] : entries_) SendPlace(entry);
}

std::string Entries::DescribeLargest(int rank) const {
  constexpr size_t kNamed = 3;
  std::vector<const Entry*> here;
  for (const auto& [id, entry] : entries_) {
    if (std::find(entry.ranks.begin(), entry.ranks.end(), rank) != entry.ranks.end())
      here.push_back(&entry);
  }
  const size_t named = std::min(kNamed, here.size());
  std::partial_sort(here.begin(), here.begin() + named, here.end(),
                    [](const Entry* a, const Entry* b) {
                      return a->tensor.shard_bytes() > b->tensor.shard_bytes();
                    });
  std::vector<std::string> texts;
  for (size_t i = 0; i < named; ++i) {
    const v1::Tensor& tensor = here[i]->tensor;
    const char* state = here[i]->holds > 0 ? ", held by a client that has not unmapped it"
                        : here[i]->link == Entry::Link::kUnlinked ? ", deleted but still in use"
                        : here[i]->link == Entry::Link::kPut      ? ", in an open put"
                                                                  : "";
    texts.push_back(
        absl::StrCat(DisplayName(tensor), " ", FormatBytes(tensor.shard_bytes()), state));
  }
  if (here.size() > named) texts.push_back(absl::StrCat(here.size() - named, " more"));
  const int64_t held = HeldBytes()[rank];
  return absl::StrCat(
      here.empty() ? "" : absl::StrFormat(" (%s)", absl::StrJoin(texts, ", ")),
      held == 0 ? "" : absl::StrFormat(", of which %s are held by clients", FormatBytes(held)));
}

}  // namespace agmm
