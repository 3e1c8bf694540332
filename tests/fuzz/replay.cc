// Gives every file of the folder, once, to the fuzzer that this is linked with.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "tests/fuzz/fuzz.h"

int main(int argc, char** argv) {
  std::vector<std::filesystem::path> files;
  std::error_code error;
  if (argc == 2) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[1], error))
      if (entry.is_regular_file()) files.push_back(entry.path());
  }
  if (files.empty()) {
    std::fprintf(stderr, "usage: %s FOLDER, with at least one file in it\n", argv[0]);
    return 2;
  }
  std::sort(files.begin(), files.end());
  for (const auto& file : files) {
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last line names the culprit
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    // A copy of just that size: reading past it is an error that the sanitizers see.
    const std::vector<uint8_t> data(bytes.begin(), bytes.end());
    LLVMFuzzerTestOneInput(data.data(), data.size());
  }
  std::printf("%zu inputs\n", files.size());
}
