// A safetensors file: the JSON alone, then the whole file through the reader, with rules.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/files/load_rules.h"
#include "client/files/safetensors.h"
#include "client/files/tensor_file.h"
#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

// The tensors fill the data, one after the other, and errors are one line.
void CheckJson(absl::string_view json, int64_t data_bytes) {
  const auto tensors = ParseSafetensorsJson(json, data_bytes);
  if (!tensors.ok()) {
    FUZZ_CHECK(!absl::StrContains(tensors.status().message(), '\n'), tensors.status().ToString());
    return;
  }
  int64_t at = 0;
  for (const StoredTensor& tensor : *tensors) {
    FUZZ_CHECK(tensor.begin == at && tensor.end >= at, tensor.name);
    at = tensor.end;
  }
  FUZZ_CHECK(at == data_bytes, "the end");
}

void CheckTensor(const TensorFile& file, const FileTensor& tensor) {
  if (!tensor.layout.ok()) return;
  for (const MatrixLayout& layout : {*tensor.layout, Transposed(*tensor.layout)}) {
    FUZZ_CHECK(layout.rows > 0 && layout.cols > 0, tensor.name);
    FUZZ_CHECK(layout.rows * layout.cols * SizeOf(layout.dtype) == tensor.bytes, tensor.name);
    const MatrixReader reader = file.Reader(layout);
    std::vector<char> all(layout.rows * layout.cols * 4);
    const absl::Status read =
        ConvertedReader(reader, DType::kF32).Read(0, static_cast<int64_t>(all.size()), all.data());
    FUZZ_CHECK(read.ok(), read.ToString());
  }
}

void CheckFile(absl::string_view bytes) {
  static const int fd = memfd_create("safetensors", 0);
  FUZZ_CHECK(ftruncate(fd, 0) == 0 &&
                 pwrite(fd, bytes.data(), bytes.size(), 0) == static_cast<ssize_t>(bytes.size()),
             "memfd");
  const auto file = TensorFile::OpenSafetensors(absl::StrCat("/proc/self/fd/", fd));
  if (!file.ok()) return;
  for (const FileTensor& tensor : (*file)->tensors()) CheckTensor(**file, tensor);
  const std::vector<FileRule> rules = {{.pattern = "[a-f]*", .transpose = true, .name = "x*"},
                                       {.pattern = "*"}};
  const LoadPlan plan = PlanLoad(**file, rules);
  FUZZ_CHECK(plan.tensors.size() == (*file)->tensors().size(), "a tensor is missing");
  const absl::Status status = CheckPlan(**file, rules, plan, /*strict=*/true);
  FUZZ_CHECK(!absl::StrContains(status.message(), '\n'), status.ToString());
}

[[maybe_unused]] const bool kAdded = AddTarget("safetensors", [](absl::string_view bytes) {
  CheckJson(bytes, 16);
  // Checks the JSON even if the length is invalid.
  const size_t json = std::min(bytes.find('\n'), bytes.size());
  const uint64_t length = json;
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  CheckFile(absl::StrCat(file, bytes.substr(0, json),
                         json == bytes.size() ? "" : bytes.substr(json + 1)));
  CheckFile(bytes);
});

}  // namespace
}  // namespace agmm::fuzz
