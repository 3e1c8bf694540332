#include "client/npy/npy.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/base/status.h"

namespace agmm {
namespace {

absl::Status SystemError(const std::string& path, absl::string_view action) {
  return absl::ErrnoToStatus(errno, absl::StrFormat("cannot %s %s", action, path));
}

// Reads up to `bytes` at `offset`, fewer at the end of the file. Returns -1 and sets errno on
// failure.
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

absl::Status CheckNotEmpty(const std::string& path, int64_t rows, int64_t cols) {
  if (rows >= 1 && cols >= 1) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: a matrix of %d x %d is empty", path, rows, cols));
}

absl::Status CheckRange(const std::string& path, int64_t begin, int64_t count,
                        const NpyLayout& layout) {
  const int64_t size = layout.rows * layout.cols;
  if (begin >= 0 && count >= 0 && begin <= size && count <= size - begin) return absl::OkStatus();
  return absl::OutOfRangeError(absl::StrFormat(
      "%d elements from number %d are outside the %d of %s", count, begin, size, path));
}

}  // namespace

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::OpenFile(const std::string& path) {
  // O_NONBLOCK, because opening a pipe without a writer would block.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot open %s: %s", path, std::strerror(errno)));
  }
  std::unique_ptr<NpyReader> reader(new NpyReader(path, fd));
  struct stat info;
  if (fstat(fd, &info) != 0) return SystemError(path, "examine");
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s is not a regular file; matrices are read by position", path));
  }
  reader->file_bytes_ = info.st_size;
  return reader;
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::Open(const std::string& path) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<NpyReader> reader, OpenFile(path));
  std::string text(std::min(reader->file_bytes_, kMaxNpyHeaderBytes), '\0');
  const int64_t got = ReadAt(reader->fd_, 0, static_cast<int64_t>(text.size()), text.data());
  if (got < 0) return SystemError(path, "read");
  const auto layout = ParseNpyHeader(absl::string_view(text).substr(0, got));
  if (!layout.ok()) return Annotate(layout.status(), path);
  reader->layout_ = *layout;
  AGMM_RETURN_IF_ERROR(reader->CheckSize());
  return reader;
}

absl::StatusOr<std::unique_ptr<NpyReader>> NpyReader::OpenRaw(const std::string& path, int64_t rows,
                                                              int64_t cols, DType dtype) {
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<NpyReader> reader, OpenFile(path));
  reader->layout_ = {rows, cols, dtype};
  AGMM_RETURN_IF_ERROR(reader->CheckSize());
  return reader;
}

absl::Status NpyReader::CheckSize() const {
  const auto& [rows, cols, dtype, data_offset] = layout_;
  const int64_t found = file_bytes_ - data_offset;
  // In two steps, because the product of hostile sizes may overflow.
  const int64_t room = found / SizeOf(dtype);
  const bool truncated = cols > room || rows > room / cols;
  if (!truncated && rows * cols * SizeOf(dtype) == found) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrFormat("%s: %s: %d x %d %s take %.0f bytes%s, %d were found", path_,
                      truncated ? "truncated" : "bytes are left over", rows, cols, Name(dtype),
                      static_cast<double>(rows) * cols * SizeOf(dtype),
                      data_offset == 0 ? "" : " after the header", found));
}

NpyReader::~NpyReader() { close(fd_); }

absl::Status NpyReader::ReadElements(int64_t begin, int64_t count, void* out) const {
  AGMM_RETURN_IF_ERROR(CheckRange(path_, begin, count, layout_));
  const int64_t bytes = count * SizeOf(dtype());
  const int64_t offset = layout_.data_offset + begin * SizeOf(dtype());
  const int64_t got = ReadAt(fd_, offset, bytes, static_cast<char*>(out));
  if (got < 0) return SystemError(path_, "read");
  if (got < bytes) {
    return absl::DataLossError(absl::StrFormat(
        "%s became shorter while it was read: %d bytes expected, %d found", path_, bytes, got));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::string> WritableTarget(const std::string& path) {
  struct stat info;
  if (path.empty()) return absl::InvalidArgumentError("the name of the output file is empty");
  if (path == "-") {
    return absl::InvalidArgumentError(
        "output cannot go to standard output; give the name of a file");
  }
  if (stat(path.c_str(), &info) != 0) return path;
  if (!S_ISREG(info.st_mode)) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s exists and is not a regular file; name another output", path));
  }
  if ((info.st_mode & (S_IWUSR | S_IWGRP | S_IWOTH)) == 0 || access(path.c_str(), W_OK) != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s exists and is read-only; name another output", path));
  }
  std::unique_ptr<char, decltype(&std::free)> real(realpath(path.c_str(), nullptr), &std::free);
  return real == nullptr ? path : std::string(real.get());
}

absl::StatusOr<std::unique_ptr<NpyWriter>> NpyWriter::Create(const std::string& path, int64_t rows,
                                                             int64_t cols, DType dtype, bool raw) {
  if (dtype == DType::kBF16 && !raw) {
    return absl::InvalidArgumentError(
        absl::StrFormat("%s: .npy files have no bf16; write f32, which holds every bf16", path));
  }
  AGMM_RETURN_IF_ERROR(CheckNotEmpty(path, rows, cols));
  AGMM_ASSIGN_OR_RETURN(const std::string target, WritableTarget(path));
  static std::atomic<int> serial{0};
  const std::string temporary = absl::StrFormat("%s.tmp-%d-%d", target, getpid(), ++serial);
  std::FILE* const file = std::fopen(temporary.c_str(), "wxe");
  if (file == nullptr) {
    return absl::InvalidArgumentError(
        absl::StrFormat("cannot create %s: %s", path, std::strerror(errno)));
  }
  std::unique_ptr<NpyWriter> writer(new NpyWriter(target, temporary, file, {rows, cols, dtype}));
  const std::string preamble = raw ? "" : NpyPreamble(rows, cols, dtype);
  if (std::fwrite(preamble.data(), 1, preamble.size(), file) < preamble.size())
    return SystemError(temporary, "write");
  return writer;
}

NpyWriter::~NpyWriter() {
  if (file_ == nullptr) return;
  std::fclose(file_);
  unlink(temporary_.c_str());
}

absl::Status NpyWriter::Append(int64_t count, const void* elements) {
  if (file_ == nullptr) return absl::FailedPreconditionError(path_ + " has been committed");
  AGMM_RETURN_IF_ERROR(CheckRange(path_, written_, count, layout_));
  if (std::fwrite(elements, SizeOf(dtype()), count, file_) < static_cast<size_t>(count))
    return SystemError(temporary_, "write");
  written_ += count;
  return absl::OkStatus();
}

absl::Status NpyWriter::Commit() {
  if (file_ == nullptr) return absl::FailedPreconditionError(path_ + " has been committed");
  if (const int64_t size = rows() * cols(); written_ != size) {
    return absl::FailedPreconditionError(
        absl::StrFormat("%s: %d of %d elements were written", path_, written_, size));
  }
  const bool closed = std::fclose(std::exchange(file_, nullptr)) == 0;
  if (closed && rename(temporary_.c_str(), path_.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = SystemError(path_, "put in place");
  unlink(temporary_.c_str());
  return status;
}

}  // namespace agmm
