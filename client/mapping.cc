#include "client/mapping.h"

#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

constexpr absl::Duration kFetch = absl::Seconds(5);
constexpr int kMaxFiles = 64;

absl::Status NoFiles(const std::string& socket, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrFormat("the files of the mapping cannot be fetched at %s: %s", socket, why));
}

// The descriptors that `token` stands for; the caller's to close.
absl::StatusOr<std::vector<int>> FetchFiles(const v1::MapTensorResponse& response,
                                            absl::Time deadline) {
  const std::string& path = response.file_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return NoFiles(path, "its path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return NoFiles(path, std::strerror(errno));
  const absl::Cleanup close_fd = [fd] { close(fd); };
  const absl::Duration left = std::clamp(deadline - absl::Now(), absl::Milliseconds(1), kFetch);
  const timeval patience = absl::ToTimeval(left);
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 ||
      send(fd, response.token().data(), response.token().size(), MSG_NOSIGNAL) !=
          static_cast<ssize_t>(response.token().size())) {
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
  const ssize_t got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  if (got < 0) return NoFiles(path, std::strerror(errno));
  if (got == 0) return NoFiles(path, "the daemon does not know the token, or not this user");
  std::vector<int> fds;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    fds.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(fds.data(), CMSG_DATA(header), fds.size() * sizeof(int));
  }
  return fds;
}

// False if the deadline came first.
template <typename Holds>
bool WaitUntil(std::condition_variable& changed, std::unique_lock<std::mutex>& lock,
               absl::Time deadline, Holds holds) {
  if (deadline != absl::InfiniteFuture())
    return changed.wait_until(lock, absl::ToChronoTime(deadline), holds);
  changed.wait(lock, holds);
  return true;
}

}  // namespace

TensorMapping::TensorMapping(Connection* connection, const v1::BeginMapping& begin,
                             std::function<void()> on_end)
    : writable_(begin.writable()), on_end_(std::move(on_end)) {
  // The stream outlives the deadline, which is that of its first answer.
  call_.emplace(connection, absl::InfiniteFuture());
  *request_.mutable_begin() = begin;
  connection->tensors()->async()->MapTensor(call_->context(), this);
  AddHold();
  StartWrite(&request_);
  StartRead(&response_);
  StartCall();
}

absl::StatusOr<std::unique_ptr<TensorMapping>> TensorMapping::Open(Connection* connection,
                                                                   const v1::BeginMapping& begin,
                                                                   absl::Time deadline,
                                                                   std::function<void()> on_end) {
  std::unique_ptr<TensorMapping> mapping(
      new TensorMapping(connection, begin, std::move(on_end)));
  bool in_time = false;
  {
    std::unique_lock lock(mapping->mutex_);
    in_time = WaitUntil(mapping->changed_, lock, deadline, [&] {
      return mapping->done_ || (mapping->answered_ && !mapping->writing_);
    });
    // A stream that the daemon has ended says why itself.
    if (mapping->done_) return mapping->status_;
  }
  if (!in_time)
    return absl::DeadlineExceededError("the tensor was in use until the deadline of the mapping");
  AGMM_RETURN_IF_ERROR(mapping->Map(mapping->response_, deadline));
  // From here on its end detaches the memory.
  mapping->StartRead(&mapping->response_);
  return mapping;
}

