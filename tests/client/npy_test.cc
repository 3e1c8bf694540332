#include "client/files/npy.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string_view>
#include <thread>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Returns a file of version 1.0 with this dict, followed by `data`.
std::string Bytes(absl::string_view dict, absl::string_view data) {
  std::string bytes("\x93NUMPY\x01\x00", 8);
  bytes += static_cast<char>(dict.size() & 0xff);
  bytes += static_cast<char>(dict.size() >> 8);
  return absl::StrCat(bytes, dict, data);
}

class Npy : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/npyXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(absl::string_view name = "m.npy") const {
    return absl::StrCat(folder_, "/", name);
  }
  void WriteFile(absl::string_view bytes) const {
    std::ofstream(Path(), std::ios::binary).write(bytes.data(), bytes.size());
  }
  std::string ReadFile() const {
    std::ifstream file(Path(), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  int FileCount() const {
    return static_cast<int>(std::distance(std::filesystem::directory_iterator(folder_), {}));
  }
  void ExpectRefused(absl::string_view bytes, absl::string_view what) const {
    WriteFile(bytes);
    const auto reader = OpenNpy(Path());
    ASSERT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument) << what;
    const std::string message(reader.status().message());
    EXPECT_THAT(message, HasSubstr(std::string(what)));
    EXPECT_THAT(message, HasSubstr(Path()));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }

  std::string folder_;
};

constexpr char kDict[] = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }\n";

std::string Data(int64_t bytes) {
  std::string data(bytes, '\0');
  for (int64_t i = 0; i < bytes; ++i) data[i] = static_cast<char>(i * 7 + 1);
  return data;
}

TEST_F(Npy, WrittenMatricesAreReadBack) {
  for (DType dtype : {DType::kF32, DType::kF16}) {
    const int64_t rows = 7, row_bytes = 5 * SizeOf(dtype);
    const std::string data = Data(rows * row_bytes);
    auto writer = NpyWriter::Create(Path(), rows, 5, dtype);
    ASSERT_TRUE(writer.ok()) << writer.status();
    int64_t written = 0;
    for (int64_t count : {12, 0, 1, 22}) {
      const absl::Status status = (*writer)->Append(count, data.data() + written * SizeOf(dtype));
      ASSERT_TRUE(status.ok()) << status;
      written += count;
    }
    ASSERT_TRUE((*writer)->Commit().ok());
    const auto reader = OpenNpy(Path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->rows(), rows);
    EXPECT_EQ((*reader)->cols(), 5);
    EXPECT_EQ((*reader)->dtype(), dtype);
    std::string read(3 * row_bytes, '\xee');
    ASSERT_TRUE((*reader)->ReadElements(2 * 5, 3 * 5, read.data()).ok());
    EXPECT_EQ(read, data.substr(2 * row_bytes, 3 * row_bytes));
    EXPECT_EQ(FileCount(), 1);
  }
}

// The bytes that numpy.save writes for numpy.arange(6, dtype="<f4").reshape(2, 3).
TEST_F(Npy, WritesTheSameBytesAsNumPy) {
  auto writer = NpyWriter::Create(Path(), 2, 3, DType::kF32).value();
  const float values[] = {0, 1, 2, 3, 4, 5};
  ASSERT_TRUE(writer->Append(6, values).ok());
  ASSERT_TRUE(writer->Commit().ok());
  const std::string dict = "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), }";
  const std::string expected =
      Bytes(absl::StrCat(dict, std::string(118 - dict.size() - 1, ' '), "\n"),
            absl::string_view(reinterpret_cast<const char*>(values), sizeof values));
  EXPECT_EQ(ReadFile(), expected);
}

