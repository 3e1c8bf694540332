#include "client/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "client/npy_header.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view action) {
  return absl::ErrnoToStatus(errno, absl::StrFormat("cannot %s %s", action, path));
}

// Reads up to `bytes` at `offset`; fewer at the end of the file. -1 and errno on failure.
int64_t ReadAt(int fd, int64_t offset, int64_t bytes, char* out) {
  int64_t done = 0;
  while (done < bytes) {
    const ssize_t got = pread(fd, out + done, bytes - done, offset + done);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    done += got;
  }
  return done;
}

bool WriteAt(int fd, int64_t offset, int64_t bytes, const char* from) {
  while (bytes > 0) {
    const ssize_t put = pwrite(fd, from, bytes, offset);
    if (put < 0 && errno == EINTR) continue;
    if (put < 0) return false;
    from += put, offset += put, bytes -= put;
  }
  return true;
}

// `what` are rows or elements; there are `size` of them.
absl::Status CheckRange(const std::string& path, const char* what, int64_t begin, int64_t count,
                        int64_t size) {
  if (begin >= 0 && count >= 0 && begin <= size && count <= size - begin) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat("%d %s from number %d are outside the %d of %s",
                                               count, what, begin, size, path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::OpenFile(const std::string& path,
                                                               int64_t* file_bytes) {
  // Without O_NONBLOCK, opening a pipe that nobody writes to would block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return SystemError(path, "open");
  std::unique_ptr<NpyReader> reader(new NpyReader(path, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, "examine");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not a regular file; matrices are read by position", path));
  }
  *file_bytes = info.st_size;
  return reader;
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::Open(const std::string& path) {
  int64_t file_bytes = 0;
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<NpyReader> reader, OpenFile(path, &file_bytes));
  const int fd = reader->fd_;
  std::string text(kNpyPrefixBytes, '\0');
  int64_t got = ReadAt(fd, 0, kNpyPrefixBytes, text.data());
  if (got < 0) return SystemError(path, "read");
  const absl::StatusOr<NpyExtent> extent = ParseNpyPrefix(absl::string_view(text).substr(0, got));
  if (!extent.ok()) return Annotate(extent.status(), path);
  text.resize(extent->bytes);
  got = ReadAt(fd, extent->offset, extent->bytes, text.data());
  if (got < 0) return SystemError(path, "read");
  if (got < extent->bytes) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "%s: truncated: the header needs %d bytes, %d were found", path, extent->bytes, got));
  }
  const absl::StatusOr<NpyHeader> header = ParseNpyDict(text);
  if (!header.ok()) return Annotate(header.status(), path);
  const absl::StatusOr<DType> dtype = CheckNpyMatrix(*header);
  if (!dtype.ok()) return Annotate(dtype.status(), path);
  reader->dtype_ = *dtype;
  reader->rows_ = header->shape[0];
  reader->cols_ = header->shape[1];
  reader->data_offset_ = extent->offset + extent->bytes;
  AGMM_RETURN_IF_ERROR(reader->CheckSize(file_bytes));
  return reader;
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::OpenRaw(const std::string& path, int64_t rows,
                                                              int64_t cols, DType dtype) {
  if (rows < 1 || cols < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: a matrix of %d x %d is empty", path, rows, cols));
  }
  int64_t file_bytes = 0;
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<NpyReader> reader, OpenFile(path, &file_bytes));
  reader->rows_ = rows;
  reader->cols_ = cols;
  reader->dtype_ = dtype;
  AGMM_RETURN_IF_ERROR(reader->CheckSize(file_bytes));
  return reader;
}

absl::Status NpyReader::CheckSize(int64_t file_bytes) const {
  const int64_t found = file_bytes - data_offset_;
  // In steps, since the product of hostile sizes may not fit.
  const int64_t room = found / SizeOf(dtype_);
  const bool truncated = cols_ > room || rows_ > room / cols_;
  if (!truncated && rows_ * row_bytes() == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: %d x %d %s take %.0f bytes%s, %d were found", path_,
                      truncated ? "truncated" : "bytes are left over", rows_, cols_, Name(dtype_),
                      static_cast<double>(rows_) * cols_ * SizeOf(dtype_),
                      data_offset_ == 0 ? "" : " behind the header", found));
}

NpyReader::~NpyReader() { close(fd_); }

absl::Status NpyReader::ReadRows(int64_t begin, int64_t count, void* out) const {
  AGMM_RETURN_IF_ERROR(CheckRange(path_, "rows", begin, count, rows_));
  return ReadElements(begin * cols_, count * cols_, out);
}

