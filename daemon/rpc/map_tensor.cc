#include "daemon/rpc/map_tensor.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <mutex>
#include <optional>
#include <set>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/rpc/reply.h"
#include "daemon/rpc/silence_guard.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

// What a client needs a fraction of to let go; only who has been stopped, or hangs, takes longer.
constexpr absl::Duration kLetGo = absl::Seconds(1);

// The same memory through a descriptor of its own, which may not be written through where it is not
// `writable`.
absl::StatusOr<int> Reopen(int fd, bool writable) {
  const std::string path = absl::StrCat("/proc/self/fd/", fd);
  const int again = open(path.c_str(), (writable ? O_RDWR : O_RDONLY) | O_CLOEXEC);
  if (again < 0) return absl::ErrnoToStatus(errno, "the heap's file cannot be opened again");
  return again;
}

}  // namespace

// One MapTensor call, and the mapping itself. Lives until OnDone, as long as somebody is about to
// end it, and as long as its client's connection to the file socket: that, and not the stream, says
// whether the memory is mapped. The lease is given back behind both.
class MapTensorReactor final
    : public grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>,
      public OpenMapping,
      public std::enable_shared_from_this<MapTensorReactor> {
 public:
  MapTensorReactor(Mappings* mappings, bool local, CallContext call)
      : mappings_(mappings), local_(local), call_(std::move(call)) {}

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
      if (finished_ || !status_.ok()) return;
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

  void Fail(absl::Status why) override {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { Note(std::move(why)); });
  }
  std::optional<v1::MemoryHeld> Held() override {
    std::lock_guard lock(mutex_);
    if (!offered_ || detached_ || EraCheck().ok()) return std::nullopt;
    return HoldMemory();
  }

 private:
  enum class Next { kNothing, kWithdraw, kGiveBack, kFinish };

  absl::Status CheckMessage() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    AGMM_RETURN_IF_ERROR(Validate(request_));
    if (request_.has_begin() == begun_) {
      return absl::InvalidArgumentError(begun_
                                            ? "a message begins the mapping again"
                                            : "the first message of a mapping does not begin it");
    }
    if (begun_ && !writable_)
      return absl::InvalidArgumentError(
          "a mapping that is only read is committed; begin a writable one");
    return absl::OkStatus();
  }

  void OnSilence() {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      if (begun_) return;
      Note(
          absl::DeadlineExceededError(absl::StrFormat("the client has not begun its mapping for %s",
                                                      absl::FormatDuration(mappings_->silence_))));
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
      tensor_ = response->tensor();
      // The lease of an earlier generation is void.
      Note(EraCheck());
      if (status_.ok()) Note(Offer());
      if (!status_.ok()) return;
      offered_ = true;
      *response_.mutable_tensor() = std::move(*response->mutable_tensor());
      writing_ = true;
      StartWrite(&response_);
    });
  }

  absl::Status EraCheck() const { return mappings_->parts_.io->CheckEra(tensor_, era_); }

  // Fills response_ with the shards, and the token of their files.
  absl::Status Offer() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    AGMM_ASSIGN_OR_RETURN(const auto shards, mappings_->store_->Shards(tensor_.tensor_id()));
    std::vector<int> heaps, fds;
    absl::Cleanup close_fds = [&] {
      for (int fd : fds) close(fd);
    };
    for (const LocalShard& shard : shards) {
      const int heap_fd = shard.heap->fd();
      const auto heap = std::find(heaps.begin(), heaps.end(), heap_fd);
      v1::MappedShard* mapped = response_.add_shards();
      mapped->set_file(static_cast<int>(heap - heaps.begin()));
      if (heap == heaps.end()) {
        if (heap_fd < 0 || heaps.size() == FileSocket::kMaxFiles) {
          return absl::FailedPreconditionError(absl::StrFormat(
              "the memory of rank %d cannot be mapped by clients; use upload and read",
              shard.rank));
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
    response_.set_file_count(static_cast<int>(fds.size()));
    FileSocket* const files = mappings_->files_.load();
    token_ = files->Offer(std::move(fds), [self = shared_from_this()] { self->OnLetGo(); });
    response_.set_token(token_);
    response_.set_file_socket(files->path());
    return absl::OkStatus();
  }

  // The first error is the one to tell. Once a commit is on its way, its answer alone decides.
  void Note(absl::Status status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (status_.ok() && !commit_sent_ && !given_back_ && !finished_) status_ = std::move(status);
  }

  template <typename Change>
  void Continue(Change change) {
    Next next;
    bool over;
    {
      std::lock_guard lock(mutex_);
      change();
      next = Drive();
      over = finished_ && pending_ == 0 && (access_id_ == 0 || given_back_) && !over_;
      over_ |= over;
    }
    if (next == Next::kWithdraw) Withdraw();
    if (next == Next::kGiveBack) GiveBack();
    // Who hears of the end may begin another one.
    if (over) mappings_->Remove(this);
    if (next == Next::kFinish) Finish(ToGrpc(status_));
  }

  Next Drive() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
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
      if (!offered_ || detached_) {
        ++pending_;
        return Next::kGiveBack;
      }
      if (!withdrawn_) {
        withdrawn_ = true;
        ++pending_;
        return Next::kWithdraw;
      }
      // A commit waits for its client to let go. All else is told at once, so that the client does.
      if (committing_ && status_.ok()) return Next::kNothing;
    }
    if (std::exchange(finished_, true)) return Next::kNothing;
    return Next::kFinish;
  }

  void Withdraw() {
    const std::optional<pid_t> client = mappings_->files_.load()->Withdraw(token_);
    if (client.has_value()) {
      mappings_->parts_.loop->PostAfter(kLetGo, [weak = weak_from_this(), client = *client] {
        if (const auto self = weak.lock(); self != nullptr) self->OnNotLetGo(client);
      });
    }
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      --pending_;
      if (!client.has_value()) detached_ = true;
    });
  }

  // The connection of the client that had fetched the files has ended.
  void OnLetGo() {
    Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { detached_ = true; });
    // Behind whatever the loop reports as held.
    mappings_->parts_.loop->Post([self = shared_from_this()] {
      v1::Report report;
      {
        std::lock_guard lock(self->mutex_);
        if (self->hold_id_ == 0) return;
        report.mutable_memory_released()->set_hold_id(self->hold_id_);
        if (self->told_)
          spdlog::info("the memory of tensor {} is let go of", self->tensor_.tensor_id());
      }
      self->mappings_->report_(std::move(report));
    });
  }

  // On the loop. The lease, or what is held of it, goes on; it is only said.
  void OnNotLetGo(pid_t client) {
    v1::Report report;
    {
      std::lock_guard lock(mutex_);
      if (detached_) return;
      told_ = true;
      spdlog::warn(
          "pid {} still has the memory of tensor {} \"{}\" mapped, {} s after that had to end: it "
          "is kept "
          "back until the process lets go or ends",
          client, tensor_.tensor_id(), tensor_.name(), absl::ToInt64Seconds(kLetGo));
      // Of another generation all is reported with the next.
      if (!EraCheck().ok()) return;
      *report.mutable_memory_held() = HoldMemory();
    }
    mappings_->report_(std::move(report));
  }

  v1::MemoryHeld HoldMemory() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (hold_id_ == 0) hold_id_ = mappings_->next_hold_++;
    v1::MemoryHeld held;
    held.set_hold_id(hold_id_);
    held.mutable_ranks()->Add(ranks_.begin(), ranks_.end());
    held.set_offset_bytes(tensor_.offset_bytes());
    held.set_bytes(tensor_.shard_bytes());
    held.set_writable(writable_);
    held.set_tensor_name(tensor_.name());
    return held;
  }

  void GiveBack() {
    bool commit;
    AccessEnd how;
    {
      std::lock_guard lock(mutex_);
      // Of an earlier generation there is no lease any more, and its number may be another's.
      const absl::Status gone = EraCheck();
      Note(gone);
      commit = commit_sent_ = committing_ && status_.ok();
      how = commit ? AccessEnd::kCommitted : offered_ ? AccessEnd::kSpoiled : AccessEnd::kUntouched;
      if (!gone.ok()) access_id_ = 0;
    }
    if (access_id_ == 0)
      return Continue([&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { --pending_; });
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

  Mappings* const mappings_;
  const bool local_;
  const CallContext call_;
  const uint64_t era_ = mappings_->parts_.io->era();
  std::shared_ptr<MapTensorReactor> self_;

  std::mutex mutex_;
  v1::MapTensorRequest request_;    // gRPC's while reading_
  v1::MapTensorResponse response_;  // gRPC's while writing_
  // Written under the lock; read without it once set, or once finished_ (status_).
  bool writable_ = false;
  uint64_t access_id_ = 0;
  v1::Tensor tensor_;
  std::set<int> ranks_;  // whose heaps are mapped
  std::string token_;
  absl::Status status_;
  int pending_ ABSL_GUARDED_BY(mutex_) = 0;
  bool reading_ ABSL_GUARDED_BY(mutex_) = false, writing_ ABSL_GUARDED_BY(mutex_) = false;
  bool begun_ ABSL_GUARDED_BY(mutex_) = false, ended_ ABSL_GUARDED_BY(mutex_) = false;
  bool committing_ ABSL_GUARDED_BY(mutex_) = false, given_back_ ABSL_GUARDED_BY(mutex_) = false;
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;  // gRPC has its status
  bool over_ ABSL_GUARDED_BY(mutex_) = false;      // nothing is left of it
  bool offered_ ABSL_GUARDED_BY(mutex_) = false;   // the client may write from now on
  bool withdrawn_ ABSL_GUARDED_BY(mutex_) =
      false;                                       // if it had not fetched the files, it never will
  bool detached_ ABSL_GUARDED_BY(mutex_) = false;  // no process has the memory mapped
  bool told_ ABSL_GUARDED_BY(mutex_) = false;      // that one has, and should not
  uint64_t hold_id_ ABSL_GUARDED_BY(mutex_) = 0;   // it was reported as held
  bool commit_sent_ ABSL_GUARDED_BY(mutex_) = false;  // and not answered yet
  std::optional<SilenceGuard> silence_;               // first to go: it calls into the rest
};

grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* Mappings::Start(
    grpc::CallbackServerContext* context, CallContext call) {
  auto reactor = std::make_shared<MapTensorReactor>(
      this, absl::StartsWith(context->peer(), "unix:"), std::move(call));
  reactor->Start();
  return reactor.get();
}

}  // namespace agmm