TEST_F(Npy, Versions2And3AndOtherSpellingsOfTheDictAreRead) {
  const std::string dict = "{ \"shape\":(2,3,) ,'descr':'<f2','fortran_order':False}";
  for (const char version : {'\2', '\3'}) {
    std::string bytes("\x93NUMPY", 6);
    bytes += {version, '\0', static_cast<char>(dict.size()), '\0', '\0', '\0'};
    WriteFile(absl::StrCat(bytes, dict, Data(12)));
    const auto reader = OpenNpy(Path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->dtype(), DType::kF16);
    EXPECT_EQ((*reader)->cols(), 3);
  }
}

// The bytes that numpy.save writes for W.T of the 4 x 3 matrix W with W[i][j] = 10 i + j.
TEST_F(Npy, FortranOrderIsReadByRows) {
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    const int64_t rows = 3, cols = 4, element_bytes = SizeOf(dtype);
    std::vector<float> stored;
    for (int i = 0; i < cols; ++i)
      for (int j = 0; j < rows; ++j) stored.push_back(static_cast<float>(10 * i + j));
    std::string data(stored.size() * element_bytes, '\0');
    ConvertFromF32(dtype, stored.data(), data.data(), stored.size());
    WriteFile(Bytes(absl::StrCat("{'descr': '", dtype == DType::kF32 ? "<f4" : "<f2",
                                 "', 'fortran_order': True, 'shape': (3, 4), }"),
                    data));
    const auto reader = OpenNpy(Path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_TRUE((*reader)->by_columns());
    EXPECT_EQ((*reader)->rows(), rows);
    for (int64_t begin = 0; begin <= rows * cols; ++begin) {
      for (int64_t count = 0; begin + count <= rows * cols; ++count) {
        std::string raw(count * element_bytes, '\xee');
        ASSERT_EQ((*reader)->ReadElements(begin, count, raw.data()), absl::OkStatus());
        std::vector<float> found(count);
        ConvertToF32(dtype, raw.data(), found.data(), count);
        for (int64_t i = 0; i < count; ++i) {
          const int64_t row = (begin + i) / cols, col = (begin + i) % cols;
          ASSERT_EQ(found[i], static_cast<float>(10 * col + row)) << begin << " " << count;
        }
      }
    }
  }
}

TEST_F(Npy, OneDimensionIsARowAndNoneASingleElement) {
  for (const auto& [shape, cols] : {std::pair{"(6,)", 6}, {"()", 1}}) {
    WriteFile(Bytes(absl::StrFormat("{'descr': '<f4', 'fortran_order': False, 'shape': %s}", shape),
                    std::string(cols * sizeof(float), '\1')));
    const auto reader = OpenNpy(Path());
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->rows(), 1);
    EXPECT_EQ((*reader)->cols(), cols);
  }
}

// An .npy file in Fortran order whose element `i`, counted by rows, is `i`; exact in f16 up to
// 2048.
std::string StoredByColumns(int64_t rows, int64_t cols, DType dtype) {
  std::vector<float> stored;
  for (int64_t col = 0; col < cols; ++col) {
    for (int64_t row = 0; row < rows; ++row) stored.push_back(static_cast<float>(row * cols + col));
  }
  std::string data(stored.size() * SizeOf(dtype), '\0');
  ConvertFromF32(dtype, stored.data(), data.data(), stored.size());
  return Bytes(absl::StrFormat("{'descr': '%s', 'fortran_order': True, 'shape': (%d, %d)}",
                               dtype == DType::kF32 ? "<f4" : "<f2", rows, cols),
               data);
}

void ExpectCounted(RowReader& reader, int64_t first, int64_t count, DType dtype) {
  std::string raw(count * SizeOf(dtype), '\xee');
  ASSERT_EQ(reader.Read(first, count, raw.data()), absl::OkStatus());
  std::vector<float> found(count);
  ConvertToF32(dtype, raw.data(), found.data(), count);
  for (int64_t i = 0; i < count; ++i) ASSERT_EQ(found[i], static_cast<float>(first + i));
}

