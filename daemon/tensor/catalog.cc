#include <spdlog/spdlog.h>

#include <algorithm>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "daemon/tensor/catalog_impl.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/problem.h"
#include "proto/convert/status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace catalog {
namespace {

// Its name alone, where it has one.
std::string Called(const v1::Tensor& tensor) {
  return tensor.name().empty() ? absl::StrCat("tensor ", tensor.tensor_id())
                               : absl::Utf8SafeCEscape(tensor.name());
}

// What went with its world, in one line however much it was.
void LogLost(const std::vector<std::string>& tensors, absl::string_view why) {
  constexpr size_t kNamed = 8;
  if (tensors.empty()) return;
  const size_t named = std::min(kNamed, tensors.size());
  spdlog::warn(
      "{} tensor{} lost: {}{}; {}", tensors.size(), tensors.size() == 1 ? " is" : "s are",
      absl::StrJoin(tensors.begin(), tensors.begin() + named, ", "),
      tensors.size() > named ? absl::StrFormat(", and %d more", tensors.size() - named) : "",
      std::string(why));
}

}  // namespace

Entry* CatalogImpl::FindLinked(uint64_t tensor_id) {
  const auto it = entries_.find(tensor_id);
  return it == entries_.end() || it->second.link != Link::kLinked ? nullptr : &it->second;
}

absl::StatusOr<Entry*> CatalogImpl::FindRequest(const std::string& key,
                                                const v1::CreateTensorRequest& request) {
  const auto it = requests_.find(key);
  if (request.request_id().empty() || it == requests_.end()) return nullptr;
  Entry* entry = &entries_.at(it->second);
  if (entry->request_body == request.SerializeAsString()) return entry;
  return absl::AlreadyExistsError(absl::StrFormat(
      "request id %s was used for %s with another body; use a new id for a new tensor",
      request.request_id(), Describe(entry->tensor)));
}

void CatalogImpl::RememberRequest(const std::string& key, const v1::CreateTensorRequest& request,
                                  Entry* entry) {
  if (request.request_id().empty()) return;
  entry->request_key = key;
  entry->request_body = request.SerializeAsString();
  requests_[key] = entry->tensor.tensor_id();
}

void CatalogImpl::CreateTensor(const CallContext& ctx, const v1::CreateTensorRequest& request,
                               Reply<v1::Tensor> reply) {
  const std::string key = absl::StrCat("create ", request.request_id());
  const absl::StatusOr<Entry*> known = FindRequest(key, request);
  if (!known.ok()) return reply(known.status());
  if (Entry* entry = *known; entry != nullptr) {
    if (entry->placing.empty()) return reply(entry->tensor);
    entry->creators.push_back(std::move(reply));
    return;
  }
  const absl::StatusOr<Entry*> made = Make(ctx, request, Link::kLinked);
  if (!made.ok()) return reply(made.status());
  Entry* entry = *made;
  RememberRequest(key, request, entry);
  entry->creators.push_back(std::move(reply));
}

absl::StatusOr<uint64_t> CatalogImpl::CreateAtOnce(const CallContext& ctx,
                                                   const v1::CreateTensorRequest& request) {
  AGMM_ASSIGN_OR_RETURN(const Entry* entry, Make(ctx, request, Link::kLinked));
  return entry->tensor.tensor_id();
}

absl::StatusOr<Entry*> CatalogImpl::Make(const CallContext& ctx,
                                         const v1::CreateTensorRequest& request, Link link) {
  AGMM_RETURN_IF_ERROR(members_->Complete());
  const auto taken = names_.find(request.name());
  if (link == Link::kLinked && taken != names_.end()) {
    return absl::AlreadyExistsError(
        absl::StrFormat("%s has this name; delete it first or choose another name",
                        Describe(entries_.at(taken->second).tensor)));
  }
  AGMM_ASSIGN_OR_RETURN(const PlacedTensor placed, FromProto(request.spec()));
  const int world = static_cast<int>(members_->ranks().size());
  for (int rank : placed.mesh.ranks) {
    if (rank >= world) {
      return absl::InvalidArgumentError(
          absl::StrFormat("mesh %s names rank %d; the world has %d, 0 to %d",
                          placed.mesh.ToString(), rank, world, world - 1));
    }
  }
  // One row at least, so that every tensor has a place of its own.
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
  *entry.tensor.mutable_create_time() = ToProto(clock_->Now());
  entry.placing = entry.nodes;
  if (link == Link::kLinked && !request.name().empty()) names_[request.name()] = id;
  v1::Command command;
  *command.mutable_place_tensor()->mutable_tensor() = entry.tensor;
  for (int node : entry.nodes) members_->Send(node, command);
  return &entry;
}

