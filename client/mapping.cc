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

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> Mapping::Open(Connection* connection,
                                                       const v1::BeginMapping& begin,
                                                       absl::Time deadline) {
  std::unique_ptr<Mapping> mapping(new Mapping(connection));
  mapping->stream_ = connection->tensors()->MapTensor(mapping->call_.context());
  v1::MapTensorRequest request;
  *request.mutable_begin() = begin;
  mapping->stream_->Write(request);
  // The stream outlives the deadline, which is that of its first answer.
  std::mutex mutex;
  std::condition_variable answered;
  bool done = false, late = false;
  std::thread timer([&] {
    std::unique_lock lock(mutex);
    const auto is_done = [&] { return done; };
    if (deadline == absl::InfiniteFuture()) {
      answered.wait(lock, is_done);
    } else if (!answered.wait_until(lock, absl::ToChronoTime(deadline), is_done)) {
      late = true;
      mapping->call_.context()->TryCancel();
    }
  });
  v1::MapTensorResponse response;
  const bool ok = mapping->stream_->Read(&response);
  {
    std::lock_guard lock(mutex);
    done = true;
    answered.notify_one();
  }
  timer.join();
  absl::Status status;
  if (ok) status = mapping->Map(response, begin.writable(), deadline);
  if (!ok || !status.ok()) {
    // A stream that the daemon has ended says why itself.
    if (ok) mapping->call_.context()->TryCancel();
    const absl::Status end = mapping->call_.Convert(mapping->stream_->Finish());
    mapping->stream_.reset();
    if (late)
      return absl::DeadlineExceededError("the tensor was in use until the deadline of the mapping");
    return ok ? status : end;
  }
  mapping->watcher_ = std::thread([raw = mapping.get()] { raw->Watch(); });
  return mapping;
}

absl::Status Mapping::Map(const v1::MapTensorResponse& response, bool writable,
                          absl::Time deadline) {
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
    void* data = mmap(nullptr, bytes, writable ? PROT_READ | PROT_WRITE : PROT_READ, MAP_SHARED,
                      fds[shard.file()], shard.offset_bytes());
    if (data == MAP_FAILED)
      return absl::ErrnoToStatus(errno, absl::StrFormat("rank %d cannot be mapped", shard.rank()));
    regions_.push_back({static_cast<std::byte*>(data), bytes});
    shards_.push_back({shard.rank(), shard.row_begin(), shard.row_end(), shard.col_begin(),
                       shard.col_end(), shard.pitch_bytes(), static_cast<std::byte*>(data)});
  }
  return absl::OkStatus();
}

void Mapping::Watch() {
  v1::MapTensorResponse response;
  while (stream_->Read(&response)) {
    std::lock_guard lock(mutex_);
    committed_ = true;
    committed_tensor_ = response.tensor();
  }
  // From here on the memory may be anybody's.
  Detach();
  const absl::Status status = call_.Convert(stream_->Finish());
  std::lock_guard lock(mutex_);
  ended_ = true;
  status_ = status.ok() ? absl::AbortedError("the mapping has ended") : status;
}

void Mapping::Detach() {
  for (const Region& region : regions_) {
    mmap(region.data, region.bytes, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE, -1, 0);
  }
}

absl::StatusOr<v1::Tensor> Mapping::Commit() {
  v1::MapTensorRequest request;
  request.mutable_commit();
  // Where the stream has ended, its status says why.
  if (stream_->Write(request)) stream_->WritesDone();
  if (watcher_.joinable()) watcher_.join();
  std::lock_guard lock(mutex_);
  if (committed_) return committed_tensor_;
  return status_;
}

absl::Status Mapping::status() const {
  std::lock_guard lock(mutex_);
  return ended_ ? status_ : absl::OkStatus();
}

Mapping::~Mapping() {
  if (watcher_.joinable()) {
    call_.context()->TryCancel();
    watcher_.join();
  }
  for (const Region& region : regions_) munmap(region.data, region.bytes);
}

}  // namespace agmm
