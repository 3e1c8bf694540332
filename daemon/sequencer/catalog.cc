#include "daemon/sequencer/catalog.h"

#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/fill.h"
#include "kernels/base/random.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"

namespace agmm {

using Link = Entry::Link;

Catalog::Catalog(Members* members, Placement* placement)
    : members_(members), entries_(members, placement), holds_(members, &entries_, &leases_) {}

void Catalog::CreateTensor(const CallContext& ctx, const v1::CreateTensorRequest& request,
                           Reply<v1::Tensor> reply) {
  const absl::StatusOr<Entry*> entry = entries_.FindOrMake(ctx, request, Link::kLinked);
  if (!entry.ok()) return reply(entry.status());
  if ((*entry)->placing.empty()) return reply((*entry)->tensor);
  (*entry)->creators.push_back(std::move(reply));
}

absl::StatusOr<uint64_t> Catalog::CreateAtOnce(const CallContext& ctx,
                                               const v1::CreateTensorRequest& request) {
  AGMM_ASSIGN_OR_RETURN(const Entry* entry, entries_.Make(ctx, request, Link::kLinked));
  return entry->tensor.tensor_id();
}

void Catalog::DeleteTensor(const CallContext&, const v1::DeleteTensorRequest& request,
                           Reply<v1::DeleteTensorResponse> reply) {
  Entry* entry = entries_.FindLinked(request.tensor_id());
  if (entry == nullptr) return reply(entries_.NotFound(request.tensor_id()));
  Unlink(entry);
  reply(v1::DeleteTensorResponse());
}

absl::StatusOr<v1::Tensor> Catalog::GetTensor(const v1::GetTensorRequest& request) const {
  AGMM_ASSIGN_OR_RETURN(const uint64_t id, Resolve(request.tensor()));
  return Find(id);
}

absl::StatusOr<v1::Tensor> Catalog::Find(uint64_t tensor_id) const {
  const Entry* entry = entries_.Find(tensor_id);
  if (entry == nullptr || entry->link != Link::kLinked) return entries_.NotFound(tensor_id);
  return entry->tensor;
}

absl::StatusOr<v1::Tensor> Catalog::Leased(uint64_t lease) const {
  const Lease* found = leases_.Find(lease);
  if (found == nullptr) return absl::NotFoundError(absl::StrFormat("lease %d has ended", lease));
  return entries_.Find(found->tensor)->tensor;
}

bool Catalog::WillHaveContents(uint64_t tensor_id) const {
  const Entry* entry = entries_.Find(tensor_id);
  return entry != nullptr &&
         (entry->tensor.state() == v1::Tensor::STATE_READY || leases_.WillBeWritten(tensor_id));
}

void Catalog::SetContents(uint64_t tensor_id, bool ready) {
  if (Entry* entry = entries_.Find(tensor_id); entry != nullptr) agmm::SetContents(entry, ready);
}

void Catalog::Unlink(Entry* entry) {
  entries_.Unlink(entry);
  for (const Lease* pin : leases_.PinsOf(entry->tensor.tensor_id())) SendEndMappings(*pin);
  GrantOrErase(entry);
}

void Catalog::SendEndMappings(const Lease& pin) {
  v1::Command command;
  command.mutable_end_mappings()->set_tensor_id(pin.tensor);
  members_->Send(pin.node, command);
}

void Catalog::GrantOrErase(Entry* entry) {
  Deferred callbacks;
  const uint64_t id = entry->tensor.tensor_id();
  // Between two generations no lease is granted, because all are about to end.
  const bool grants = entry->placing.empty() && entries_.IsOpen();
  while (Lease* lease = grants ? leases_.NextToGrant(id) : nullptr) {
    // Refused, because a lost caller would never end its lease.
    absl::Status refusal = lease->cancel == nullptr ? absl::OkStatus() : lease->cancel->status();
    if (refusal.ok() && lease->kind == LeaseKind::kRead &&
        entry->tensor.state() != v1::Tensor::STATE_READY) {
      refusal = absl::FailedPreconditionError(
          absl::StrFormat("%s has no contents; write it, or run the job that computes it, first",
                          Describe(entry->tensor)));
    }
    callbacks.Add([granted = std::move(lease->on_granted), refusal] { granted(refusal); });
    if (!refusal.ok()) {
      leases_.Erase(lease);
      continue;
    }
    leases_.Grant(lease);
    if (lease->kind == LeaseKind::kWrite) {
      lease->before = entry->tensor.state();
      entry->tensor.set_state(v1::Tensor::STATE_WRITING);
    }
  }
  if (leases_.IsLeased(id)) return;
  // A put ends with its lease.
  if (entry->link == Link::kPut) entries_.Unlink(entry);
  if (entry->link == Link::kUnlinked && entry->placing.empty()) entries_.Erase(entry);
}

uint64_t Catalog::Admit(Entry* entry, Lease lease) {
  lease.tensor = entry->tensor.tensor_id();
  const uint64_t id = leases_.Add(std::move(lease))->id;
  GrantOrErase(entry);
  return id;
}

uint64_t Catalog::Acquire(uint64_t tensor_id, bool writes,
                          std::function<void(absl::Status)> granted) {
  Entry* entry = entries_.FindLinked(tensor_id);
  if (entry == nullptr) {
    granted(entries_.NotFound(tensor_id));
    return 0;
  }
  Lease lease;
  lease.kind = writes ? LeaseKind::kJobWrite : LeaseKind::kJobRead;
  lease.on_granted = std::move(granted);
  return Admit(entry, std::move(lease));
}

void Catalog::Release(uint64_t lease) {
  // A job also releases a lease that ended with its generation.
  if (const Lease* found = leases_.Find(lease); found != nullptr) ReleaseLease(found);
}

void Catalog::ReleaseLease(const Lease* lease) {
  Entry* entry = entries_.Find(lease->tensor);
  leases_.Erase(lease);
  GrantOrErase(entry);
}

void Catalog::Refuse(Lease* lease, const absl::Status& why) {
  Deferred callbacks;
  callbacks.Add([granted = std::move(lease->on_granted), why] { granted(why); });
  ReleaseLease(lease);
}

namespace {

// Refuses access to a tensor whose shards are parts of a sum, because its values are in no place.
// `name` begins the message.
absl::Status CheckClosed(const std::string& name, const v1::TensorSpec& spec) {
  AGMM_ASSIGN_OR_RETURN(const PlacedTensor placed, FromProto(spec));
  if (OpenParts(placed.mesh, placed.tensor) == 1) return absl::OkStatus();
  Tensor open = placed.tensor, closed = placed.tensor;
  open.name = "A";
  closed.name = "B";
  closed.sharding.open.clear();
  return absl::FailedPreconditionError(absl::StrFormat(
      "%s has an open sum (%s): its shards are parts of a sum, which only jobs write and read; to "
      "get values, close it into another tensor with a job: spec '%s -> %s'; to put values, use a "
      "sharding without {U}",
      name, spec.sharding(), ToString(placed.mesh, open), ToString(placed.mesh, closed)));
}

}  // namespace

absl::StatusOr<Entry*> Catalog::OpenPut(const CallContext& ctx, const v1::CreateTensorRequest& put,
                                        Lease* lease) {
  AGMM_RETURN_IF_ERROR(CheckClosed("the new tensor", put.spec()));
  AGMM_ASSIGN_OR_RETURN(Entry* const entry, entries_.FindOrMake(ctx, put, Link::kPut));
  lease->session = put.session_id();
  lease->put = entry->link == Link::kPut;
  return entry;
}

absl::StatusOr<Entry*> Catalog::LeaseTarget(const CallContext& ctx,
                                            const v1::BeginLeaseRequest& request, Lease* lease) {
  if (request.has_put()) return OpenPut(ctx, request.put(), lease);
  v1::TensorRef ref;
  if (request.has_name()) ref.set_name(request.name());
  if (request.has_tensor_id()) ref.set_tensor_id(request.tensor_id());
  AGMM_ASSIGN_OR_RETURN(const uint64_t id, Resolve(ref));
  Entry* const entry = entries_.FindLinked(id);
  if (entry == nullptr) return entries_.NotFound(id);
  AGMM_RETURN_IF_ERROR(CheckClosed(Describe(entry->tensor), entry->tensor.spec()));
  return entry;
}

void Catalog::BeginLease(const CallContext& ctx, const v1::BeginLeaseRequest& request,
                         Reply<v1::BeginLeaseResponse> reply) {
  if (absl::Status ready = members_->Ready({}); !ready.ok()) return reply(std::move(ready));
  if (request.node() < 0 || request.node() >= members_->node_count()) {
    return reply(absl::InvalidArgumentError(
        absl::StrFormat("the lease is for node %d, but the world has nodes 0 to %d", request.node(),
                        members_->node_count() - 1)));
  }
  if (leases_.Find(request.lease_id()) != nullptr)
    return reply(absl::AlreadyExistsError("the lease id is taken; choose another"));
  Lease lease;
  lease.id = request.lease_id() == 0 ? RandomId() : request.lease_id();
  lease.kind = request.write() || request.has_put() ? LeaseKind::kWrite : LeaseKind::kRead;
  lease.node = request.node();
  lease.cancel = ctx.cancel;
  const absl::StatusOr<Entry*> entry = LeaseTarget(ctx, request, &lease);
  if (!entry.ok()) return reply(entry.status());
  lease.on_granted = [this, id = lease.id, reply = std::move(reply)](const absl::Status& granted) {
    if (!granted.ok()) return reply(granted);
    const absl::StatusOr<v1::Tensor> tensor = Leased(id);
    if (!tensor.ok()) return reply(tensor.status());
    v1::BeginLeaseResponse response;
    response.set_lease_id(id);
    *response.mutable_tensor() = *tensor;
    reply(std::move(response));
  };
  Admit(*entry, std::move(lease));
}

void Catalog::EndLease(const CallContext&, const v1::EndLeaseRequest& request,
                       Reply<v1::EndLeaseResponse> reply) {
  Lease* lease = leases_.Find(request.lease_id());
  if (lease == nullptr || lease->node < 0 || lease->node != request.node()) {
    return reply(absl::AbortedError(absl::StrFormat(
        "lease %016x is not open at node %d: it was never granted, or it ended with a "
        "daemon or with its generation; repeat the whole transfer",
        request.lease_id(), request.node())));
  }
  absl::StatusOr<v1::Tensor> tensor = entries_.Find(lease->tensor)->tensor;
  if (!lease->granted) {
    Refuse(lease, absl::CancelledError("the caller cancelled its request"));
  } else {
    tensor = End(lease,
                 request.commit()      ? LeaseEnd::kCommitted
                 : request.untouched() ? LeaseEnd::kUntouched
                                       : LeaseEnd::kSpoiled,
                 request.pin());
  }
  if (!tensor.ok()) return reply(tensor.status());
  v1::EndLeaseResponse response;
  *response.mutable_tensor() = *std::move(tensor);
  reply(std::move(response));
}

absl::StatusOr<v1::Tensor> Catalog::End(Lease* lease, LeaseEnd how, bool pin) {
  Entry* entry = entries_.Find(lease->tensor);
  const bool commit = how == LeaseEnd::kCommitted;
  absl::Status refusal;
  if (commit && lease->put && entry->link == Link::kUnlinked) {
    refusal = absl::CancelledError(absl::StrFormat(
        "the put of %s is void, because its session ended before the commit; repeat it in an open "
        "session",
        Describe(entry->tensor)));
  }
  if (pin && entry->link == Link::kUnlinked) {
    refusal = absl::NotFoundError(
        absl::StrFormat("%s was deleted while it was mapped", Describe(entry->tensor)));
  }
  const bool links = commit && entry->link == Link::kPut;
  Entry* old = links ? entries_.FindNamed(entry->tensor.name()) : nullptr;
  if (old != nullptr)
    refusal = CheckOwner(old->tensor, entry->tensor.session_id(), /*replaces=*/true);
  if (lease->kind == LeaseKind::kWrite) {
    if (how == LeaseEnd::kUntouched) {
      entry->tensor.set_state(lease->before);
    } else {
      agmm::SetContents(entry, commit && refusal.ok());
    }
  }
  if (links && refusal.ok()) {
    // The tensor that had the name exists as long as leases use it.
    if (old != nullptr) Unlink(old);
    entries_.LinkEntry(entry);
  }
  v1::Tensor tensor = entry->tensor;
  if (pin && refusal.ok()) {
    leases_.Pin(lease);
    GrantOrErase(entry);
  } else {
    ReleaseLease(lease);
  }
  if (!refusal.ok()) return refusal;
  return tensor;
}

void Catalog::EndSession(const std::string& session_id) {
  if (session_id.empty()) return;
  std::vector<uint64_t> tensors;
  for (const auto& [id, entry] : entries_.all()) {
    if (entry.tensor.session_id() == session_id && entry.link != Link::kUnlinked)
      tensors.push_back(id);
  }
  const auto waits = [&](const Lease& l) { return l.session == session_id && !l.granted; };
  for (uint64_t id : leases_.Select(waits)) {
    if (Lease* lease = leases_.Find(id); lease != nullptr)
      Refuse(lease, absl::CancelledError("the session of this put has ended"));
  }
  for (uint64_t id : tensors) {
    if (Entry* entry = entries_.Find(id); entry != nullptr && entry->link != Link::kUnlinked)
      Unlink(entry);
  }
}

absl::StatusOr<Entry*> Catalog::FillTarget(const CallContext& ctx,
                                           const v1::FillTensorRequest& request, Lease* lease) {
  AGMM_RETURN_IF_ERROR(members_->Ready({}));
  Entry* entry = request.has_put() ? nullptr : entries_.FindLinked(request.tensor_id());
  if (!request.has_put() && entry == nullptr) return entries_.NotFound(request.tensor_id());
  const v1::TensorSpec& spec = request.has_put() ? request.put().spec() : entry->tensor.spec();
  AGMM_ASSIGN_OR_RETURN(const DType dtype, FromProto(spec.dtype()));
  AGMM_ASSIGN_OR_RETURN(const FillSpec fill, FromProto(request.fill()));
  AGMM_RETURN_IF_ERROR(CheckFill(fill, dtype));
  if (request.has_put()) return OpenPut(ctx, request.put(), lease);
  AGMM_RETURN_IF_ERROR(CheckClosed(Describe(entry->tensor), entry->tensor.spec()));
  return entry;
}

void Catalog::FillTensor(const CallContext& ctx, const v1::FillTensorRequest& request,
                         Reply<v1::Tensor> reply) {
  Lease lease;
  lease.id = RandomId();
  lease.kind = LeaseKind::kWrite;
  lease.cancel = ctx.cancel;
  const absl::StatusOr<Entry*> entry = FillTarget(ctx, request, &lease);
  if (!entry.ok()) return reply(entry.status());
  lease.on_granted = [this, id = lease.id, fill = request.fill(),
                      reply = std::move(reply)](const absl::Status& granted) {
    if (!granted.ok()) return reply(granted);
    if (const Lease* lease = leases_.Find(id); lease != nullptr)
      return StartFill(*lease, fill, reply);
    reply(absl::AbortedError("the fill ended with its generation; repeat it"));
  };
  Admit(*entry, std::move(lease));
}

// From here on the fill runs to its end, even if its caller is lost, because the lease must not end
// while a node is writing.
void Catalog::StartFill(const Lease& lease, const v1::Fill& fill, Reply<v1::Tensor> reply) {
  const std::set<int>& nodes = entries_.Find(lease.tensor)->nodes;
  fills_[lease.tensor] = {lease.id, nodes, absl::OkStatus(), std::move(reply)};
  v1::Command command;
  command.mutable_fill_shards()->set_tensor_id(lease.tensor);
  *command.mutable_fill_shards()->mutable_fill() = fill;
  for (int node : nodes) members_->Send(node, command);
}

void Catalog::OnFilled(int node, const v1::TensorFilled& filled) {
  const auto it = fills_.find(filled.tensor_id());
  if (it == fills_.end() || it->second.nodes.erase(node) == 0) return;
  if (it->second.error.ok()) it->second.error = FromProto(filled.error());
  if (!it->second.nodes.empty()) return;
  const Filling filling = std::move(fills_.extract(it).mapped());
  Lease* lease = leases_.Find(filling.lease);
  absl::Status error = filling.error;
  // Does not commit, because a lost caller would not learn that the new tensor took the name.
  if (error.ok() && entries_.Find(lease->tensor)->link == Link::kPut)
    error = lease->cancel->status();
  absl::StatusOr<v1::Tensor> tensor =
      End(lease, error.ok() ? LeaseEnd::kCommitted : LeaseEnd::kSpoiled, /*pin=*/false);
  if (!error.ok()) tensor = error;
  filling.reply(std::move(tensor));
}

void Catalog::OnPlaced(Entry* entry) {
  absl::StatusOr<v1::Tensor> answer = entry->tensor;
  if (!entry->place_error.ok()) {
    answer = entry->place_error;
  } else if (entry->link == Link::kUnlinked) {
    answer = absl::CancelledError(absl::StrFormat(
        "%s was deleted while it was created, or its session ended", Describe(entry->tensor)));
  }
  Deferred callbacks;
  for (Reply<v1::Tensor>& reply : std::exchange(entry->creators, {}))
    callbacks.Add([reply = std::move(reply), answer] { reply(answer); });
  if (entry->place_error.ok()) return GrantOrErase(entry);
  const uint64_t id = entry->tensor.tensor_id();
  for (uint64_t lease_id : leases_.Select([id](const Lease& l) { return l.tensor == id; })) {
    Lease* lease = leases_.Find(lease_id);
    if (!lease->held)
      callbacks.Add([granted = std::move(lease->on_granted), answer] { granted(answer.status()); });
    leases_.Erase(lease);
  }
  entries_.Erase(entry);
}

void Catalog::OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) {
  Deferred callbacks;
  for (auto& [tensor, filling] : std::exchange(fills_, {}))
    callbacks.Add([reply = std::move(filling.reply), reason] { reply(reason); });
  holds_.Clear();
  for (uint64_t id : leases_.Select([](const Lease&) { return true; })) {
    Lease* lease = leases_.Find(id);
    if (!lease->granted)
      callbacks.Add([granted = std::move(lease->on_granted), reason] { granted(reason); });
    leases_.Erase(lease);
  }
  entries_.OnGenerationEnded(lost_nodes, reason, &callbacks);
}

void Catalog::OnReady() {
  entries_.OnReady();
  holds_.OnReady();
}

void Catalog::OnReport(int node, const v1::Report& report) {
  if (report.has_tensor_filled()) {
    OnFilled(node, report.tensor_filled());
  } else if (report.has_memory_held()) {
    holds_.OnHeld(node, report.memory_held());
  } else if (report.has_memory_released()) {
    if (Entry* entry = holds_.OnReleased(node, report.memory_released())) GrantOrErase(entry);
  } else if (report.has_tensor_placed()) {
    if (Entry* entry = entries_.OnPlaced(node, report.tensor_placed())) OnPlaced(entry);
  }
}

}  // namespace agmm
