#include "client/connect/tensor_mapping.h"

#include <pthread.h>
#include <sys/mman.h>
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

// Maps the file so that a forked child does not inherit it. Returns MAP_FAILED and sets errno on
// failure.
void* MapForThisProcess(size_t bytes, bool writable, int file, int64_t offset_bytes) {
  const int access = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  // A child forked between the two calls inherits no access.
  void* const data = MapShared(bytes, PROT_NONE, file, offset_bytes);
  if (data == MAP_FAILED) return MAP_FAILED;
  if (madvise(data, bytes, MADV_DONTFORK) == 0 && mprotect(data, bytes, access) == 0) return data;
  const int error = errno;
  munmap(data, bytes);
  errno = error;
  return MAP_FAILED;
}

// Replaces the mapping by private zeros or, without memory for them, by inaccessible pages. Returns
// false if the old mapping is still there.
bool ReplaceByOwn(void* data, size_t bytes) {
  constexpr int kFlags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE;
  return mmap(data, bytes, PROT_READ | PROT_WRITE, kFlags, -1, 0) != MAP_FAILED ||
         mmap(data, bytes, PROT_NONE, kFlags, -1, 0) != MAP_FAILED || munmap(data, bytes) == 0;
}

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

absl::Status NoFiles(const std::string& socket, absl::string_view why) {
  return absl::UnavailableError(
      absl::StrFormat("the files of the mapping cannot be fetched at %s: %s", socket, why));
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

absl::StatusOr<std::unique_ptr<TensorMapping>> TensorMapping::Open(Connection* connection,
                                                                   const v1::BeginMapping& begin,
                                                                   Deadline deadline,
                                                                   const std::string& sequencer,
                                                                   std::shared_ptr<void> use) {
  AGMM_RETURN_IF_ERROR(CheckReadable(begin.tensor()));
  std::unique_ptr<TensorMapping> mapping(
      new TensorMapping(connection, begin, sequencer, std::move(use)));
  bool in_time = false;
  {
    std::unique_lock lock(mapping->mutex_);
    in_time = mapping->changed_.wait_until(lock, deadline.time_point(), [&] {
      return mapping->done_ || (mapping->answered_ && !mapping->writing_);
    });
    // The status of an ended stream is more specific than the deadline.
    if (mapping->done_) return mapping->status_;
  }
  if (!in_time)
    return absl::DeadlineExceededError(
        "the tensor was in use until the deadline of the mapping; wait for its jobs and transfers, "
        "or "
        "give a longer timeout");
  AGMM_RETURN_IF_ERROR(mapping->Map(mapping->response_, deadline));
  // From here on, the end of the stream detaches the memory.
  mapping->StartRead(&mapping->response_);
  if (begin.writable()) mapping->TakeLargePages(deadline);
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
    const size_t bytes = (shard.row_end() - shard.row_begin()) * shard.pitch_bytes();
    if (shard.file() < 0 || shard.file() >= static_cast<int>(fds.size()))
      return absl::InternalError("a shard is in a file that the daemon did not send");
    void* const data = MapForThisProcess(bytes, writable_, fds[shard.file()], shard.offset_bytes());
    if (data == MAP_FAILED)
      return absl::ErrnoToStatus(errno, absl::StrFormat("rank %d cannot be mapped", shard.rank()));
    shard_bytes_.push_back(bytes);
    shards_.push_back({shard.rank(), shard.row_begin(), shard.row_end(), shard.col_begin(),
                       shard.col_end(), shard.pitch_bytes(), static_cast<std::byte*>(data)});
  }
  return absl::OkStatus();
}

