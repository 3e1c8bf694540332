#include "daemon/node/mappings.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "proto/convert/plan_inputs.h"

namespace agmm {
namespace {

constexpr size_t kMaxMappings = 256;
// Grace period for a client to unmap. Healthy clients take milliseconds.
constexpr absl::Duration kUnmapGrace = absl::Seconds(1);

// Returns a new descriptor of the same memory, read-only unless `writable`.
absl::StatusOr<int> Reopen(int fd, bool writable) {
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  const int again = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (again < 0) return absl::ErrnoToStatus(errno, "the heap's file cannot be opened again");
  return again;
}

// 'tensor 7 "W"'.
std::string Described(const v1::Tensor& tensor) {
  return absl::StrFormat("tensor %d \"%s\"", tensor.tensor_id(), tensor.name());
}

absl::Status Deleted(const v1::Tensor& tensor) {
  return absl::NotFoundError(
      absl::StrFormat("%s was deleted while it was mapped", Described(tensor)));
}

}  // namespace

ServedMapping::ServedMapping(Mappings* mappings, Client client)
    : mappings_(mappings), client_(std::move(client)) {}

void ServedMapping::Begin(const CallContext& call, const v1::BeginMapping& begin) {
  {
    std::lock_guard lock(mutex_);
    if (phase_ != Phase::kIdle) return;
    phase_ = Phase::kOpening;
    writable_ = begin.writable();
    session_id_ = begin.session_id();
    call_ = call;
  }
  if (mappings_->files_ == nullptr)
    return OnLease(absl::FailedPreconditionError("this daemon has no socket to map tensors over"));
  v1::GetTensorRequest request;
  *request.mutable_tensor() = begin.tensor();
  // The place is checked before a lease is requested, because others would wait for the lease.
  mappings_->parts_.sequencer->get_tensor(
      call, request, [self = shared_from_this(), call](absl::StatusOr<v1::Tensor> tensor) {
        absl::Status status = tensor.status();
        if (status.ok()) status = self->mappings_->CheckPlace(*tensor, self->writable_);
        if (!status.ok()) return self->OnLease(std::move(status));
        self->RequestLease(call, *tensor);
      });
}

void ServedMapping::RequestLease(CallContext call, const v1::Tensor& tensor) {
  v1::BeginLeaseRequest request;
  request.set_tensor_id(tensor.tensor_id());
  request.set_write(writable_);
  call.sequencer = tensor.sequencer();
  HeldLease::Begin(mappings_->parts_, call, std::move(request),
                   [self = shared_from_this()](absl::StatusOr<HeldLease> lease) {
                     self->OnLease(std::move(lease));
                   });
}

void ServedMapping::OnLease(absl::StatusOr<HeldLease> lease) {
  Deferred after;
  std::lock_guard lock(mutex_);
  renewal_ = nullptr;
  if (!lease.ok()) {
    if (!end_.has_value()) end_ = lease.status();
    if (token_.empty()) return Finish(&after);
    phase_ = Phase::kKept;
    return Advance(&after);
  }
  lease_ = *std::move(lease);
  leased_ = true;
  v1::MapTensorResponse offer;
  *offer.mutable_tensor() = lease_.tensor();
  if (!end_.has_value()) {
    absl::Status status = lease_.CheckGeneration();
    if (status.ok() && token_.empty()) status = Offer(&offer);
    if (!status.ok()) end_ = std::move(status);
  }
  if (end_.has_value() && token_.empty()) return ReturnRest(&after);
  phase_ = Phase::kOpen;
  if (end_.has_value()) return Advance(&after);
  offered_ = true;
  renewals_ += pin_.held();
  after.Add([send = client_.send, offer = std::move(offer)] { send(offer); });
}

absl::Status ServedMapping::Offer(v1::MapTensorResponse* response) {
  AGMM_ASSIGN_OR_RETURN(const auto shards, mappings_->store_->Shards(lease_.tensor().tensor_id()));
  std::vector<int> heaps, fds;
  absl::Cleanup close_fds = [&] {
    for (int fd : fds) close(fd);
  };
  for (const LocalShard& shard : shards) {
    const int heap_fd = shard.heap->fd();
    const auto heap = std::find(heaps.begin(), heaps.end(), heap_fd);
    v1::MappedShard* mapped = response->add_shards();
    mapped->set_file(static_cast<int>(heap - heaps.begin()));
    if (heap == heaps.end()) {
      if (heap_fd < 0 || heaps.size() == FileSocket::kMaxFiles) {
        return absl::FailedPreconditionError(absl::StrFormat(
            "the memory of rank %d cannot be mapped by clients; use put and get", shard.rank));
      }
      heaps.push_back(heap_fd);
      AGMM_ASSIGN_OR_RETURN(const int fd, Reopen(heap_fd, writable_));
      fds.push_back(fd);
    }
    mapped->set_rank(shard.rank);
    mapped->set_row_begin(shard.rows.begin);
    mapped->set_row_end(shard.rows.end);
    mapped->set_col_begin(shard.cols.begin);
    mapped->set_col_end(shard.cols.end);
    mapped->set_offset_bytes(shard.offset_bytes);
    mapped->set_pitch_bytes(shard.pitch_bytes);
    ranks_.insert(shard.rank);
  }
  std::move(close_fds).Cancel();
  response->set_file_count(static_cast<int>(fds.size()));
  FileSocket* const files = mappings_->files_.load();
  token_ = files->Offer(
      std::move(fds), [self = shared_from_this()] { self->OnUnmapped(); },
      [self = shared_from_this()](int64_t count) { self->OnUses(count); });
  response->set_token(token_);
  response->set_file_socket(files->path());
  return absl::OkStatus();
}

void ServedMapping::ReturnLease(LeaseEnd how) {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  if (phase_ != Phase::kOpen) {
    return EndLocked(
        absl::InvalidArgumentError("the mapping has no lease to return; renew it before"), &after);
  }
  // A lease whose generation has ended is void.
  if (absl::Status status = lease_.CheckGeneration(); !status.ok())
    return EndLocked(std::move(status), &after);
  phase_ = Phase::kKeeping;
  after.Add([self = shared_from_this(), lease = lease_, how, pin = !pin_.held()] {
    const auto kept = [self](auto response) { self->OnKept(std::move(response)); };
    lease.Return(how, kept, pin);
  });
}

void ServedMapping::OnKept(absl::StatusOr<v1::EndLeaseResponse> response) {
  Deferred after;
  std::lock_guard lock(mutex_);
  phase_ = Phase::kKept;
  leased_ = offered_ = false;
  if (response.ok() && !pin_.held()) pin_ = lease_;
  if (!response.ok() || deleted_) {
    if (!end_.has_value()) end_ = response.ok() ? Deleted(lease_.tensor()) : response.status();
    return Advance(&after);
  }
  v1::MapTensorResponse answer;
  *answer.mutable_tensor() = std::move(*response->mutable_tensor());
  answer_ = [send = client_.send, answer = std::move(answer)] { send(answer); };
  after.Add([self = shared_from_this()] { self->SendAnswer(); });
  // An error would let gRPC drop the answer.
  if (end_.has_value()) end_ = absl::OkStatus();
  Advance(&after);
}

void ServedMapping::SendAnswer() {
  std::lock_guard sending(sending_);
  std::function<void()> answer;
  {
    std::lock_guard lock(mutex_);
    answer = std::exchange(answer_, nullptr);
  }
  if (answer) answer();
}

void ServedMapping::Renew() {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (end_.has_value()) return;
  if (phase_ != Phase::kKept) {
    return EndLocked(absl::InvalidArgumentError(
                         "the mapping has its lease; commit or release it before it is renewed"),
                     &after);
  }
  if (absl::Status status = lease_.CheckGeneration(); !status.ok())
    return EndLocked(std::move(status), &after);
  phase_ = Phase::kOpening;
  renewal_ = std::make_shared<CancelToken>();
  CallContext call = call_;
  call.cancel = renewal_;
  after.Add([self = shared_from_this(), call, tensor = lease_.tensor()] {
    self->RequestLease(call, tensor);
  });
}

void ServedMapping::End(absl::Status why) {
  Deferred after;
  std::lock_guard lock(mutex_);
  EndLocked(std::move(why), &after);
}

void ServedMapping::EndLocked(absl::Status why, Deferred* after) {
  if (end_.has_value() || phase_ >= Phase::kReturning) return;
  end_ = std::move(why);
  if (renewal_ != nullptr) {
    after->Add([renewal = renewal_] {
      renewal->Cancel(absl::CancelledError("the mapping ended while it was renewed"));
    });
  }
  Advance(after);
}

void ServedMapping::EndSession(const std::string& session_id) {
  {
    std::lock_guard lock(mutex_);
    if (session_id_ != session_id) return;
  }
  End(absl::CancelledError("the session of the mapping has ended"));
}

void ServedMapping::EndDeleted(uint64_t tensor_id) {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (lease_.tensor().tensor_id() != tensor_id) return;
  deleted_ = true;
  if (phase_ == Phase::kKept) EndLocked(Deleted(lease_.tensor()), &after);
}

void ServedMapping::Advance(Deferred* after) {
  if (!end_.has_value()) return;
  if (phase_ == Phase::kIdle) return Finish(after);
  if (phase_ == Phase::kOpen || phase_ == Phase::kKept) {
    phase_ = Phase::kUnmapping;
    const std::optional<pid_t> client = mappings_->files_.load()->Withdraw(token_);
    fetched_ = client.has_value();
    if (fetched_) {
      mappings_->parts_.loop->PostAfter(kUnmapGrace, [weak = weak_from_this(), client = *client] {
        if (const auto self = weak.lock(); self != nullptr) self->OnStillMapped(client);
      });
    } else {
      unmapped_ = true;
    }
  }
  if (phase_ != Phase::kUnmapping) return;
  if (unmapped_) return ReturnRest(after);
  // At once, so that the client unmaps.
  Tell(*end_, after);
}

void ServedMapping::ReturnRest(Deferred* after) {
  // The rights of a generation that has ended are void.
  if (absl::Status status = lease_.CheckGeneration(); !status.ok()) {
    if (!end_.has_value()) end_ = std::move(status);
    return Finish(after);
  }
  if (!leased_ && !pin_.held()) return Finish(after);
  phase_ = Phase::kReturning;
  const HeldLease rest = leased_ ? lease_ : std::exchange(pin_, {});
  const bool used = offered_ && (renewals_ == 0 ? fetched_ : uses_ >= renewals_);
  const LeaseEnd how = leased_ && used ? LeaseEnd::kSpoiled : LeaseEnd::kUntouched;
  leased_ = false;
  after->Add([self = shared_from_this(), rest, how] {
    rest.Return(how, [self](auto response) { self->OnReturned(std::move(response)); });
  });
}

void ServedMapping::OnReturned(absl::StatusOr<v1::EndLeaseResponse> response) {
  Deferred after;
  std::lock_guard lock(mutex_);
  if (end_->ok()) end_ = response.status();
  ReturnRest(&after);
}

void ServedMapping::Finish(Deferred* after) {
  phase_ = Phase::kOver;
  // Comes first, because a client that learns of the end may begin another mapping.
  after->Add([self = shared_from_this()] { self->mappings_->Remove(self.get()); });
  Tell(*end_, after);
}

void ServedMapping::Tell(const absl::Status& status, Deferred* after) {
  const Client client = std::exchange(client_, {});
  if (!client.end) return;
  // Another thread may be about to send the answer to a commit.
  after->Add([self = shared_from_this(), end = client.end, status] {
    self->SendAnswer();
    end(status);
  });
}

void ServedMapping::OnUses(int64_t count) {
  std::lock_guard lock(mutex_);
  uses_ += count;
}

void ServedMapping::OnUnmapped() {
  {
    Deferred after;
    std::lock_guard lock(mutex_);
    unmapped_ = true;
    Advance(&after);
  }
  // Posted, so that it comes after the loop's report that the memory is held.
  mappings_->parts_.loop->Post([self = shared_from_this()] {
    v1::Report report;
    {
      std::lock_guard lock(self->mutex_);
      if (self->hold_id_ == 0) return;
      report.mutable_memory_released()->set_hold_id(self->hold_id_);
      spdlog::info("the memory of tensor {} was unmapped", self->lease_.tensor().tensor_id());
    }
    self->mappings_->report_(std::move(report));
  });
}

void ServedMapping::OnStillMapped(pid_t client) {
  {
    std::lock_guard lock(mutex_);
    if (unmapped_) return;
    spdlog::warn(
        "pid {} still has the memory of tensor {} \"{}\" mapped, {} s after its mapping ended; the "
        "memory stays reserved until the process unmaps it or ends",
        client, lease_.tensor().tensor_id(), lease_.tensor().name(),
        absl::ToInt64Seconds(kUnmapGrace));
  }
  // Memory of an earlier generation is reported with the next one.
  ReportHeld(/*earlier=*/false);
}

void ServedMapping::ReportHeld(bool earlier) {
  v1::Report report;
  {
    std::lock_guard lock(mutex_);
    if (token_.empty() || unmapped_ || lease_.CheckGeneration().ok() == earlier) return;
    // A pin keeps the memory, and the client did not have the right to use it.
    if (!earlier && !leased_) return;
    if (hold_id_ == 0) hold_id_ = mappings_->next_hold_++;
    v1::MemoryHeld* held = report.mutable_memory_held();
    held->set_hold_id(hold_id_);
    held->mutable_ranks()->Add(ranks_.begin(), ranks_.end());
    held->set_offset_bytes(lease_.tensor().offset_bytes());
    held->set_bytes(lease_.tensor().shard_bytes());
    held->set_writable(writable_ && leased_);
    held->set_tensor_name(lease_.tensor().name());
  }
  mappings_->report_(std::move(report));
}

Mappings::Mappings(const TransferParts& parts, TensorStore* store,
                   std::vector<std::string> node_names, absl::Duration silence)
    : parts_(parts), store_(store), node_names_(std::move(node_names)), silence_(silence) {}

absl::StatusOr<std::shared_ptr<ServedMapping>> Mappings::Create(ServedMapping::Client client) {
  auto mapping = std::make_shared<ServedMapping>(this, std::move(client));
  std::lock_guard lock(mutex_);
  if (mappings_.size() >= kMaxMappings) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d mappings are open at this daemon, or still mapped, and %d is the limit; end one first",
        mappings_.size(), kMaxMappings));
  }
  mappings_[mapping.get()] = mapping;
  return mapping;
}

