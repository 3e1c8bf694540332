#include "client/files/safetensors.h"

#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/files/tensor_file.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using Code = absl::StatusCode;

// Returns a file with this JSON, followed by `data`.
std::string SafetensorsBytes(absl::string_view json, absl::string_view data) {
  const uint64_t size = json.size();
  std::string bytes(sizeof(size), '\0');
  std::memcpy(bytes.data(), &size, sizeof(size));
  return absl::StrCat(bytes, json, data);
}

// An entry of the JSON.
std::string Entry(absl::string_view name, absl::string_view dtype, absl::string_view shape,
                  int64_t begin, int64_t end) {
  return absl::StrFormat(R"("%s":{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]})", name, dtype,
                         shape, begin, end);
}

class Safetensors : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = ::testing::TempDir() + "/safetensorsXXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string Path(absl::string_view name = "m.safetensors") const {
    return absl::StrCat(folder_, "/", name);
  }
  void WriteFile(absl::string_view bytes) const {
    std::ofstream(Path(), std::ios::binary).write(bytes.data(), bytes.size());
  }
  std::string ReadFile(absl::string_view name = "m.safetensors") const {
    std::ifstream file(Path(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
  }
  // The file has 16 bytes behind its header.
  void ExpectRefused(absl::string_view json, const std::string& what) const {
    ExpectFileRefused(SafetensorsBytes(json, std::string(16, 'x')), what);
  }
  void ExpectFileRefused(absl::string_view bytes, const std::string& what) const {
    SCOPED_TRACE(what);
    WriteFile(bytes);
    const auto file = TensorFile::Open(Path());
    ASSERT_EQ(file.status().code(), Code::kInvalidArgument);
    const std::string message(file.status().message());
    EXPECT_THAT(message, HasSubstr(what));
    EXPECT_THAT(message, HasSubstr(Path()));
    EXPECT_THAT(message, Not(HasSubstr("\n")));
  }

  std::string folder_;
};

TEST_F(Safetensors, TensorsAreListedInTheOrderOfTheirBytes) {
  WriteFile(SafetensorsBytes(
      absl::StrCat(R"({"__metadata__":{"format":"pt"},)",
                   Entry("b.weight", "F16", "[2, 3]", 16, 28), ",", Entry("a", "I64", "[2]", 0, 16),
                   ",", Entry("scalar", "BF16", "[]", 28, 30), "}   "),
      std::string(30, '\0')));
  const auto file = TensorFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<FileTensor>& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, "I64");
  EXPECT_EQ(tensors[0].bytes, 16);
  EXPECT_THAT(std::string(tensors[0].layout.status().message()), HasSubstr("\"I64\""));
  EXPECT_EQ(tensors[1].name, "b.weight");
  ASSERT_TRUE(tensors[1].layout.ok());
  EXPECT_EQ(tensors[1].layout->rows, 2);
  EXPECT_EQ(tensors[1].layout->cols, 3);
  EXPECT_EQ(tensors[1].layout->dtype, DType::kF16);
  ASSERT_TRUE(tensors[2].layout.ok());
  EXPECT_EQ(tensors[2].layout->rows * tensors[2].layout->cols, 1);
}

TEST_F(Safetensors, OneDimensionIsARowAndMoreThanTwoAreNotLoaded) {
  WriteFile(SafetensorsBytes(absl::StrCat("{", Entry("row", "F32", "[3]", 0, 12), ",",
                                          Entry("cube", "F32", "[1, 1, 1]", 12, 16), ",",
                                          Entry("none", "F32", "[0, 7]", 16, 16), ",",
                                          Entry("new", "F3_NEW", "[5]", 16, 19), "}"),
                             std::string(19, '\0')));
  const auto file = TensorFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  const std::vector<FileTensor>& tensors = (*file)->tensors();
  ASSERT_EQ(tensors.size(), 4u);
  ASSERT_TRUE(tensors[0].layout.ok());
  EXPECT_EQ(tensors[0].layout->rows, 1);
  EXPECT_EQ(tensors[0].layout->cols, 3);
  EXPECT_THAT(std::string(tensors[1].layout.status().message()),
              HasSubstr("[1, 1, 1] has 3 dimensions"));
  EXPECT_THAT(std::string(tensors[2].layout.status().message()), HasSubstr("no elements"));
  EXPECT_THAT(std::string(tensors[3].layout.status().message()), HasSubstr("\"F3_NEW\""));
}