absl::Status TensorMapping::Map(const v1::MapTensorResponse& response, absl::Time deadline) {
  AGMM_ASSIGN_OR_RETURN(const std::vector<int> fds, FetchFiles(response, deadline));
  const absl::Cleanup close_all = [&] {
    for (int fd : fds) close(fd);
  };
  tensor_ = response.tensor();
  if (static_cast<int>(fds.size()) != response.file_count()) {
    return absl::InternalError(
        absl::StrFormat("%d files came for a mapping of %d", fds.size(), response.file_count()));
  }
  for (const v1::MappedShard& shard : response.shards()) {
    // No more than the shard's own pages: what lies beside them is others'.
    const size_t bytes = (shard.row_end() - shard.row_begin()) * shard.pitch_bytes();
    if (shard.file() < 0 || shard.file() >= static_cast<int>(fds.size()))
      return absl::InternalError("a shard lies in a file that did not come");
    void* data = mmap(nullptr, bytes, writable_ ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                      fds[shard.file()], shard.offset_bytes());
    if (data == MAP_FAILED)
      return absl::ErrnoToStatus(errno, absl::StrFormat("rank %d cannot be mapped", shard.rank()));
    shard_bytes_.push_back(bytes);
    shards_.push_back({shard.rank(), shard.row_begin(), shard.row_end(), shard.col_begin(),
                       shard.col_end(), shard.pitch_bytes(), static_cast<std::byte*>(data)});
  }
  return absl::OkStatus();
}

absl::StatusOr<v1::Tensor> TensorMapping::Commit(absl::Time deadline) {
  if (!writable_) {
    return absl::FailedPreconditionError(
        "a mapping that is only read has nothing to commit; open a writable one");
  }
  std::unique_lock lock(mutex_);
  if (committing_)
    return absl::FailedPreconditionError("the mapping has been committed; map the tensor again");
  if (held_) {
    committing_ = true;
    // Before the daemon knows: the next user of the tensor is never written to.
    Detach();
    request_.mutable_commit();
    StartWriteLast(&request_, grpc::WriteOptions());
    Release();
  }
  const auto is_done = [this] { return done_; };
  const bool in_time = WaitUntil(changed_, lock, deadline, is_done);
  if (!in_time) {
    Cancel();
    changed_.wait(lock, is_done);
  }
  if (committed_.has_value()) return *committed_;
  if (in_time) return status_;
  return absl::DeadlineExceededError(absl::StrFormat(
      "the daemon did not answer the commit of \"%s\" in time; its version says whether the contents "
      "are the new ones",
      tensor_.name()));
}

absl::Status TensorMapping::status() const {
  std::lock_guard lock(mutex_);
  if (done_) return status_;
  return detached_ ? absl::AbortedError("the mapping is ending") : absl::OkStatus();
}

void TensorMapping::OnWriteDone(bool) {
  std::lock_guard lock(mutex_);
  writing_ = false;
  changed_.notify_all();
}

void TensorMapping::OnReadDone(bool ok) {
  std::lock_guard lock(mutex_);
  if (!ok) {
    // From here on the memory may be anybody's.
    Detach();
    return Release();
  }
  if (answered_) {
    committed_ = response_.tensor();
    return StartRead(&response_);
  }
  answered_ = true;
  changed_.notify_all();
}

void TensorMapping::OnDone(const grpc::Status& status) {
  std::function<void()> on_end;
  {
    std::lock_guard lock(mutex_);
    Detach();
    status_ = call_->Convert(status);
    if (status_.ok()) status_ = absl::AbortedError("the mapping has ended");
    call_.reset();
    on_end = std::move(on_end_);
  }
  on_end();
  std::lock_guard lock(mutex_);
  done_ = true;
  // Under the lock: whoever waits may destroy this object next.
  changed_.notify_all();
}

void TensorMapping::Detach() {
  if (std::exchange(detached_, true)) return;
  for (size_t i = 0; i < shards_.size(); ++i) {
    mmap(shards_[i].data, shard_bytes_[i], PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
}

void TensorMapping::Cancel() {
  if (call_.has_value()) call_->context()->TryCancel();
}

void TensorMapping::Release() {
  if (std::exchange(held_, false)) RemoveHold();
}

TensorMapping::~TensorMapping() {
  {
    std::unique_lock lock(mutex_);
    Cancel();
    Release();
    changed_.wait(lock, [this] { return done_; });
  }
  for (size_t i = 0; i < shards_.size(); ++i) munmap(shards_[i].data, shard_bytes_[i]);
}

}  // namespace agmm
