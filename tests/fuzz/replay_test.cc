// Every fuzz target holds for every file of its corpus.
#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

std::vector<std::filesystem::path> EntriesOf(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> entries;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error))
    entries.push_back(entry.path());
  std::sort(entries.begin(), entries.end());
  return entries;
}

std::vector<std::string> Names() {
  std::vector<std::string> names;
  for (const auto& [name, target] : Targets()) names.push_back(name);
  return names;
}

class Replay : public ::testing::TestWithParam<std::string> {};

TEST_P(Replay, HoldsForItsCorpus) {
  const std::vector<std::filesystem::path> files = EntriesOf(AGMM_CORPUS_DIR "/" + GetParam());
  ASSERT_FALSE(files.empty());
  for (const auto& file : files) {
    std::printf("%s\n", file.filename().c_str());
    std::fflush(stdout);  // the last line names the culprit
    std::ifstream stream(file, std::ios::binary);
    const std::vector<char> bytes{std::istreambuf_iterator<char>(stream), {}};
    // An exact copy, so that the sanitizers detect reads past its end.
    const std::vector<char> exact(bytes.begin(), bytes.end());
    Targets().at(GetParam())({exact.data(), exact.size()});
  }
}

INSTANTIATE_TEST_SUITE_P(All, Replay, ::testing::ValuesIn(Names()),
                         [](const auto& info) { return info.param; });

TEST(Corpus, HasNoFolderWithoutATarget) {
  for (const auto& folder : EntriesOf(AGMM_CORPUS_DIR))
    EXPECT_TRUE(Targets().contains(folder.filename())) << folder;
}

}  // namespace
}  // namespace agmm::fuzz