TEST_F(Safetensors, AnEmptyFileHasNoTensors) {
  WriteFile(SafetensorsBytes("{}", ""));
  const auto file = TensorFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_TRUE((*file)->tensors().empty());
}

TEST_F(Safetensors, AHostileLengthIsRefused) {
  ExpectFileRefused("", "it has 0 bytes");
  ExpectFileRefused("1234567", "it has 7 bytes");
  ExpectFileRefused(std::string("\xff\xff\xff\xff\xff\xff\xff\xff{}", 10),
                    "would have 18446744073709551615 bytes; the format allows at most 100000000");
  ExpectFileRefused(std::string("\x01\xe1\xf5\x05\0\0\0\0{}", 10), "would have 100000001 bytes");
  ExpectFileRefused(std::string("\x03\0\0\0\0\0\0\0{}", 10), "needs 3 bytes, 2 were found");
  ExpectFileRefused(std::string(8, '\0'), "its header begins with \"\"");
  ExpectFileRefused("\x93NUMPY\x01\x00 this is an .npy file", "not a safetensors file");
}

TEST_F(Safetensors, AHeaderThatIsNotTensorsIsRefused) {
  const std::string a = Entry("a", "F32", "[4]", 0, 16);
  for (const auto& [json, what] : std::vector<std::pair<std::string, std::string>>{
           {"[]", "begins with \"[]\", not with {"},
           {" {}", "not with {"},
           {"{", "the header is garbage: it is not JSON from byte 1 on"},
           {"{} {}", "not JSON"},
           {"{\"a\": 1}", "found \"1\""},
           {"{\"a\": [1]}", "found \"a list\""},
           {"{\"a\": null}", "found \"null\""},
           {"{\"a\": {}}", "tensor \"a\" has no dtype"},
           {"{\"a\": {\"dtype\": \"F32\", \"data_offsets\": [0, 16]}}", "has no shape"},
           {"{\"a\": {\"dtype\": \"F32\", \"shape\": [4]}}", "has no data_offsets"},
           {"{\"a\": {\"dtype\": 4}}", "tensor \"a\" has \"4\" in \"dtype\""},
           {"{\"a\": {\"dtype\": [\"F32\"]}}", "has \"a list\" in \"dtype\""},
           {"{\"a\": {\"shape\": \"4\"}}", "has \"4\" in \"shape\""},
           {"{\"a\": {\"shape\": [-4]}}", "has \"-4\" in \"shape\""},
           {"{\"a\": {\"shape\": [4.0]}}", "has \"4.0\" in \"shape\""},
           {"{\"a\": {\"shape\": [[4]]}}", "has \"a list\" in \"shape\""},
           {"{\"a\": {\"shape\": [9223372036854775808]}}", "has \"9223372036854775808\""},
           {"{\"a\": {\"shape\": {}}}", "has \"an object\" in \"shape\""},
           {"{\"a\": {\"data_offsets\": [0]}}", "has 1 number in data_offsets"},
           {"{\"a\": {\"data_offsets\": [0, 8, 16]}}", "has 3 numbers in data_offsets"},
           {"{\"a\": {\"data_offsets\": []}}", "has 0 numbers in data_offsets"},
           {"{\"a\": {\"shape\": [4], \"shape\": [4]}}", "has two \"shape\""},
           {"{\"a\": {\"dtype\": \"F32\", \"dtype\": \"F16\"}}", "has two \"dtype\""},
           {"{\"a\": {\"data_offsets\": [0, 1], \"data_offsets\": [0, 1]}}",
            "has two \"data_offsets\""},
           {"{\"a\": {\"strides\": [4]}}", "has a field \"strides\""},
           {absl::StrCat("{", a, ",", a, "}"), "tensor \"a\" occurs twice"},
           {absl::StrCat("{\"__metadata__\": {\"x\": 3},", a, "}"), "__metadata__ has \"3\""},
           {absl::StrCat("{\"__metadata__\": {\"x\": {}},", a, "}"), "has \"an object\""},
           {absl::StrCat("{\"__metadata__\": 7,", a, "}"), "found \"7\""},
           {"{\"a\xff\": 1}", "not JSON"},
           {"{\"" + std::string(4097, 'n') + "\": 1}", "has a name of 4097 bytes"},
           {"{\"a\": {\"shape\": [" + std::string(64, '1') + "]}}", "in \"shape\""},
           {"{\"a\": {\"shape\": [1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1,1"
            "]}}",
            "has more than 32 numbers in \"shape\""},
           {std::string(1'000'000, '[').insert(0, "{\"a\":"), "found \"a list\""},
           {"{\"a\\u001b[2J\\n\": 1}", "header is garbage"}}) {
    ExpectRefused(json, what);
  }
}