absl::Status NpyReader::ReadElements(int64_t begin, int64_t count, void* out) const {
  AGMM_RETURN_IF_ERROR(CheckRange(path_, "elements", begin, count, rows_ * cols_));
  const int64_t bytes = count * SizeOf(dtype_);
  const int64_t got =
      ReadAt(fd_, data_offset_ + begin * SizeOf(dtype_), bytes, static_cast<char*>(out));
  if (got < 0) return SystemError(path_, "read");
  if (got < bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s has become shorter while it was read: %d bytes expected, %d found", path_, bytes, got));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WritableTarget(const std::string& path) {
  struct stat info;
  if (path.empty()) return absl::InvalidArgumentError("the output has no name; give a file");
  if (path == "-") {
    return absl::InvalidArgumentError(
        "output goes to a file, not to standard output; give its name");
  }
  if (stat(path.c_str(), &info) != 0) return path;
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is there and is no regular file; name another output", path));
  }
  if ((info.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0 || access(path.c_str(), W_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is there and is read-only; name another output", path));
  }
  std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? path : std::string(real.get());
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path, int64_t rows,
                                                             int64_t cols, DType dtype) {
  if (dtype == DType::kBF16) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: .npy files have no bf16; write f32, which holds every bf16", path));
  }
  return CreateWith(NpyPreamble(rows, cols, dtype), path, rows, cols, dtype);
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::CreateRaw(const std::string& path,
                                                                int64_t rows, int64_t cols,
                                                                DType dtype) {
  return CreateWith("", path, rows, cols, dtype);
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::CreateWith(const std::string& preamble,
                                                                 const std::string& path,
                                                                 int64_t rows, int64_t cols,
                                                                 DType dtype) {
  if (rows < 1 || cols < 1) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: a matrix of %d x %d is empty", path, rows, cols));
  }
  AGMM_ASSIGN_OR_RETURN(const std::string target, WritableTarget(path));
  static std::atomic<int> serial{0};
  const std::string temporary = absl::StrFormat("%s.tmp-%d-%d", target, getpid(), ++serial);
  const int fd = open(temporary.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot create %s: %s", path, std::strerror(errno)));
  }
  std::unique_ptr<NpyWriter> writer(new NpyWriter(target, temporary, fd, rows, cols, dtype));
  writer->data_offset_ = static_cast<int64_t>(preamble.size());
  if (!WriteAt(fd, 0, writer->data_offset_, preamble.data()))
    return SystemError(temporary, "write");
  return writer;
}

NpyWriter::~NpyWriter() {
  if (fd_ < 0) return;
  close(fd_);
  unlink(temporary_.c_str());
}

absl::Status NpyWriter::WriteRows(int64_t begin, int64_t count, const void* rows) {
  AGMM_RETURN_IF_ERROR(CheckRange(path_, "rows", begin, count, rows_));
  return WriteElements(begin * cols_, count * cols_, rows);
}

absl::Status NpyWriter::WriteElements(int64_t begin, int64_t count, const void* elements) {
  AGMM_RETURN_IF_ERROR(CheckRange(path_, "elements", begin, count, rows_ * cols_));
  if (fd_ < 0) return absl::FailedPreconditionError(path_ + " has been committed");
  if (!WriteAt(fd_, data_offset_ + begin * SizeOf(dtype_), count * SizeOf(dtype_),
               static_cast<const char*>(elements))) {
    return SystemError(temporary_, "write");
  }
  if (count > 0) MarkWritten(begin, begin + count);
  return absl::OkStatus();
}

void NpyWriter::MarkWritten(int64_t begin, int64_t end) {
  auto next = written_.upper_bound(end);
  while (next != written_.begin()) {
    auto last = std::prev(next);
    if (last->second < begin) break;
    begin = std::min(begin, last->first);
    end = std::max(end, last->second);
    next = written_.erase(last);
  }
  written_[begin] = end;
}

absl::Status NpyWriter::Commit() {
  if (fd_ < 0) return absl::FailedPreconditionError(path_ + " has been committed");
  if (written_.size() != 1 ||
      *written_.begin() != std::pair<const int64_t, int64_t>(0, rows_ * cols_)) {
    int64_t count = 0;
    for (const auto& [begin, end] : written_) count += end - begin;
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d of %d rows were written", path_, count / cols_, rows_));
  }
  const bool closed = close(std::exchange(fd_, -1)) == 0;
  if (closed && rename(temporary_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = SystemError(path_, "put in place");
  unlink(temporary_.c_str());
  return status;
}

}  // namespace agmm