void CatalogImpl::OnReport(int node, const v1::Report& report) {
  if (report.has_tensor_filled()) return OnFilled(node, report.tensor_filled());
  if (report.has_memory_held()) return OnHeld(node, report.memory_held());
  if (report.has_memory_released()) return OnReleased(node, report.memory_released());
  if (!report.has_tensor_placed()) return;
  const v1::TensorPlaced& placed = report.tensor_placed();
  const auto it = entries_.find(placed.tensor_id());
  if (it == entries_.end() || it->second.placing.erase(node) == 0) return;
  Entry* entry = &it->second;
  if (absl::Status error = FromProto(placed.error()); entry->place_error.ok())
    entry->place_error = error;
  if (entry->placing.empty()) EndPlacing(entry);
}

void CatalogImpl::EndPlacing(Entry* entry) {
  absl::StatusOr<v1::Tensor> answer = entry->tensor;
  if (!entry->place_error.ok()) {
    answer = entry->place_error;
  } else if (entry->link == Link::kGone) {
    answer = absl::CancelledError(absl::StrFormat(
        "%s was deleted while it was created, or its session ended", Describe(entry->tensor)));
  }
  Callbacks callbacks;
  for (Reply<v1::Tensor>& reply : std::exchange(entry->creators, {}))
    callbacks.Add([reply = std::move(reply), answer] { reply(answer); });
  if (entry->place_error.ok()) return Settle(entry);
  for (Lease& lease : entry->leases) {
    if (lease.held) continue;
    lease_tensors_.erase(lease.id);
    callbacks.Add([granted = std::move(lease.granted_fn), answer] { granted(answer.status()); });
  }
  ForgetHolds(entry);
  entry->leases.clear();
  Unlink(entry);
}

void CatalogImpl::Unlink(Entry* entry) {
  entry->link = Link::kGone;
  const uint64_t id = entry->tensor.tensor_id();
  for (auto [index, key] :
       {std::pair{&names_, &entry->tensor.name()}, {&requests_, &entry->request_key}}) {
    if (const auto it = index->find(*key); it != index->end() && it->second == id) index->erase(it);
  }
  Settle(entry);
}

void CatalogImpl::Settle(Entry* entry) {
  Callbacks callbacks;
  GrantNext(entry, &callbacks);
  if (!entry->leases.empty()) return;
  if (entry->link == Link::kPut) {
    // A put is over with its lease.
    entry->link = Link::kGone;
    requests_.erase(entry->request_key);
  }
  if (entry->link == Link::kGone && entry->placing.empty()) Erase(entry);
}

void CatalogImpl::Erase(Entry* entry) {
  placement_->Free(entry->ranks, entry->tensor.offset_bytes(), entry->tensor.shard_bytes(),
                   MemoryClass::kTensor);
  const uint64_t id = entry->tensor.tensor_id();
  for (int node : entry->nodes) {
    if (!Open()) {
      drops_.emplace_back(node, id);
      continue;
    }
    v1::Command command;
    command.mutable_drop_tensor()->set_tensor_id(id);
    members_->Send(node, std::move(command));
  }
  entries_.erase(id);
}

std::string CatalogImpl::LargestOn(int rank) const {
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
    const char* state = here[i]->holds > 0 ? ", held by a client that was to let go of it"
                        : here[i]->link == Link::kGone ? ", deleted and still in use"
                        : here[i]->link == Link::kPut  ? ", being put"
                                                       : "";
    texts.push_back(absl::StrCat(Called(tensor), " ", FormatBytes(tensor.shard_bytes()), state));
  }
  if (here.size() > named) texts.push_back(absl::StrCat(here.size() - named, " more"));
  return absl::StrJoin(texts, ", ");
}

void CatalogImpl::DeleteTensor(const CallContext&, const v1::DeleteTensorRequest& request,
                               Reply<v1::DeleteTensorResponse> reply) {
  Entry* entry = FindLinked(request.tensor_id());
  if (entry == nullptr) return reply(NotFound(request.tensor_id()));
  Unlink(entry);
  reply(v1::DeleteTensorResponse());
}

v1::ListTensorsResponse CatalogImpl::ListTensors(const v1::ListTensorsRequest& request) const {
  constexpr int kDefaultPage = 100;
  const int limit = request.page_size() > 0 ? request.page_size() : kDefaultPage;
  v1::ListTensorsResponse response;
  for (auto it = entries_.upper_bound(request.after_tensor_id()); it != entries_.end(); ++it) {
    if (it->second.link != Link::kLinked) continue;
    if (response.tensors_size() == limit) {
      response.set_next_after_tensor_id(response.tensors(limit - 1).tensor_id());
      break;
    }
    *response.add_tensors() = it->second.tensor;
  }
  return response;
}