TEST_F(Safetensors, BytesThatDoNotFillTheFileAreRefused) {
  for (const auto& [entries, what] : std::vector<std::pair<std::vector<std::string>, std::string>>{
           {{Entry("a", "F32", "[4]", 0, 20)},
            "tensor \"a\" is at bytes [0, 20) of the data, but the file has 16"},
           {{Entry("a", "F32", "[4]", 16, 0)},
            "has data_offsets [16, 0], which end before they begin"},
           {{Entry("a", "F32", "[2]", 0, 8)}, "the tensors take 8 bytes, but the file has 16"},
           {{Entry("a", "F32", "[3]", 4, 16)},
            "begins at byte 4 of the data, but the one before "
            "ends at byte 0; the format has no gaps"},
           {{Entry("a", "F32", "[3]", 0, 12), Entry("b", "F32", "[2]", 8, 16)},
            "tensor \"b\" begins at byte 8 of the data, but the one before ends at byte 12; the "
            "format has no overlaps"},
           {{Entry("a", "F32", "[5]", 0, 16)}, "has 16 bytes, but F32 of shape [5] need 20"},
           {{Entry("a", "F16", "[2, 3]", 0, 16)}, "has 16 bytes, but F16 of shape [2, 3] need 12"},
           {{Entry("a", "F32", "[0]", 0, 16)}, "but F32 of shape [0] need 0"},
           {{Entry("a", "F4", "[3]", 0, 16)}, "of 12 bits does not end at a byte"},
           {{Entry("a", "F32", "[4294967296, 4294967296]", 0, 16)},
            "shape [4294967296, 4294967296], more elements than a file can hold"},
           {{Entry("a", "F32", "[2305843009213693952]", 0, 16)}, "more elements than"},
           {{Entry("a", "NEW", "[4294967296, 4294967296]", 0, 16)}, "more elements than"},
           {{}, "the tensors take 0 bytes, but the file has 16"}}) {
    ExpectRefused(absl::StrCat("{", absl::StrJoin(entries, ","), "}"), what);
  }
}

TEST_F(Safetensors, ControlCharactersOfNamesAreEscapedInErrors) {
  WriteFile(SafetensorsBytes("{\"a\\u001b[2J\\nb\": {}}", ""));
  const auto file = TensorFile::Open(Path());
  EXPECT_THAT(std::string(file.status().message()), HasSubstr("tensor \"a\\x1b[2J\\x0ab\" has no"));
  EXPECT_EQ(QuotedName(std::string(100, 'n')), "\"" + std::string(80, 'n') + "...\"");
}

TEST_F(Safetensors, AFileThatShrinksWhileItIsReadIsDataLoss) {
  WriteFile(SafetensorsBytes(absl::StrCat("{", Entry("a", "F32", "[4]", 0, 16), "}"),
                             std::string(16, 'x')));
  const auto file = TensorFile::Open(Path()).value();
  std::filesystem::resize_file(Path(), std::filesystem::file_size(Path()) - 4);
  const MatrixReader reader = file->Reader(*file->tensors()[0].layout);
  char bytes[16];
  EXPECT_EQ(reader.ReadElements(0, 4, bytes).code(), Code::kDataLoss);
}