TEST_F(Npy, StripesOfAnySizeTransposeAFileInFortranOrder) {
  constexpr int64_t kRows = 13, kCols = 9, kSize = kRows * kCols;
  for (const DType dtype : {DType::kF32, DType::kF16}) {
    WriteFile(StoredByColumns(kRows, kCols, dtype));
    const auto file = OpenNpy(Path()).value();
    const int64_t row_bytes = kCols * SizeOf(dtype);
    for (const int64_t stripe_bytes :
         {int64_t{1}, row_bytes - 1, row_bytes, 2 * row_bytes + 3, 5 * row_bytes, 99 * row_bytes}) {
      for (const int64_t piece : {int64_t{1}, int64_t{4}, kCols, int64_t{20}, kSize}) {
        SCOPED_TRACE(testing::Message() << "stripes of " << stripe_bytes << ", by " << piece);
        RowReader reader(*file, stripe_bytes);
        for (int64_t first = 0; first < kSize; first += piece)
          ExpectCounted(reader, first, std::min(piece, kSize - first), dtype);
        ExpectCounted(reader, 0, piece, dtype);  // an upload that is resumed goes back
        char none[8];
        EXPECT_EQ(reader.Read(kSize, 1, none).code(), absl::StatusCode::kOutOfRange);
        EXPECT_EQ(reader.Read(-1, 1, none).code(), absl::StatusCode::kOutOfRange);
      }
    }
  }
}

// The number of reads of this thread so far; -1 where the system does not count them.
int64_t Reads() {
  std::ifstream io("/proc/thread-self/io");
  for (std::string name, number; io >> name >> number;)
    if (name == "syscr:") return std::stoll(number);
  return -1;
}

TEST_F(Npy, AWideFileInFortranOrderIsReadManyColumnsAtATime) {
  // Short columns, long ones, and some that are longer than a read.
  for (const auto& [rows, cols, most] :
       {std::tuple{3, 100'000, 10}, {1000, 300, 300}, {3000, 40, 45}, {70'000, 3, 8}}) {
    SCOPED_TRACE(testing::Message() << rows << " x " << cols);
    WriteFile(StoredByColumns(rows, cols, DType::kF32));
    const auto file = OpenNpy(Path()).value();
    RowReader reader(*file, /*stripe_bytes=*/1);
    const int64_t before = Reads();
    ExpectCounted(reader, cols, cols, DType::kF32);
    if (before >= 0) {
      EXPECT_LE(Reads() - before, most + 5);
    }
    ExpectCounted(reader, cols / 2, int64_t{2} * cols, DType::kF32);
  }
}

TEST_F(Npy, AFileThatIsNotAMatrixIsRefusedInOneLine) {
  auto dict = [](absl::string_view descr, absl::string_view order, absl::string_view shape) {
    return absl::StrCat("{'descr': ", descr, ", 'fortran_order': ", order, ", 'shape': ", shape,
                        ", }");
  };
  ExpectRefused("", "not an .npy file");
  ExpectRefused("PK\x03\x04 a zip archive", "not an .npy file");
  ExpectRefused(absl::string_view("\x93NUMPY\x01\x00\x10", 9), "truncated: the file has 9 bytes");
  ExpectRefused(absl::string_view("\x93NUMPY\x04\x00\x10\x00\x00\x00", 12), "format version 4.0");
  ExpectRefused(absl::string_view("\x93NUMPY\x02\x00\xff\xff\xff\xff", 12),
                "the header says it has 4294967295 bytes; at most 65536");
  ExpectRefused(Bytes(kDict, "").substr(0, 40), "the header needs 60 bytes, 30 were found");
  ExpectRefused(Bytes(kDict, Data(23)),
                "truncated: 2 x 3 f32 take 24 bytes after the header, 23 were");
  ExpectRefused(Bytes(kDict, Data(25)), "bytes are left over");
  ExpectRefused(Bytes(dict("'<f8'", "False", "(2, 3)"), Data(48)), "a.astype(numpy.float32)");
  ExpectRefused(Bytes(dict("'>f4'", "False", "(2, 3)"), Data(24)), "'>f4' is big endian");
  ExpectRefused(Bytes(dict("'|O'", "False", "(2, 3)"), Data(24)), "Python objects");
  ExpectRefused(Bytes(dict("'<i4'", "False", "(2, 3)"), Data(24)), "dtype '<i4' is not supported");
  ExpectRefused(Bytes(dict("[('x', '<f4')]", "False", "(2, 3)"), Data(24)), "structured");
  ExpectRefused(Bytes(dict("'<f4'", "True", "(2, 3)"), Data(20)), "truncated");
  ExpectRefused(Bytes(dict("'<f4'", "False", "(1, 2, 3)"), Data(24)), "shape (1, 2, 3)");
  ExpectRefused(Bytes(dict("'<f4'", "False", "(0, 3)"), ""), "shape (0, 3) is empty");
  ExpectRefused(Bytes(dict("'<f4'", "False", "(0,)"), ""), "shape (0,) is empty");
  ExpectRefused(Bytes(dict("'<f4'", "False", "(2147483648, 2147483648)"), Data(24)), "truncated");
}

