#include "daemon/sequencer/journal.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kernels/base/checksum.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "kernels/base/status.h"
#include "kernels/base/utf8.h"

namespace agmm::scheduler {
namespace {

constexpr char kMagic[] = "AGMMJOB1";
constexpr size_t kMagicBytes = sizeof(kMagic) - 1;
// Precedes each record.
struct Head {
  uint64_t bytes = 0, checksum = 0;
};
constexpr size_t kHeaderBytes = kMagicBytes + sizeof(uint64_t);
constexpr uint64_t kMaxRecordBytes = 64 << 10;
constexpr size_t kMaxErrorBytes = 16 << 10;
// Bound on records that wait for a slow disk.
constexpr int kMaxWaiting = 1000;
constexpr int64_t kPeriodNs = 100'000'000;
// A batch of records waits this long for more records, because the writer takes a core from the
// jobs each time it wakes.
constexpr absl::Duration kBatch = absl::Milliseconds(20);
// Interval at which a starting daemon checks whether the files are free.
constexpr absl::Duration kPoll = absl::Milliseconds(20);

uint64_t ChecksumOf(absl::string_view bytes) {
  Checksum checksum;
  checksum.Add(bytes);
  return checksum.value();
}

// Returns the job as a record; empty if it does not fit even without its ranks, its events and most
// of its error.
std::string Payload(v1::Job job) {
  for (v1::RankReport& rank : *job.mutable_ranks()) {
    rank.clear_steps();
    rank.clear_epoch_us();
  }
  if (job.ByteSizeLong() > kMaxRecordBytes) job.clear_ranks();
  if (job.ByteSizeLong() > kMaxRecordBytes) job.clear_events();
  if (job.ByteSizeLong() > kMaxRecordBytes && job.error().message().size() > kMaxErrorBytes) {
    std::string* message = job.mutable_error()->mutable_message();
    message->resize(kMaxErrorBytes);
    message->resize(NoUtf8From(*message).value_or(kMaxErrorBytes));
    *message += "...";
  }
  return job.ByteSizeLong() > kMaxRecordBytes ? "" : job.SerializeAsString();
}

}  // namespace

// The two files. Touched on one thread at a time.
class Journal::Files {
 public:
  Files(std::string path, const Bounds& bounds) : path_(std::move(path)), bounds_(bounds) {}
  ~Files() {
    for (const File& file : files_)
      if (file.fd >= 0) close(file.fd);
  }

  absl::Status Open() {
    for (int i : {0, 1}) {
      AGMM_RETURN_IF_ERROR(OpenOne(i));
      AGMM_RETURN_IF_ERROR(Lock(i));
    }
    return absl::OkStatus();
  }

  // Appends the jobs of both files, oldest first, and continues writing after the last one.
  void Read(std::vector<v1::Job>* jobs) {
    std::vector<v1::Job> read[2];
    for (int i : {0, 1}) read[i] = ReadOne(i);
    current_ = files_[1].number > files_[0].number ? 1 : 0;
    for (int i : {1 - current_, current_})
      std::move(read[i].begin(), read[i].end(), std::back_inserter(*jobs));
  }

  void Append(const std::string& payload) {
    const int64_t now_ns = MonotonicNanos();
    if (failed_ && now_ns < retry_ns_) return;
    Head head = {payload.size(), ChecksumOf(payload)};
    std::string record(reinterpret_cast<const char*>(&head), sizeof(head));
    absl::StrAppend(&record, payload);
    if (const File& file = files_[current_];
        file.number == 0 || file.bytes + static_cast<int64_t>(record.size()) > bounds_.file_bytes) {
      // If the next file cannot be begun, the current one stays in use.
      const int next = file.number == 0 ? current_ : 1 - current_;
      if (!Begin(&files_[next], std::max(files_[0].number, files_[1].number) + 1))
        return Fail(now_ns);
      current_ = next;
    }
    if (!WriteAt(&files_[current_], record)) return Fail(now_ns);
    if (std::exchange(failed_, false)) spdlog::info("the journal {} is written again", path_);
  }

 private:
  struct File {
    int fd = -1;
    uint64_t number = 0;  // from its header; 0: it has none
    int64_t bytes = 0;    // up to the end of the last whole record
  };

  std::string Name(int i) const { return absl::StrCat(path_, ".", i); }

  absl::Status OpenOne(int i) {
    // O_NONBLOCK, because opening a pipe in its place would block.
    const int fd =
        open(Name(i).c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0600);
    struct stat info {};
    if (fd < 0 || fstat(fd, &info) != 0) {
      const int error = errno;
      if (fd >= 0) close(fd);
      return absl::ErrnoToStatus(
          error,
          absl::StrCat(Name(i), error == ELOOP ? " is a symbolic link" : " cannot be opened"));
    }
    files_[i].fd = fd;
    if (!S_ISREG(info.st_mode))
      return absl::FailedPreconditionError(absl::StrCat(Name(i), " is not a file"));
    return absl::OkStatus();
  }

  // The file stays locked as long as it is open. A killed daemon keeps it open until its memory is
  // freed.
  absl::Status Lock(int i) {
    const Deadline end = Deadline::After(bounds_.patience);
    for (bool told = false; flock(files_[i].fd, LOCK_EX | LOCK_NB) != 0; told = true) {
      if (end.HasPassed())
        return absl::FailedPreconditionError(absl::StrCat(Name(i), " is in use by another daemon"));
      if (!told)
        spdlog::info("waiting up to {} for {}, which another daemon uses",
                     absl::FormatDuration(bounds_.patience), Name(i));
      absl::SleepFor(kPoll);
    }
    return absl::OkStatus();
  }

