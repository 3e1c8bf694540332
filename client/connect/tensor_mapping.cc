#include "client/connect/tensor_mapping.h"

#include <pthread.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kFetch = absl::Seconds(5);
constexpr int kMaxFiles = 64;

// The open connections of this process. A forked child closes its copies, because it would keep the
// memory of a killed parent reserved.
class Connections {
 public:
  static Connections& Get() {
    static Connections* const connections = [] {
      auto* const made = new Connections;
      pthread_atfork([] { Get().mutex_.lock(); }, [] { Get().mutex_.unlock(); },
                     [] { Get().OnForked(); });
      return made;
    }();
    return *connections;
  }

  // Returns a socket, or -1 and sets errno.
  int Open() {
    std::lock_guard lock(mutex_);
    const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd >= 0) open_.insert(fd);
    return fd;
  }
  void Close(int fd) {
    std::lock_guard lock(mutex_);
    // In a forked child, the number may belong to another file.
    if (open_.erase(fd) == 0) return;
    // Ends the connection at once, even if another process has a copy of it.
    shutdown(fd, SHUT_RDWR);
    close(fd);
  }

 private:
  void OnForked() {
    for (int fd : open_) close(fd);
    open_.clear();
    mutex_.unlock();
  }

  std::mutex mutex_;
  std::set<int> open_;  // with mutex_
};

// Returns the result of `call` on a socket, which waits until `limit` at most. Signals interrupt
// such a call, even under SA_RESTART, because the socket has timeouts.
template <typename Call>
ssize_t Patiently(int fd, Deadline limit, Call call) {
  while (true) {
    const timeval left = absl::ToTimeval(std::max(limit.Left(), absl::Milliseconds(1)));
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &left, sizeof(left));
    setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &left, sizeof(left));
    const ssize_t result = call();
    if (result >= 0 || errno != EINTR || limit.HasPassed()) return result;
  }
}

absl::Status NoFiles(const std::string& socket, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrFormat("the files of the mapping cannot be fetched at %s: %s", socket, why));
}

std::string TextOf(const v1::TensorRef& tensor) {
  return tensor.has_tensor_id() ? absl::StrFormat("tensor %d", tensor.tensor_id())
                                : absl::StrFormat("tensor \"%s\"", tensor.name());
}

v1::MapTensorRequest ReleaseRequest() {
  v1::MapTensorRequest request;
  request.mutable_release();
  return request;
}

absl::Status TooFewFiles(int wanted) {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  return absl::ResourceExhaustedError(absl::StrFormat(
      "a mapping of %d files was refused, because this process may open %d files in "
      "all; close some, or raise the limit (ulimit -n)",
      wanted, limit.rlim_cur));
}

}  // namespace

TensorMapping::TensorMapping(Connection* connection, const v1::BeginMapping& begin,
                             const std::string& sequencer, std::shared_ptr<void> use)
    : writable_(begin.writable()), use_(std::move(use)) {
  // The stream outlives the deadline, which is that of its first answer.
  call_.emplace(connection, Deadline::Infinite(), sequencer);
  *request_.mutable_begin() = begin;
  connection->contents()->async()->MapTensor(call_->context(), this);
  AddHold();
  StartWrite(&request_);
  StartRead(&response_);
  StartCall();
}