TEST_F(Npy, GarbageHeadersAreRefusedInOneLine) {
  for (const char* dict :
       {"", "{", "}", "[]", "{'descr'}", "{'descr': }", "{'descr': '<f4'", "{'descr: '<f4'}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3)} print(1)",
        "{'descr': '<f4', 'fortran_order': False}", "{'descr': '<f4', 'descr': '<f4'}",
        "{'descr': '<f4', 'fortran_order': 0, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 99999999999999999999)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2,,3)}",
        "{'descr': '\\x3cf4', 'fortran_order': False, 'shape': (2, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (2, 3), 'extra': 1}"}) {
    SCOPED_TRACE(dict);
    ExpectRefused(Bytes(dict, Data(24)), "the header is garbage");
  }
}

TEST_F(Npy, MutilatedFilesNeverCrash) {
  const char* text = std::getenv("AGMM_SEED");
  const unsigned seed = text != nullptr ? std::stoul(text) : std::random_device{}();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  std::mt19937 random(seed);
  int refused = 0;
  for (int round = 0; round < 1000; ++round) {
    std::string bytes = Bytes(kDict, Data(24));
    for (int edits = random() % 3 + 1; edits > 0 && !bytes.empty(); --edits) {
      const size_t at = random() % bytes.size();
      if (random() % 8 == 0) {
        bytes.resize(at);
      } else {
        bytes[at] = static_cast<char>(random());
      }
    }
    WriteFile(bytes);
    const auto reader = OpenNpy(Path());
    if (!reader.ok()) {
      ++refused;
      EXPECT_EQ(reader.status().code(), absl::StatusCode::kInvalidArgument);
      continue;
    }
    const int64_t count = (*reader)->rows() * (*reader)->cols();
    std::string elements(count * SizeOf((*reader)->dtype()), '\0');
    EXPECT_TRUE((*reader)->ReadElements(0, count, elements.data()).ok());
  }
  EXPECT_GT(refused, 200);
}

TEST_F(Npy, MissingFilesAndFoldersAreNamed) {
  EXPECT_EQ(OpenNpy(Path()).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(OpenNpy(Path()).status().message()), HasSubstr(Path()));
  EXPECT_EQ(ReasonOf(OpenNpy(Path()).status()), kReasonFileNotFound);
  EXPECT_EQ(ReasonOf(OpenNpy(folder_).status()), "");
  EXPECT_THAT(std::string(OpenNpy(folder_).status().message()),
              HasSubstr("neither a regular file nor a pipe"));
  EXPECT_FALSE(OpenNpy("/dev/zero").ok());
  const auto writer = NpyWriter::Create(Path("no/such/m.npy"), 2, 3, DType::kF32);
  EXPECT_EQ(writer.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(writer.status().message()), HasSubstr("no/such/m.npy"));
  EXPECT_EQ(ReasonOf(writer.status()), kReasonFileNotFound);
}

