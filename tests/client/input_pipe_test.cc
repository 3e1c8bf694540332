// Pipes in place of files of tensors.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <stop_token>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "client/files/npy.h"
#include "client/files/tensor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Code = absl::StatusCode;

std::string Safetensors(absl::string_view json, absl::string_view data) {
  const uint64_t size = json.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return absl::StrCat(bytes, json, data);
}

constexpr char kHeader[] = R"({"a":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";

class InputPipe : public ::testing::Test {
 protected:
  std::string Pipe(const std::string& name) const {
    const std::string path = folder_ / name;
    EXPECT_EQ(mkfifo(path.c_str(), 0600), 0);
    return path;
  }
  // Opens a pipe into which `bytes` are written. Its writer leaves it open until the pipe has been
  // opened; `in_time` tells whether this was soon.
  absl::Status OpenSilent(const std::string& name, const std::string& bytes, bool* in_time) const {
    const std::string path = Pipe(name);
    Notification opened;
    std::thread writer([&] {
      const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
      EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      *in_time = opened.WaitFor(kPatience);
      close(fd);
    });
    const absl::Status status = TensorFile::Open(path).status();
    opened.Notify();
    writer.join();
    return status;
  }

  const TempFolder folder_{"input_pipe"};
};

TEST_F(InputPipe, IsReadLikeAFileAndNoFurtherThanItsTensors) {
  const std::string data(16, 'x');
  for (const auto& [name, sent, error] :
       {std::tuple("whole", Safetensors(kHeader, data), ""),
        {"long", Safetensors(kHeader, data + "y"),
         "the tensors take 16 bytes, but the file has 17"},
        {"short", Safetensors(kHeader, data.substr(1)), "but the file has 15 after its header"},
        {"no_header", Safetensors(kHeader, "").substr(0, 30), "the header needs 57 bytes, 22 were"},
        {"nothing", std::string(), "it has 0 bytes, less than any header"}}) {
    const std::string path = Pipe(absl::StrCat(name, ".safetensors"));
    std::thread writer([&path, bytes = sent] {
      const int fd = open(path.c_str(), O_WRONLY | O_CLOEXEC);
      EXPECT_EQ(write(fd, bytes.data(), bytes.size()), static_cast<ssize_t>(bytes.size()));
      close(fd);
    });
    const auto file = TensorFile::Open(path);
    writer.join();
    EXPECT_THAT(std::string(file.status().message()), HasSubstr(error)) << name;
    if (!file.ok()) continue;
    std::string read(16, '\0');
    const MatrixReader reader = (*file)->Reader(*(*file)->tensors()[0].layout);
    EXPECT_EQ(reader.ReadElements(0, 4, read.data()), absl::OkStatus());
    EXPECT_EQ(read, data);
  }
}

TEST_F(InputPipe, AWrongHeaderIsRefusedBeforeTheRestIsRead) {
  for (const auto& [name, sent, error] :
       {std::tuple("size.safetensors", std::string(8, '\xff'), "its header would have"),
        {"json.safetensors", Safetensors("{\"a\": 7}", ""), "the header is garbage"},
        {"shape.safetensors",
         Safetensors(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,16]}})", "xx"),
         "tensor \"a\" has 16 bytes"},
        {"magic.npy", std::string("PK\x03\x04 an archive"), "it does not begin with"},
        {"dtype.npy",
         absl::StrCat(std::string("\x93NUMPY\x01\x00\x3b\x00", 10),
                      "{'descr': '<f8', 'fortran_order': False, 'shape': (2, 2), }"),
         "float64"}}) {
    bool in_time = false;
    const absl::Status refused = OpenSilent(name, sent, &in_time);
    EXPECT_EQ(refused.code(), Code::kInvalidArgument) << name;
    EXPECT_THAT(std::string(refused.message()), HasSubstr(error)) << name;
    EXPECT_TRUE(in_time) << name;
  }
}

// Neither the open, which finds no writer, nor the reads hold up the caller.
TEST_F(InputPipe, AStopEndsTheWaitForItsBytes) {
  for (const bool has_writer : {false, true}) {
    const std::string path = Pipe(absl::StrCat("silent", has_writer, ".safetensors"));
    std::stop_source stop;
    auto opened = std::async(std::launch::async,
                             [&] { return TensorFile::Open(path, stop.get_token()).status(); });
    // Waits for the reader, and says nothing.
    const int writer = has_writer ? open(path.c_str(), O_WRONLY | O_CLOEXEC) : -1;
    stop.request_stop();
    const bool ended = opened.wait_for(kPatienceMs) == std::future_status::ready;
    EXPECT_TRUE(ended);
    // Ends the wait if the stop has not.
    if (!ended) close(open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NONBLOCK));
    close(writer);
    const absl::Status status = opened.get();
    EXPECT_EQ(status.code(), Code::kCancelled);
    EXPECT_EQ(status.message(),
              absl::StrCat("stopped at the caller's request while ", path, " was read"));
  }
}

}  // namespace
}  // namespace agmm