absl::StatusOr<uint64_t> CatalogImpl::Resolve(const v1::TensorRef& ref) const {
  if (ref.ref_case() == v1::TensorRef::kTensorId) return ref.tensor_id();
  if (ref.name().empty()) {
    return absl::InvalidArgumentError("a tensor is given by its id or its name; neither is set");
  }
  const auto it = names_.find(ref.name());
  if (it != names_.end()) return it->second;
  return absl::NotFoundError(absl::StrFormat(
      "there is no tensor \"%s\"; list the tensors for those that exist", ref.name()));
}

absl::StatusOr<v1::Tensor> CatalogImpl::GetTensor(const v1::GetTensorRequest& request) const {
  AGMM_ASSIGN_OR_RETURN(const uint64_t id, Resolve(request.tensor()));
  return Find(id);
}

absl::StatusOr<v1::Tensor> CatalogImpl::Find(uint64_t tensor_id) const {
  const auto it = entries_.find(tensor_id);
  if (it == entries_.end() || it->second.link != Link::kLinked) return NotFound(tensor_id);
  return it->second.tensor;
}

void CatalogImpl::OnGenerationEnded(const std::vector<int>& lost_nodes,
                                    const absl::Status& reason) {
  Callbacks callbacks;
  std::vector<std::string> lost_tensors;
  between_ = true;
  lease_tensors_.clear();
  // Their nodes name them again.
  holds_.clear();
  for (auto it = entries_.begin(); it != entries_.end();) {
    Entry& entry = it->second;
    ++it;  // the entry may go
    if (entry.filling != nullptr) entry.creators.push_back(std::move(entry.filling->reply));
    entry.filling = nullptr;
    for (Reply<v1::Tensor>& reply : entry.creators)
      callbacks.Add([reply = std::move(reply), reason] { reply(reason); });
    for (Lease& lease : entry.leases) {
      if (lease.granted) continue;
      callbacks.Add([granted = std::move(lease.granted_fn), reason] { granted(reason); });
    }
    const bool created = entry.placing.empty() && entry.link == Link::kLinked;
    entry.creators.clear();
    ForgetHolds(&entry);
    entry.leases.clear();
    entry.placing.clear();
    if (entry.tensor.state() == v1::Tensor::STATE_WRITING) EndWrite(&entry, false);
    const bool lost = std::any_of(lost_nodes.begin(), lost_nodes.end(),
                                  [&](int node) { return entry.nodes.count(node) > 0; });
    if (lost && created) lost_tensors.push_back(Called(entry.tensor));
    if (lost || !created) Unlink(&entry);
  }
  LogLost(lost_tensors, reason.message());
}

void CatalogImpl::OnReady() {
  std::vector<int64_t> heaps;
  for (const WorldRank& rank : members_->ranks()) heaps.push_back(rank.heap_bytes);
  bool same = placement_->rank_count() == static_cast<int>(heaps.size());
  for (size_t rank = 0; same && rank < heaps.size(); ++rank)
    same = placement_->heap_bytes(static_cast<int>(rank)) == heaps[rank];
  if (!same) {
    // The first world, or other heaps than before: nothing that was placed has a place.
    std::vector<std::string> lost_tensors;
    for (; !entries_.empty(); Unlink(&entries_.begin()->second))
      lost_tensors.push_back(Called(entries_.begin()->second.tensor));
    LogLost(lost_tensors, "a daemon has come back with another heap");
    placement_->Reset(heaps);
  }
  between_ = false;
  for (auto& [node, tensor_id] : std::exchange(drops_, {})) {
    v1::Command command;
    command.mutable_drop_tensor()->set_tensor_id(tensor_id);
    members_->Send(node, std::move(command));
  }
  // What is left lies where it lay; a member may have forgotten it with the generation.
  for (const auto& [id, entry] : entries_) {
    v1::Command command;
    *command.mutable_place_tensor()->mutable_tensor() = entry.tensor;
    for (int node : entry.nodes) members_->Send(node, command);
  }
  for (auto& [key, hold] : holds_) TakeHold(&hold);
}

}  // namespace catalog

std::unique_ptr<Catalog> Catalog::Create(Members* members, Placement* placement,
                                         const Clock* clock) {
  return std::make_unique<catalog::CatalogImpl>(members, placement, clock);
}

}  // namespace agmm