absl::StatusOr<std::unique_ptr<TensorMapping>> TensorMapping::Open(
    Connection* connection, const v1::BeginMapping& begin, Deadline deadline,
    const std::string& sequencer, const std::stop_token& stop, std::shared_ptr<void> use) {
  AGMM_RETURN_IF_ERROR(CheckReadable(begin.tensor()));
  std::unique_ptr<TensorMapping> mapping(
      new TensorMapping(connection, begin, sequencer, std::move(use)));
  bool in_time = false;
  {
    const auto wake = [&] {
      std::lock_guard lock(mapping->mutex_);
      mapping->changed_.notify_all();
    };
    const std::stop_callback on_stop(stop, wake);
    std::unique_lock lock(mapping->mutex_);
    in_time = mapping->changed_.wait_until(lock, deadline.time_point(), [&] {
      return mapping->done_ || (mapping->answered_ && !mapping->writing_) || stop.stop_requested();
    });
    // The status of an ended stream is more specific than the deadline.
    if (mapping->done_) return mapping->status_;
  }
  // From the fetch on, the end of a writable mapping costs the tensor its contents.
  if (stop.stop_requested()) return StoppedError();
  if (!in_time)
    return absl::DeadlineExceededError(
        absl::StrFormat("%s was in use until the deadline of the mapping; end mappings of it, your "
                        "own too, wait for its jobs and transfers, or give a longer timeout",
                        TextOf(begin.tensor())));
  const absl::Status mapped = mapping->Map(mapping->response_, deadline);
  // From here on, the end of the stream detaches the memory.
  mapping->StartRead(&mapping->response_);
  if (!mapped.ok()) {
    mapping->GiveBack(Deadline::After(kFetch));
    return mapped;
  }
  if (begin.writable()) mapping->TakeLargePages(deadline, stop);
  return mapping;
}

absl::Status TensorMapping::Map(const v1::MapTensorResponse& response, Deadline deadline) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<int> fds, files_.Fetch(response, deadline));
  // The maps stay valid without the descriptors.
  const absl::Cleanup close_files = [&] {
    for (int fd : fds) close(fd);
  };
  tensor_ = response.tensor();
  if (static_cast<int>(fds.size()) != response.file_count()) {
    return absl::InternalError(absl::StrFormat("the daemon sent %d files for a mapping of %d",
                                               fds.size(), response.file_count()));
  }
  for (const v1::MappedShard& shard : response.shards()) {
    // Maps only the shard's own pages, because adjacent pages belong to other tensors.
    const int64_t bytes = (shard.row_end() - shard.row_begin()) * shard.pitch_bytes();
    if (shard.file() < 0 || shard.file() >= static_cast<int>(fds.size()))
      return absl::InternalError("a shard is in a file that the daemon did not send");
    absl::StatusOr<ShardMemory> memory =
        ShardMemory::Map(fds[shard.file()], shard.offset_bytes(), bytes, writable_);
    if (!memory.ok()) {
      return absl::Status(
          memory.status().code(),
          absl::StrFormat("rank %d cannot be mapped: %s", shard.rank(), memory.status().message()));
    }
    shards_.push_back({shard.rank(), shard.row_begin(), shard.row_end(), shard.col_begin(),
                       shard.col_end(), shard.pitch_bytes(), memory->data()});
    memory_.push_back(*std::move(memory));
  }
  return absl::OkStatus();
}

void TensorMapping::TakeLargePages(Deadline deadline, const std::stop_token& stop) {
  constexpr int64_t kStretchBytes = 8 * kLargePageBytes;
  for (const ShardMemory& memory : memory_) {
    for (int64_t at = 0; at < memory.bytes(); at += kStretchBytes) {
      // Works in stretches, because the lock delays a detachment of the memory.
      std::lock_guard lock(mutex_);
      if (detached_ || deadline.HasPassed() || stop.stop_requested()) return;
      const int64_t bytes = std::min(kStretchBytes + kLargePageBytes, memory.bytes() - at);
      if (!MakeLargePages(memory.data() + at, bytes)) return;
    }
  }
}

absl::StatusOr<v1::Tensor> TensorMapping::Commit(Deadline deadline) {
  if (!writable_) {
    return absl::FailedPreconditionError(
        "a mapping that is only read has nothing to commit; open a writable one, or release it");
  }
  v1::MapTensorRequest commit;
  commit.mutable_commit();
  return Return(commit, deadline);
}