TEST_F(Npy, ElementsOutsideTheMatrixAreRefused) {
  WriteFile(Bytes(kDict, Data(24)));
  const auto reader = OpenNpy(Path()).value();
  auto writer = NpyWriter::Create(Path("w.npy"), 2, 3, DType::kF32).value();
  char elements[64] = {};
  for (auto [begin, count] :
       {std::pair<int64_t, int64_t>{-1, 1}, {0, 7}, {6, 1}, {1, -1}, {1, INT64_MAX}})
    EXPECT_EQ(reader->ReadElements(begin, count, elements).code(), absl::StatusCode::kOutOfRange);
  ASSERT_TRUE(writer->Append(3, elements).ok());
  for (int64_t count : {int64_t{-1}, int64_t{4}, INT64_MAX})
    EXPECT_EQ(writer->Append(count, elements).code(), absl::StatusCode::kOutOfRange);
}

TEST_F(Npy, AFileThatChangesWhileItIsReadIsDataLoss) {
  char rows[24];
  for (const char* how : {"shorter", "longer", "rewritten"}) {
    SCOPED_TRACE(how);
    WriteFile(Bytes(kDict, Data(24)));
    std::filesystem::last_write_time(
        Path(), std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
    const auto reader = OpenNpy(Path()).value();
    ASSERT_EQ(reader->ReadElements(0, 6, rows), absl::OkStatus());
    const std::string bytes = Bytes(kDict, Data(24));
    const std::string_view kind = how;
    std::fstream(Path(), std::ios::in | std::ios::out)
        << (kind == "longer" ? bytes + "more" : bytes);
    if (kind == "shorter") {
      ASSERT_EQ(truncate(Path().c_str(), 80), 0);
    }
    const absl::Status changed = reader->ReadElements(0, 1, rows);
    EXPECT_EQ(changed.code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(std::string(changed.message()), HasSubstr("m.npy was modified during the read"));
  }
}

TEST_F(Npy, APipeIsReadLikeAFileAndNoFurtherThanItsMatrix) {
  ASSERT_EQ(mkfifo(Path("pipe").c_str(), 0600), 0);
  for (const auto& [more, error] : {std::pair{"", ""}, {"x", "bytes are left over"}}) {
    std::thread writer([&, tail = more] {
      std::ofstream(Path("pipe"), std::ios::binary) << Bytes(kDict, Data(24)) << tail;
    });
    const auto reader = OpenNpy(Path("pipe"));
    writer.join();
    EXPECT_THAT(std::string(reader.status().message()), HasSubstr(error));
    if (!reader.ok()) continue;
    std::string read(24, '\xee');
    EXPECT_EQ((*reader)->ReadElements(0, 6, read.data()), absl::OkStatus());
    EXPECT_EQ(read, Data(24));
  }
}

// Redirects standard output to `fd` during its lifetime.
class StandardOutput {
 public:
  explicit StandardOutput(int fd) : before_(dup(STDOUT_FILENO)) { dup2(fd, STDOUT_FILENO); }
  ~StandardOutput() {
    dup2(before_, STDOUT_FILENO);
    close(before_);
  }

 private:
  const int before_;
};

TEST_F(Npy, DashAndOtherNamesOfStandardStreamsAreRecognized) {
  for (const char* name : {"-", "/dev/stdout", "/dev/fd/1", "/proc/self/fd/1"}) {
    SCOPED_TRACE(name);
    int pipes[2];
    ASSERT_EQ(pipe(pipes), 0);
    bool standard = false, wrote = false;
    {
      const StandardOutput output(pipes[1]);
      standard = IsStandardOutput(name) && IsWrittenDirectly(name);
      auto writer = NpyWriter::Create(name, 2, 3, DType::kF32);
      wrote = writer.ok() && (*writer)->Append(6, Data(24).data()).ok() && (*writer)->Commit().ok();
    }
    close(pipes[1]);
    const int in = dup(STDIN_FILENO);
    dup2(pipes[0], STDIN_FILENO);
    const auto reader = OpenNpy("-");
    dup2(in, STDIN_FILENO);
    for (const int fd : {pipes[0], in}) close(fd);
    EXPECT_TRUE(standard);
    ASSERT_TRUE(wrote);
    ASSERT_TRUE(reader.ok()) << reader.status();
    EXPECT_EQ((*reader)->name(), "standard input");
    std::string read(24, '\xee');
    EXPECT_EQ((*reader)->ReadElements(0, 6, read.data()), absl::OkStatus());
    EXPECT_EQ(read, Data(24));
  }
  // A file that is standard output is written in place, under any of its names.
  WriteFile("line\n");
  const int file = open(Path().c_str(), O_WRONLY | O_APPEND);
  std::filesystem::create_symlink(Path(), Path("link"));
  {
    const StandardOutput output(file);
    for (const std::string& name : {std::string("/dev/fd/1"), Path("link")}) {
      auto written = OutputFile::Create(name);
      ASSERT_TRUE(written.ok() && (*written)->Write("more\n").ok() && (*written)->Commit().ok());
    }
  }
  close(file);
  EXPECT_EQ(ReadFile(), "line\nmore\nmore\n");
  EXPECT_FALSE(IsWrittenDirectly(Path()));
  EXPECT_FALSE(IsWrittenDirectly(Path("new.npy")));
  EXPECT_TRUE(IsWrittenDirectly("/dev/null"));
}

TEST_F(Npy, UncommittedWriterLeavesNothing) {
  {
    auto writer = NpyWriter::Create(Path(), 2, 3, DType::kF32).value();
    ASSERT_TRUE(writer->Append(6, Data(24).data()).ok());
  }
  EXPECT_EQ(FileCount(), 0);
}

TEST_F(Npy, OnlyFilesOfKilledWritersAreRemovedByTheNextOne) {
  // Files of the user, and the file of a writer in progress.
  for (const char* name : {"m.npy.agmm-tmp-old", "m.npy.agmm-tmp-1-2.bak", "m.npy.agmm-tmp-12",
                           "m.npy.tmp-1-2", "another.npy.agmm-tmp-1-2"})
    std::ofstream(Path(name)) << "mine";
  ASSERT_EQ(mkfifo(Path("m.npy.agmm-tmp-1-3").c_str(), 0600), 0);
  std::filesystem::create_symlink("m.npy.tmp-1-2", Path("m.npy.agmm-tmp-1-4"));
  auto live = NpyWriter::Create(Path(), 2, 3, DType::kF32).value();
  const int before = FileCount();
  const pid_t child = fork();
  if (child == 0) {
    auto writer = NpyWriter::Create(Path(), 2, 3, DType::kF32).value();
    if (!writer->Append(3, Data(12).data()).ok()) _exit(1);
    raise(SIGKILL);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  ASSERT_TRUE(WIFSIGNALED(how));
  ASSERT_EQ(FileCount(), before + 1);
  auto writer = NpyWriter::Create(Path(), 2, 3, DType::kF32).value();
  EXPECT_EQ(FileCount(), before + 1);
  for (NpyWriter* each : {live.get(), writer.get()}) {
    ASSERT_EQ(each->Append(6, Data(24).data()), absl::OkStatus());
    ASSERT_EQ(each->Commit(), absl::OkStatus());
  }
  EXPECT_EQ(FileCount(), before);
  EXPECT_EQ(OpenNpy(Path()).value()->rows(), 2);
}

TEST_F(Npy, ATemporaryNameInUseIsSkipped) {
  // In containers two processes may have the same id.
  std::vector<int> others;
  for (int number = 1; number <= 1000; ++number) {
    const std::string name = absl::StrCat(Path(), ".agmm-tmp-", getpid(), "-", number);
    others.push_back(open(name.c_str(), O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600));
    ASSERT_EQ(flock(others.back(), LOCK_EX | LOCK_NB), 0);
  }
  auto writer = NpyWriter::Create(Path(), 2, 3, DType::kF32);
  ASSERT_TRUE(writer.ok()) << writer.status();
  EXPECT_EQ(FileCount(), 1001);
  for (const int fd : others) close(fd);
  ASSERT_TRUE(NpyWriter::Create(Path(), 2, 3, DType::kF32).ok());
  EXPECT_EQ(FileCount(), 1);
}

struct Kept {
  uid_t uid, gid;
  mode_t mode;
  bool operator==(const Kept&) const = default;
};

Kept KeptBy(const std::string& path) {
  struct stat found = {};
  stat(path.c_str(), &found);
  return {found.st_uid, found.st_gid, found.st_mode & 07777};
}

absl::Status Replace(const std::string& path) {
  auto file = OutputFile::Create(path);
  if (!file.ok()) return file.status();
  const absl::Status written = (*file)->Write("new");
  return written.ok() ? (*file)->Commit() : written;
}

TEST_F(Npy, AReplacedFileKeepsItsModeAndItsOwner) {
  WriteFile("old");
  ASSERT_EQ(chmod(Path().c_str(), 0640), 0);
  const bool root = geteuid() == 0;
  if (root) {
    ASSERT_EQ(chown(Path().c_str(), 4321, 1234), 0);
  }
  const Kept before = KeptBy(Path());
  ASSERT_EQ(Replace(Path()), absl::OkStatus());
  EXPECT_EQ(ReadFile(), "new");
  EXPECT_EQ(KeptBy(Path()), before);
}

TEST_F(Npy, AFileOfAnotherUserInASharedFolderIsReplaced) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root, to make files of other users";
  constexpr uid_t kAlice = 4321, kBob = 4322;
  constexpr gid_t kTeam = 1234, kStrangers = 1235;
  ASSERT_EQ(chown(folder_.c_str(), kBob, kTeam), 0);
  ASSERT_EQ(chmod(folder_.c_str(), 02775), 0);
  for (const auto& [name, group, mode] :
       {std::tuple{"team.npy", kTeam, 0664}, {"strangers.npy", kStrangers, 0676}}) {
    std::ofstream(Path(name)) << "old";
    ASSERT_EQ(chown(Path(name).c_str(), kBob, group), 0);
    ASSERT_EQ(chmod(Path(name).c_str(), mode), 0);
  }
  const pid_t child = fork();
  if (child == 0) {
    if (setgroups(1, &kTeam) != 0 || setgid(kAlice) != 0 || setuid(kAlice) != 0) _exit(1);
    _exit(Replace(Path("team.npy")).ok() && Replace(Path("strangers.npy")).ok() ? 0 : 2);
  }
  int how = 0;
  ASSERT_EQ(waitpid(child, &how, 0), child);
  EXPECT_EQ(how, 0);
  EXPECT_EQ(KeptBy(Path("team.npy")), (Kept{kAlice, kTeam, 0664}));
  // A group that could not be kept gets only the rights that others had.
  EXPECT_EQ(KeptBy(Path("strangers.npy")), (Kept{kAlice, kTeam, 0666}));
}

#ifdef AGMM_FAILPOINTS
TEST_F(Npy, ADiskThatIsFullAtTheEndKeepsTheOldFile) {
  WriteFile("old");
  failpoint::Arm("output.no_space_at_close", 1);
  const absl::Status full = Replace(Path());
  EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(full.message()), HasSubstr("cannot write " + Path()));
  EXPECT_EQ(ReadFile(), "old");
  EXPECT_EQ(FileCount(), 1);
}
#endif

TEST_F(Npy, ElementsThatAreNotFiniteAreCounted) {
  const float values[] = {0, INFINITY, -INFINITY, NAN, 3e38f, 1e-40f};
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    char elements[24];
    ConvertFromF32(dtype, values, elements, 6);
    auto writer = NpyWriter::Create(Path(), 2, 3, dtype, /*raw=*/true).value();
    ASSERT_TRUE(writer->Append(6, elements).ok());
    EXPECT_EQ(writer->non_finite(), dtype == DType::kF16 ? 4 : 3) << Name(dtype);
  }
}