TEST_F(Safetensors, WhatIsWrittenIsReadAgain) {
  // A tensor of wide elements comes first, so that it begins at a multiple of its elements' size.
  const std::vector<TensorToSave> tensors = {
      {"h", 3, 3, DType::kF16}, {"f", 2, 2, DType::kF32}, {"\xc3\xa4\"\n", 1, 5, DType::kBF16}};
  auto writer = TensorFileWriter::Create(Path(), tensors, {{"format", "pt"}});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_EQ((*writer)->tensors().front().name, "f");
  std::string all;
  for (int i = 0; i < 16 + 18 + 10; ++i) all += static_cast<char>(i);
  EXPECT_EQ((*writer)->Commit().code(), Code::kFailedPrecondition);
  ASSERT_TRUE((*writer)->Append(all.substr(0, 20)).ok());
  EXPECT_FALSE(std::filesystem::exists(Path()));
  EXPECT_EQ((*writer)->Append(all).code(), Code::kOutOfRange);
  ASSERT_TRUE((*writer)->Append(all.substr(20)).ok());
  ASSERT_TRUE((*writer)->Commit().ok());
  const std::string bytes = ReadFile();
  EXPECT_EQ((bytes.size() - all.size()) % 8, 0u);
  const auto file = TensorFile::Open(Path());
  ASSERT_TRUE(file.ok()) << file.status();
  std::string back;
  std::vector<std::string> names;
  for (const FileTensor& tensor : (*file)->tensors()) {
    names.push_back(tensor.name);
    ASSERT_TRUE(tensor.layout.ok()) << tensor.layout.status();
    const MatrixReader reader = (*file)->Reader(*tensor.layout);
    std::string read(tensor.bytes, '\0');
    ASSERT_TRUE(reader.ReadElements(0, reader.rows() * reader.cols(), read.data()).ok());
    back += read;
  }
  EXPECT_EQ(back, all);
  EXPECT_THAT(names, ::testing::ElementsAre("f", "h", "\xc3\xa4\"\n"));
}

TEST_F(Safetensors, AFileThatCannotBeIsNotCreated) {
  const TensorToSave a = {"a", 1, 1, DType::kF32}, b = {"b", 1, 1, DType::kF32};
  for (const auto& [name, tensors, what] :
       std::vector<std::tuple<std::string, std::vector<TensorToSave>, std::string>>{
           {"m.safetensors", {a, a}, "tensor \"a\" is given twice"},
           {"m.safetensors", {{"__metadata__", 1, 1}}, "cannot be saved"},
           {"m.safetensors", {{"\xff", 1, 1}}, "cannot be saved"},
           {"m.npy", {a, b}, "has one tensor"},
           {"m.npy", {}, "has one tensor"},
           {"m.bin", {a}, "ends neither in .npy nor in .safetensors"}}) {
    const auto writer = TensorFileWriter::Create(Path(name), tensors, {});
    EXPECT_EQ(writer.status().code(), Code::kInvalidArgument) << what;
    EXPECT_THAT(std::string(writer.status().message()), HasSubstr(what));
    EXPECT_FALSE(std::filesystem::exists(Path(name)));
  }
  EXPECT_EQ(TensorFile::Open(Path("m.bin")).status().code(), Code::kInvalidArgument);
}

TEST_F(Safetensors, AnNpyFileHasOneTensorNamedAfterIt) {
  auto writer = TensorFileWriter::Create(Path("w.v.npy"), {{"other", 2, 1, DType::kBF16}}, {});
  ASSERT_TRUE(writer.ok()) << writer.status();
  ASSERT_TRUE((*writer)->Append(std::string("\x80\x3f\x00\xc0", 4)).ok());  // 1 and -2
  ASSERT_TRUE((*writer)->Commit().ok());
  const auto file = TensorFile::Open(Path("w.v.npy"));
  ASSERT_TRUE(file.ok()) << file.status();
  ASSERT_EQ((*file)->tensors().size(), 1u);
  const FileTensor& tensor = (*file)->tensors()[0];
  EXPECT_EQ(tensor.name, "w.v");
  EXPECT_THAT(tensor.shape, ::testing::ElementsAre(2, 1));
  const MatrixReader reader = (*file)->Reader(*tensor.layout);
  float back[2];
  ASSERT_TRUE(reader.ReadElements(0, 2, back).ok());
  EXPECT_EQ(back[0], 1.f);
  EXPECT_EQ(back[1], -2.f);
}

TEST_F(Safetensors, ATransposedTensorIsReadByItsColumns) {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};  // 2 x 3
  std::string data(24, '\0');
  std::memcpy(data.data(), values.data(), data.size());
  WriteFile(SafetensorsBytes(absl::StrCat("{", Entry("a", "F32", "[2, 3]", 0, 24), "}"), data));
  const auto file = TensorFile::Open(Path()).value();
  const MatrixReader reader = file->Reader(Transposed(*file->tensors()[0].layout));
  EXPECT_EQ(reader.rows(), 3);
  EXPECT_EQ(reader.cols(), 2);
  ConvertedReader source(reader, DType::kF32);
  std::vector<float> back(6);
  ASSERT_TRUE(source.Read(0, 24, reinterpret_cast<char*>(back.data())).ok());
  EXPECT_THAT(back, ::testing::ElementsAre(1, 4, 2, 5, 3, 6));
}

}  // namespace
}  // namespace agmm