absl::StatusOr<v1::Tensor> TensorMapping::Release(Deadline deadline) {
  if (writable_) {
    return absl::FailedPreconditionError(
        "a writable mapping is not released, because its contents may have changed; commit it");
  }
  return Return(ReleaseRequest(), deadline);
}

void TensorMapping::GiveBack(Deadline deadline) {
  Return(ReleaseRequest(), deadline).status().IgnoreError();  // after an error, it has ended
  End();
}

absl::StatusOr<v1::Tensor> TensorMapping::Return(const v1::MapTensorRequest& request,
                                                 Deadline deadline) {
  std::unique_lock lock(mutex_);
  AGMM_RETURN_IF_ERROR(CheckOpen(lock, deadline));
  if (!leased_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the mapping of \"%s\" was committed or released; renew it first", tensor_.name()));
  }
  leased_ = false;
  // First, because others may use the memory from then on.
  bool hidden = true;
  for (ShardMemory& memory : memory_) hidden = memory.Hide() && hidden;
  // Without the means to hide it, this was the mapping's last lease.
  if (!hidden) {
    Detach();
    ending_ = true;
  }
  const std::string overdue =
      request.has_commit()
          ? absl::StrFormat(
                "the daemon did not answer the commit of \"%s\" in time; its version "
                "says whether the contents are the new ones",
                tensor_.name())
          : absl::StrFormat("the daemon did not answer the release of \"%s\" in time",
                            tensor_.name());
  return Ask(lock, request, deadline, overdue);
}

absl::StatusOr<v1::Tensor> TensorMapping::Renew(Deadline deadline) {
  std::unique_lock lock(mutex_);
  AGMM_RETURN_IF_ERROR(CheckOpen(lock, deadline));
  if (leased_) return tensor_;
  v1::MapTensorRequest renew;
  renew.mutable_renew();
  renewing_ = true;
  absl::StatusOr<v1::Tensor> tensor = Ask(
      lock, renew, deadline,
      absl::StrFormat("\"%s\" was in use until the deadline of the renewal, and the mapping has "
                      "ended; map it again after its jobs and transfers, or with a longer timeout",
                      tensor_.name()));
  renewing_ = false;
  if (!tensor.ok()) return tensor;
  bool shown = !detached_ && (!writable_ || files_.Use());
  if (shown)
    for (ShardMemory& memory : memory_) shown = memory.Show() && shown;
  if (!shown) {
    Detach();
    Cancel();
    LetEnd();
    changed_.wait(lock, [this] { return done_; });
    return status_;
  }
  leased_ = true;
  tensor_ = *tensor;
  return tensor;
}

absl::Status TensorMapping::CheckOpen(std::unique_lock<std::mutex>& lock, Deadline deadline) {
  if (asking_) {
    return absl::FailedPreconditionError(absl::StrFormat(
        "the lease on \"%s\" is being returned or renewed on another thread; call one at a time",
        tensor_.name()));
  }
  if (held_) return absl::OkStatus();
  if (changed_.wait_until(lock, deadline.time_point(), [this] { return done_; })) return status_;
  return absl::AbortedError("the mapping is ending");
}

absl::StatusOr<v1::Tensor> TensorMapping::Ask(std::unique_lock<std::mutex>& lock,
                                              const v1::MapTensorRequest& request,
                                              Deadline deadline, const std::string& overdue) {
  asking_ = writing_ = true;
  answer_.reset();
  request_ = request;
  StartWrite(&request_);
  const auto is_answered = [this] { return done_ || (answer_.has_value() && !writing_); };
  const bool in_time = changed_.wait_until(lock, deadline.time_point(), is_answered);
  asking_ = false;
  if (!in_time || ending_) {
    if (!in_time && !done_) overdue_ = absl::DeadlineExceededError(overdue);
    Detach();
    Cancel();
    LetEnd();
    changed_.wait(lock, [this] { return done_; });
  }
  if (answer_.has_value()) return *answer_;
  return status_;
}

