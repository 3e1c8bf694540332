#include "daemon/rpc/map_tensor.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "kernels/base/status.h"
#include "proto/convert/problem.h"

namespace agmm {
namespace {

constexpr size_t kMaxMappings = 256;

// The same memory through a descriptor of its own, which may not be written through where it is not
// `writable`.
absl::StatusOr<int> Reopen(int fd, bool writable) {
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  const int again = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (again < 0) return absl::ErrnoToStatus(errno, "the heap's file cannot be opened again");
  return again;
}

}  // namespace

// One MapTensor call. Lives until OnDone, and as long as somebody is about to end it.
class MapTensorReactor final
    : public grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>,
      public std::enable_shared_from_this<MapTensorReactor> {
 public:
  MapTensorReactor(Mappings* mappings, bool local, CallContext call)
      : mappings_(mappings), local_(local), call_(std::move(call)) {}
  ~MapTensorReactor() override {
    for (int fd : fds_) close(fd);
  }

  void Start() {
    self_ = shared_from_this();
    silence_.emplace(mappings_->parts_.loop, mappings_->silence_, [this] { OnSilence(); });
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      Note(mappings_->Add(this, weak_from_this()));
    });
  }
  void OnReadDone(bool ok) override {
    bool begin = false;
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      reading_ = false;
      if (!ok) {
        ended_ = true;
        // The good end of a mapping that is not to be committed.
        if (!begun_) Note(absl::InvalidArgumentError("the mapping ended before its first message"));
        return;
      }
      if (ending_ || !status_.ok()) return;
      Note(CheckMessage());
      if (!status_.ok()) return;
      if (begun_) {
        committing_ = ended_ = true;
        return;
      }
      begun_ = begin = true;
      ++pending_;
    });
    if (begin) Begin();
  }
  void OnWriteDone(bool ok) override {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      writing_ = false;
      if (!ok) Note(absl::CancelledError("the client is gone"));
    });
  }
  void OnCancel() override {
    const std::shared_ptr<CancelToken> cancel = call_.cancel;
    const absl::Status gone = absl::CancelledError("the client is gone, or the daemon is stopping");
    Fail(gone);
    cancel->Cancel(gone);
  }
  void OnDone() override { self_.reset(); }

  void Fail(absl::Status why) {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Note(std::move(why)); });
  }

 private:
  enum class Next { kNothing, kGiveBack, kFinish };

  absl::Status CheckMessage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    AGMM_RETURN_IF_ERROR(Validate(request_));
    if (request_.has_begin() == begun_) {
      return absl::InvalidArgumentError(begun_ ? "a message begins the mapping again"
                                               : "the first message of a mapping does not begin it");
    }
    if (begun_ && !writable_)
      return absl::InvalidArgumentError("a mapping that is only read is committed; begin a writable one");
    return absl::OkStatus();
  }

  void OnSilence() {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (begun_) return;
      Note(absl::DeadlineExceededError(absl::StrFormat(
          "the client has not begun its mapping for %s", absl::FormatDuration(mappings_->silence_))));
    });
  }

  // The place is looked at before there is a lease, for which others would have to wait.
  void Begin() {
    const v1::BeginMapping& begin = request_.begin();
    writable_ = begin.writable();
    if (!local_ || mappings_->files_ == nullptr) {
      return OnBegun(absl::FailedPreconditionError(
          "shards are mapped by clients of the same host; connect over the daemon's unix socket"));
    }
    mappings_->SetSession(this, begin.session_id());
    v1::GetTensorRequest request;
    *request.mutable_tensor() = begin.tensor();
    mappings_->parts_.control->GetTensor(
        call_, request, [self = shared_from_this()](absl::StatusOr<v1::Tensor> tensor) {
          if (tensor.ok()) {
            if (absl::Status fits = self->mappings_->CheckPlace(*tensor, self->writable_);
                !fits.ok()) {
              return self->OnBegun(std::move(fits));
            }
          } else {
            return self->OnBegun(tensor.status());
          }
          v1::BeginAccessRequest access;
          access.set_tensor_id(tensor->tensor_id());
          access.set_write(self->writable_);
          CallContext call = self->call_;
          call.sequencer = tensor->sequencer();
          BeginAccess(self->mappings_->parts_, call, std::move(access),
                      [self](auto response) { self->OnBegun(std::move(response)); });
        });
  }

  void OnBegun(absl::StatusOr<v1::BeginAccessResponse> response) {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      --pending_;
      Note(response.status());
      if (!response.ok()) return;
      access_id_ = response->access_id();
      // The lease of an earlier generation is void.
      Note(mappings_->parts_.io->CheckEra(response->tensor(), era_));
      if (status_.ok()) Note(Offer(response->tensor()));
      if (!status_.ok()) return;
      offered_ = true;
      *response_.mutable_tensor() = std::move(*response->mutable_tensor());
      writing_ = true;
      StartWrite(&response_);
    });
  }

  // Fills response_ with the shards, and the token of their files.
  absl::Status Offer(const v1::Tensor& tensor) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    AGMM_ASSIGN_OR_RETURN(const auto shards, mappings_->store_->Shards(tensor.tensor_id()));
    std::vector<int> heaps;
    for (const LocalShard& shard : shards) {
      const auto heap = std::find(heaps.begin(), heaps.end(), shard.fd);
      v1::MappedShard* mapped = response_.add_shards();
      mapped->set_file(static_cast<int>(heap - heaps.begin()));
      if (heap == heaps.end()) {
        if (shard.fd < 0 || heaps.size() == FileSocket::kMaxFiles) {
          return absl::FailedPreconditionError(absl::StrFormat(
              "the memory of rank %d cannot be mapped by clients; use upload and read", shard.rank));
        }
        heaps.push_back(shard.fd);
        AGMM_ASSIGN_OR_RETURN(const int fd, Reopen(shard.fd, writable_));
        fds_.push_back(fd);
      }
      mapped->set_rank(shard.rank);
      mapped->set_row_begin(shard.rows.begin);
      mapped->set_row_end(shard.rows.end);
      mapped->set_col_begin(shard.cols.begin);
      mapped->set_col_end(shard.cols.end);
      mapped->set_offset_bytes(shard.offset_bytes);
      mapped->set_pitch_bytes(shard.pitch_bytes);
    }
    token_ = mappings_->files_.load()->Offer(fds_);
    response_.set_token(token_);
    response_.set_file_socket(mappings_->files_.load()->path());
    response_.set_file_count(static_cast<int>(fds_.size()));
    return absl::OkStatus();
  }

  // The first error is the one to tell. Once a commit is on its way, its answer alone decides.
  void Note(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok() && !commit_sent_ && !given_back_) status_ = std::move(status);
  }

  template <typename Change>
  void Continue(Change change) {
    Next next;
    {
      std::lock_guard lock(mutex_);
      change();
      next = Drive();
    }
    if (next == Next::kGiveBack) GiveBack();
    if (next == Next::kFinish) End();
  }

  Next Drive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (ending_) return Next::kNothing;
    if (status_.ok() && !ended_) {
      const bool open = begun_ && pending_ == 0 && !writing_;
      if (!reading_ && (open || !begun_)) {
        reading_ = true;
        request_.Clear();
        StartRead(&request_);
      }
      return Next::kNothing;
    }
    if (pending_ > 0 || writing_) return Next::kNothing;
    if (access_id_ != 0 && !given_back_) {
      ++pending_;
      return Next::kGiveBack;
    }
    ending_ = true;
    return Next::kFinish;
  }

  void GiveBack() {
    bool commit;
    AccessEnd how;
    {
      std::lock_guard lock(mutex_);
      commit = commit_sent_ = committing_ && status_.ok();
      how = commit ? AccessEnd::kCommitted : offered_ ? AccessEnd::kSpoiled : AccessEnd::kUntouched;
    }
    if (!token_.empty()) mappings_->files_.load()->Withdraw(token_);
    EndAccess(mappings_->parts_, call_, access_id_, how,
              [self = shared_from_this(), commit](absl::StatusOr<v1::EndAccessResponse> response) {
                self->Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(self->mutex_) {
                  --self->pending_;
                  self->commit_sent_ = false;
                  if (commit || self->status_.ok()) self->Note(response.status());
                  self->given_back_ = true;
                  if (!commit || !response.ok() || !self->status_.ok()) return;
                  self->response_.Clear();
                  *self->response_.mutable_tensor() = std::move(*response->mutable_tensor());
                  self->writing_ = true;
                  self->StartWrite(&self->response_);
                });
              });
  }

  void End() {
    mappings_->Remove(this);
    Finish(ToGrpc(status_));
  }

  Mappings* const mappings_;
  const bool local_;
  const CallContext call_;
  const uint64_t era_ = mappings_->parts_.io->era();
  std::shared_ptr<MapTensorReactor> self_;

  std::mutex mutex_;
  v1::MapTensorRequest request_;    // gRPC's while reading_
  v1::MapTensorResponse response_;  // gRPC's while writing_
  // Written under the lock; read without it once set, or ending (status_).
  bool writable_ = false;
  uint64_t access_id_ = 0;
  std::string token_;
  std::vector<int> fds_;
  absl::Status status_;
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false, writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool committing_ ABSL_GUARDED_BY(mutex_) = false, given_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
  bool offered_ ABSL_GUARDED_BY(mutex_) = false;      // the client may write from now on
  bool commit_sent_ ABSL_GUARDED_BY(mutex_) = false;  // and not answered yet
  std::optional<SilenceGuard> silence_;  // first to go: it calls into the rest
};