absl::Status Mappings::CheckPlace(const v1::Tensor& tensor, bool writable) const {
  AGMM_ASSIGN_OR_RETURN(const PlacedTensor placed, FromProto(tensor.spec()));
  auto shards = store_->Shards(tensor.tensor_id());
  if (absl::IsNotFound(shards.status())) shards.emplace();  // all are on other nodes
  AGMM_RETURN_IF_ERROR(shards.status());
  for (Rank rank = 0; rank < placed.mesh.size(); ++rank) {
    if (ShardBlock(placed.mesh, placed.tensor, 0, rank).empty()) continue;
    const int world_rank = placed.mesh.ranks[rank];
    const bool here = std::any_of(shards->begin(), shards->end(),
                                  [&](const auto& shard) { return shard.rank == world_rank; });
    if (here == writable) continue;
    if (here) return absl::OkStatus();
    return absl::FailedPreconditionError(
        absl::StrFormat("%s cannot be written in place here: its shard of rank %d is on node "
                        "%s; put it, or map it where all shards are",
                        Described(tensor), world_rank, node_names_[world_rank]));
  }
  if (writable) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrFormat("%s has no shard on this daemon's devices; ask another daemon, or get it",
                      Described(tensor)));
}

void Mappings::Remove(ServedMapping* mapping) {
  std::lock_guard lock(mutex_);
  mappings_.erase(mapping);
}

std::vector<std::shared_ptr<ServedMapping>> Mappings::All() {
  std::vector<std::shared_ptr<ServedMapping>> all;
  std::lock_guard lock(mutex_);
  for (const auto& [key, weak] : mappings_)
    if (auto mapping = weak.lock(); mapping != nullptr) all.push_back(std::move(mapping));
  return all;
}

void Mappings::EndSession(const std::string& session_id) {
  for (const auto& mapping : All()) mapping->EndSession(session_id);
}

void Mappings::EndAll(const absl::Status& why) {
  for (const auto& mapping : All()) mapping->End(why);
}

void Mappings::EndDeleted(uint64_t tensor_id) {
  for (const auto& mapping : All()) mapping->EndDeleted(tensor_id);
}

void Mappings::ReportHeld() {
  for (const auto& mapping : All()) mapping->ReportHeld(/*earlier=*/true);
}

size_t Mappings::count() {
  std::lock_guard lock(mutex_);
  return mappings_.size();
}

}  // namespace agmm