absl::Status TensorMapping::status() const {
  std::lock_guard lock(mutex_);
  if (done_) return status_;
  if (detached_) return absl::AbortedError("the mapping is ending");
  if (leased_) return absl::OkStatus();
  return absl::FailedPreconditionError("the mapping was committed or released; renew it");
}

void TensorMapping::OnWriteDone(bool) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  changed_.notify_all();
}

void TensorMapping::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) {
    // The daemon reclaims the memory, or was lost.
    Detach();
    return LetEnd();
  }
  answer_ = response_.tensor();
  // The first response is read again once it was used.
  if (std::exchange(answered_, true)) StartRead(&response_);
  changed_.notify_all();
}

void TensorMapping::OnDone(const grpc::Status& status) {
  std::shared_ptr<void> use;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  Detach();
  status_ = call_->Convert(status);
  if (ended_here_) {
    status_ = absl::CancelledError("the mapping was ended by its holder; map the tensor again");
  } else if (!overdue_.ok()) {
    status_ = overdue_;
  } else if (status_.ok()) {
    status_ = absl::AbortedError("the mapping has ended");
  }
  call_.reset();
  use = std::move(use_);
  done_ = true;
  // With the lock, because a waiting thread may destroy this object next.
  changed_.notify_all();
}

void TensorMapping::Detach() {
  if (std::exchange(detached_, true)) return;
  bool all = true;
  for (ShardMemory& memory : memory_) all = memory.Drop() && all;
  if (all) files_.Release();
}

void TensorMapping::Cancel() {
  if (call_.has_value()) call_->context()->TryCancel();
}

void TensorMapping::LetEnd() {
  if (std::exchange(held_, false)) RemoveHold();
}

void TensorMapping::End() {
  std::unique_lock lock(mutex_);
  ended_here_ |= !detached_;
  if (asking_ && !renewing_) {
    ending_ = true;
  } else {
    Cancel();
    LetEnd();
  }
  changed_.wait(lock, [this] { return done_; });
}

TensorMapping::~TensorMapping() { End(); }

absl::StatusOr<std::vector<int>> MappedFiles::Fetch(const v1::MapTensorResponse& response,
                                                    Deadline deadline) {
  const std::string& path = response.file_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return NoFiles(path, "its path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = connection_ = Connections::Get().Open();
  if (fd < 0 && errno == EMFILE) return TooFewFiles(response.file_count());
  if (fd < 0) return NoFiles(path, std::strerror(errno));
  absl::Cleanup release = [this] { Release(); };
  const Deadline limit = std::min(deadline, Deadline::After(kFetch));
  const std::string& token = response.token();
  const auto connected = [&] {
    return connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address));
  };
  const auto sent = [&] { return send(fd, token.data(), token.size(), MSG_NOSIGNAL); };
  if (Patiently(fd, limit, connected) != 0 ||
      Patiently(fd, limit, sent) != static_cast<ssize_t>(token.size())) {
    return NoFiles(path, std::strerror(errno));
  }
  char byte;
  iovec data{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof(control);
  const auto received = [&] { return recvmsg(fd, &message, MSG_CMSG_CLOEXEC); };
  const ssize_t got = Patiently(fd, limit, received);
  if (got < 0) return NoFiles(path, std::strerror(errno));
  if (got == 0) return NoFiles(path, "the daemon does not know the token, or not this user");
  std::vector<int> files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    files.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(header), files.size() * sizeof(int));
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    for (int file : files) close(file);
    return TooFewFiles(response.file_count());
  }
  std::move(release).Cancel();
  return files;
}

bool MappedFiles::Use() { return TEMP_FAILURE_RETRY(send(connection_, "", 1, MSG_NOSIGNAL)) == 1; }

void MappedFiles::Release() {
  if (const int connection = std::exchange(connection_, -1); connection >= 0)
    Connections::Get().Close(connection);
}

}  // namespace agmm