Mappings::Mappings(const TransferParts& parts, TensorStore* store,
                   std::vector<std::string> node_names, absl::Duration silence)
    : parts_(parts), store_(store), node_names_(std::move(node_names)), silence_(silence) {}

grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* Mappings::Start(
    grpc::CallbackServerContext* context, CallContext call) {
  auto reactor = std::make_shared<MapTensorReactor>(
      this, absl::StartsWith(context->peer(), "unix:"), std::move(call));
  reactor->Start();
  return reactor.get();
}

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
    return absl::FailedPreconditionError(absl::StrFormat(
        "tensor %d is written in place where all its shards are, and that of rank %d is on node %s; "
        "use upload",
        tensor.tensor_id(), world_rank, node_names_[world_rank]));
  }
  if (writable) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrFormat(
      "tensor %d has no shard on this daemon's devices; ask another daemon, or read it",
      tensor.tensor_id()));
}

absl::Status Mappings::Add(MapTensorReactor* key, std::weak_ptr<MapTensorReactor> mapping) {
  std::lock_guard lock(mutex_);
  if (open_.size() >= kMaxMappings) {
    return absl::ResourceExhaustedError(absl::StrFormat(
        "%d mappings are open at this daemon, as many as it takes; end one first", open_.size()));
  }
  open_[key] = {"", std::move(mapping)};
  return absl::OkStatus();
}

void Mappings::SetSession(MapTensorReactor* key, const std::string& session_id) {
  std::lock_guard lock(mutex_);
  // One that is just ending may have gone from here.
  if (const auto it = open_.find(key); it != open_.end()) it->second.session_id = session_id;
}

void Mappings::Remove(MapTensorReactor* key) {
  std::lock_guard lock(mutex_);
  open_.erase(key);
}

void Mappings::EndSession(const std::string& session_id) {
  std::vector<std::shared_ptr<MapTensorReactor>> ended;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, open] : open_)
      if (open.session_id == session_id) ended.push_back(open.mapping.lock());
  }
  for (const auto& mapping : ended)
    if (mapping != nullptr) mapping->Fail(absl::CancelledError("the session of the mapping has ended"));
}

void Mappings::EndAll(const absl::Status& why) {
  std::vector<std::shared_ptr<MapTensorReactor>> ended;
  {
    std::lock_guard lock(mutex_);
    for (const auto& [key, open] : open_) ended.push_back(open.mapping.lock());
  }
  for (const auto& mapping : ended)
    if (mapping != nullptr) mapping->Fail(why);
}

}  // namespace agmm
