#include "kernels/base/read_file.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <future>
#include <string>
#include <utility>

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

class ReadPipe : public ::testing::Test {
 protected:
  ReadPipe() {
    EXPECT_EQ(mkfifo(path_.c_str(), 0600), 0);
    writer_ = open(path_.c_str(), O_RDWR | O_CLOEXEC);  // waits for no reader
    EXPECT_GE(writer_, 0);
  }
  ~ReadPipe() override { Close(); }
  void Close() {
    if (const int fd = std::exchange(writer_, -1); fd >= 0) close(fd);
  }
  void Write(const std::string& text) {
    EXPECT_EQ(write(writer_, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  }

  const TempFolder folder_{"read"};
  const std::string path_ = folder_ / "pipe";
  int writer_ = -1;
};

TEST_F(ReadPipe, AReadFromASilentWriterEndsAtItsDeadline) {
  Write("half");
  EXPECT_EQ(ReadFileUpTo(path_, 100, "the file x", absl::Milliseconds(20)).status(),
            absl::DeadlineExceededError(
                "the file x did not end within 20ms; give a file instead of a pipe"));
}

TEST_F(ReadPipe, ASlowWriterIsReadToItsEnd) {
  Write("half ");
  auto read = std::async(std::launch::async,
                         [this] { return ReadFileUpTo(path_, 100, "the file x", kPatience); });
  EXPECT_TRUE(Eventually([this] {
    int unread = 1;
    return ioctl(writer_, FIONREAD, &unread) == 0 && unread == 0;
  }));
  Write("and the rest");
  Close();
  const absl::StatusOr<FileContents> contents = read.get();
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->bytes, "half and the rest");
}

TEST_F(ReadPipe, NoMoreIsReadThanAskedFor) {
  Write("more than asked for");
  const absl::StatusOr<FileContents> contents = ReadFileUpTo(path_, 4, "the file x", kPatience);
  ASSERT_TRUE(contents.ok()) << contents.status();
  EXPECT_EQ(contents->bytes, "more");
}

}  // namespace
}  // namespace agmm