TEST_F(Npy, CommitNeedsEveryElementAndKeepsTheOldFileUntilThen) {
  WriteFile("old");
  auto writer = NpyWriter::Create(Path(), 4, 3, DType::kF32).value();
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(writer->Append(9, Data(36).data()).ok());
  const absl::Status missing = writer->Commit();
  EXPECT_EQ(missing.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(missing.message()), HasSubstr("9 of 12 elements were written"));
  EXPECT_EQ(ReadFile(), "old");
  ASSERT_TRUE(writer->Append(3, Data(12).data()).ok());
  ASSERT_TRUE(writer->Commit().ok());
  EXPECT_EQ(ReadFile().substr(1, 5), "NUMPY");
  EXPECT_EQ(writer->Commit().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(writer->Append(3, Data(12).data()).code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(Npy, CommitOntoAFolderFailsAndLeavesNothing) {
  auto writer = NpyWriter::Create(Path(), 1, 1, DType::kF32).value();
  std::filesystem::create_directories(Path("m.npy/inside"));
  ASSERT_TRUE(writer->Append(1, Data(4).data()).ok());
  EXPECT_FALSE(writer->Commit().ok());
  EXPECT_EQ(FileCount(), 1);
}

TEST_F(Npy, DTypesThatTheFormatLacksAreRefused) {
  EXPECT_THAT(std::string(NpyWriter::Create(Path(), 2, 3, DType::kBF16).status().message()),
              HasSubstr("have no bf16; write f32"));
  EXPECT_FALSE(NpyWriter::Create(Path(), 0, 3, DType::kF32).ok());
  EXPECT_EQ(FileCount(), 0);
}

TEST_F(Npy, OnlyRegularWritableFilesAreReplaced) {
  EXPECT_FALSE(NpyWriter::Create(Path(""), 2, 3, DType::kF32).ok());  // the folder
  EXPECT_FALSE(NpyWriter::Create("", 2, 3, DType::kF32).ok());
  std::ofstream(Path("locked.npy")) << "kept";
  std::filesystem::permissions(Path("locked.npy"), std::filesystem::perms::owner_read);
  EXPECT_FALSE(NpyWriter::Create(Path("locked.npy"), 2, 3, DType::kF32).ok());
}

TEST_F(Npy, LinksAreFollowedEvenToMissingTargets) {
  std::ofstream(Path("target.npy")) << "old";
  std::filesystem::create_directory(Path("folder"));
  std::filesystem::create_symlink(Path("target.npy"), Path("link.npy"));
  std::filesystem::create_symlink("folder/new.npy", Path("dangling.npy"));
  std::filesystem::create_symlink("dangling.npy", Path("twice.npy"));
  const float one = 1;
  for (const auto& [link, target] :
       {std::pair{"link.npy", "target.npy"}, {"twice.npy", "folder/new.npy"}}) {
    auto writer = NpyWriter::Create(Path(link), 1, 1, DType::kF32).value();
    ASSERT_TRUE(writer->Append(1, &one).ok());
    ASSERT_EQ(writer->Commit(), absl::OkStatus());
    EXPECT_TRUE(std::filesystem::is_symlink(Path(link)));
    EXPECT_EQ(OpenNpy(Path(target)).value()->rows(), 1);
  }
  std::filesystem::create_symlink("loop.npy", Path("loop.npy"));
  EXPECT_THAT(
      std::string(NpyWriter::Create(Path("loop.npy"), 1, 1, DType::kF32).status().message()),
      HasSubstr("Too many levels of symbolic links"));
}

}  // namespace
}  // namespace agmm