  std::vector<v1::Job> ReadOne(int i) {
    File& file = files_[i];
    std::string bytes(bounds_.file_bytes, '\0');
    size_t size = 0;
    while (size < bytes.size()) {
      const ssize_t got =
          pread(file.fd, bytes.data() + size, bytes.size() - size, static_cast<off_t>(size));
      if (got <= 0) break;
      size += got;
    }
    bytes.resize(size);
    if (bytes.empty()) return {};
    std::vector<v1::Job> jobs;
    size_t at = 0;
    if (size >= kHeaderBytes && std::memcmp(bytes.data(), kMagic, kMagicBytes) == 0) {
      std::memcpy(&file.number, bytes.data() + kMagicBytes, sizeof(file.number));
      at = kHeaderBytes;
      Head head;
      while (size - at >= sizeof(head)) {
        std::memcpy(&head, bytes.data() + at, sizeof(head));
        if (head.bytes > std::min<uint64_t>(kMaxRecordBytes, size - at - sizeof(head))) break;
        const absl::string_view payload(bytes.data() + at + sizeof(head), head.bytes);
        v1::Job job;
        if (ChecksumOf(payload) != head.checksum ||
            !job.ParseFromArray(payload.data(), static_cast<int>(payload.size())))
          break;
        jobs.push_back(std::move(job));
        at += sizeof(head) + head.bytes;
      }
    }
    file.bytes = static_cast<int64_t>(at);
    if (at < size) {
      spdlog::warn("{} is torn or damaged from byte {} on; the {} bytes from there are dropped",
                   Name(i), at, size - at);
      // If this fails, the next write fails, too, and logs its own line.
      [[maybe_unused]] const int cut = ftruncate(file.fd, static_cast<off_t>(at));
    }
    return jobs;
  }

  bool Begin(File* file, uint64_t number) {
    if (ftruncate(file->fd, 0) != 0) return false;
    *file = {file->fd};
    std::string header(kMagic, kMagicBytes);
    header.append(reinterpret_cast<const char*>(&number), sizeof(number));
    if (!WriteAt(file, header)) return false;
    file->number = number;
    return true;
  }

  // Writes after the last whole record; an error leaves no torn record.
  bool WriteAt(File* file, absl::string_view bytes) {
    size_t written = 0;
    while (written < bytes.size()) {
      const ssize_t put = pwrite(file->fd, bytes.data() + written, bytes.size() - written,
                                 static_cast<off_t>(file->bytes + static_cast<int64_t>(written)));
      if (put < 0 && errno == EINTR) continue;
      if (put <= 0) {
        const int error = put == 0 ? ENOSPC : errno;
        [[maybe_unused]] const int cut = ftruncate(file->fd, file->bytes);
        errno = error;
        return false;
      }
      written += put;
    }
    file->bytes += static_cast<int64_t>(bytes.size());
    return true;
  }

  void Fail(int64_t now_ns) {
    retry_ns_ = now_ns + absl::ToInt64Nanoseconds(bounds_.retry);
    if (std::exchange(failed_, true)) return;
    spdlog::warn("cannot write the journal of jobs {}: {}; trying again every {}", path_,
                 std::strerror(errno), absl::FormatDuration(bounds_.retry));
  }

  const std::string path_;
  const Bounds bounds_;
  File files_[2];
  int current_ = 0;
  bool failed_ = false;
  int64_t retry_ns_ = 0;
};

absl::StatusOr<std::unique_ptr<Journal>> Journal::Open(const std::string& path, Metrics* metrics,
                                                       const Bounds& bounds) {
  auto files = std::make_unique<Files>(path, bounds);
  AGMM_RETURN_IF_ERROR(files->Open());
  std::unique_ptr<Journal> journal(new Journal(std::move(files), metrics, bounds));
  AGMM_RETURN_IF_ERROR(journal->writer_.status());
  std::vector<v1::Job>& jobs = journal->earlier_;
  journal->files_->Read(&jobs);
  if (jobs.size() > bounds.jobs)
    jobs.erase(jobs.begin(), jobs.end() - static_cast<int64_t>(bounds.jobs));
  for (v1::Job& job : jobs) job.set_earlier_run(true);
  return journal;
}

Journal::Journal(std::unique_ptr<Files> files, Metrics* metrics, const Bounds& bounds)
    : bounds_(bounds),
      left_out_(metrics->counter("job_journal_left_out_total")),
      files_(std::move(files)) {}

Journal::~Journal() {
  writer_.Stop();
  WriteBatch();
}

bool Journal::HasRoom(bool succeeded, int64_t now_ns) {
  if (const int64_t period = now_ns / kPeriodNs; period != period_) {
    period_ = period;
    succeeded_ = failed_ = 0;
  }
  if (waiting_ < kMaxWaiting &&
      (succeeded ? succeeded_++ < bounds_.succeeded : failed_++ < bounds_.failed))
    return true;
  left_out_->Add();
  return false;
}

void Journal::Add(v1::Job job) {
  const bool failed = job.has_error();
  std::string payload = Payload(std::move(job));
  if (payload.empty()) return left_out_->Add();
  ++waiting_;
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = batch_.empty();
    batch_.push_back(std::move(payload));
  }
  if (failed) {
    writer_.Post([this] { WriteBatch(); });
  } else if (first) {
    writer_.PostAfter(kBatch, [this] { WriteBatch(); });
  }
}

void Journal::WriteBatch() {
  std::vector<std::string> payloads;
  {
    std::lock_guard lock(mutex_);
    payloads.swap(batch_);
  }
  for (const std::string& payload : payloads) {
    files_->Append(payload);
    --waiting_;
  }
}

}  // namespace agmm::scheduler