void TensorMapping::TakeLargePages(Deadline deadline) {
  constexpr size_t kStretchBytes = 8 * kLargePageBytes;
  for (size_t i = 0; i < shards_.size(); ++i) {
    for (size_t at = 0; at < shard_bytes_[i]; at += kStretchBytes) {
      // Works in stretches, because the lock delays a detachment of the memory.
      std::lock_guard lock(mutex_);
      if (detached_ || deadline.HasPassed()) return;
      const size_t bytes = std::min(kStretchBytes + kLargePageBytes, shard_bytes_[i] - at);
      if (!MakeLargePages(shards_[i].data + at, static_cast<int64_t>(bytes))) return;
    }
  }
}

absl::StatusOr<v1::Tensor> TensorMapping::Commit(Deadline deadline) {
  if (!writable_) {
    return absl::FailedPreconditionError(
        "a mapping that is only read has nothing to commit; open a writable one");
  }
  std::unique_lock lock(mutex_);
  if (committing_)
    return absl::FailedPreconditionError("the mapping has been committed; map the tensor again");
  if (held_) {
    committing_ = true;
    // First, because the daemon commits once the memory is unmapped.
    Detach();
    request_.mutable_commit();
    StartWriteLast(&request_, grpc::WriteOptions());
    Release();
  }
  const auto is_done = [this] { return done_; };
  const bool in_time = changed_.wait_until(lock, deadline.time_point(), is_done);
  if (!in_time) {
    Cancel();
    changed_.wait(lock, is_done);
  }
  if (committed_.has_value()) return *committed_;
  if (in_time) return status_;
  return absl::DeadlineExceededError(
      absl::StrFormat("the daemon did not answer the commit of \"%s\" in time; its version says "
                      "whether the contents are the new ones",
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
    // The daemon reclaims the memory, or was lost.
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
  std::shared_ptr<void> use;  // destroyed after the lock is released
  std::lock_guard lock(mutex_);
  Detach();
  status_ = call_->Convert(status);
  if (ended_here_) {
    status_ = absl::CancelledError("the mapping was ended by its holder; map the tensor again");
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
  for (size_t i = 0; i < shards_.size(); ++i) all &= ReplaceByOwn(shards_[i].data, shard_bytes_[i]);
  if (all) files_.Release();
}

void TensorMapping::Cancel() {
  if (call_.has_value()) call_->context()->TryCancel();
}

void TensorMapping::Release() {
  if (std::exchange(held_, false)) RemoveHold();
}

void TensorMapping::End() {
  std::unique_lock lock(mutex_);
  if (committing_) return;
  ended_here_ |= !detached_;
  Cancel();
  Release();
  changed_.wait(lock, [this] { return done_; });
}

TensorMapping::~TensorMapping() {
  End();
  for (size_t i = 0; i < shards_.size(); ++i) munmap(shards_[i].data, shard_bytes_[i]);
}

absl::StatusOr<std::vector<int>> MappedFiles::Fetch(const v1::MapTensorResponse& response,
                                                    Deadline deadline) {
  const std::string& path = response.file_socket();
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.size() >= sizeof(address.sun_path)) return NoFiles(path, "its path is too long");
  std::memcpy(address.sun_path, path.data(), path.size());
  const int fd = connection_ = Connections::Get().Open();
  if (fd < 0) return NoFiles(path, std::strerror(errno));
  absl::Cleanup release = [this] { Release(); };
  const absl::Duration left = std::clamp(deadline.Left(), absl::Milliseconds(1), kFetch);
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
  std::vector<int> files;
  for (cmsghdr* header = CMSG_FIRSTHDR(&message); header != nullptr;
       header = CMSG_NXTHDR(&message, header)) {
    if (header->cmsg_level != SOL_SOCKET || header->cmsg_type != SCM_RIGHTS) continue;
    files.resize((header->cmsg_len - CMSG_LEN(0)) / sizeof(int));
    std::memcpy(files.data(), CMSG_DATA(header), files.size() * sizeof(int));
  }
  std::move(release).Cancel();
  return files;
}

void MappedFiles::Release() {
  if (const int connection = std::exchange(connection_, -1); connection >= 0)
    Connections::Get().Close(connection);
}

}  // namespace agmm
