// Files of tensors through the public library.
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <stop_token>
#include <tuple>
#include <utility>

#include "tests/client/library/library_fixture.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class LibraryFile : public LibraryTest {
 protected:
  void SetUp() override {
    LibraryTest::SetUp();
    client_ = Connect();
    ASSERT_NE(client_, nullptr);
  }
  std::string Path(const std::string& name) const { return world_.Path(name); }
  void Put(const std::string& name, int64_t rows, int64_t cols, int seed) {
    const std::vector<float> values = Integers(rows * cols, seed);
    const auto put = client_->Put(name, {.rows = rows, .cols = cols, .sharding = "[M_x, N]"},
                                  values.data(), BytesIn(values));
    ASSERT_TRUE(put.ok()) << put.status().ToString();
  }
  std::vector<float> Get(const std::string& name, int64_t count) {
    std::vector<float> values(count);
    const auto got = client_->Get(name, values.data(), BytesIn(values));
    EXPECT_TRUE(got.ok()) << got.status().ToString();
    return values;
  }
  // Saves tensors l.up of 30 x 20, l.down of 20 x 30 and norm of 1 x 20.
  std::string SaveThree() {
    Put("l.up", 30, 20, 1);
    Put("l.down", 20, 30, 2);
    Put("norm", 1, 20, 3);
    const auto saved = client_->Save(Path("m.safetensors"), {"l.up", "l.down", "norm"},
                                     {.metadata = {{"a", "b"}}});
    EXPECT_TRUE(saved.ok()) << saved.status().ToString();
    EXPECT_EQ(saved->size(), 3u);
    return Path("m.safetensors");
  }
  static std::vector<float> Transposed(const std::vector<float>& values, int64_t rows,
                                       int64_t cols) {
    std::vector<float> out(values.size());
    for (int64_t i = 0; i < rows * cols; ++i) out[i % cols * rows + i / cols] = values[i];
    return out;
  }

  std::unique_ptr<Client> client_;
};

TEST_F(LibraryFile, WhatIsSavedIsLoadedAgainByRules) {
  const std::string path = SaveThree();
  std::vector<std::pair<int64_t, int64_t>> moved;
  LoadOptions options;
  options.transfer.progress = [&](int64_t now, int64_t of) { moved.emplace_back(now, of); };
  const auto file = client_->Load(
      path,
      {{.pattern = "*.up", .sharding = "[K, N_x]", .name = "new.*", .transpose = true},
       {.pattern = "*.down", .sharding = "[M_x, K]", .type = ElementType::kBF16, .name = "down"},
       {.pattern = "*.bias"}},
      options);
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  ASSERT_EQ(file->loaded.size(), 2u);
  EXPECT_EQ(file->loaded[0].name_in_file, "l.up");
  EXPECT_EQ(file->loaded[0].tensor.name, "new.l.up");
  EXPECT_EQ(file->loaded[0].tensor.spec.rows, 20);
  EXPECT_EQ(file->loaded[0].tensor.spec.sharding, "[K, N_x]");
  EXPECT_EQ(file->loaded[0].bytes, 2400);
  EXPECT_GT(file->loaded[0].seconds, 0);
  EXPECT_EQ(file->loaded[1].tensor.spec.type, ElementType::kBF16);
  EXPECT_EQ(file->loaded[1].bytes, 1200);
  EXPECT_THAT(file->skipped, ElementsAre("norm"));
  EXPECT_THAT(file->unused_patterns, ElementsAre("*.bias"));
  EXPECT_EQ(Get("new.l.up", 600), Transposed(Integers(600, 1), 30, 20));
  const auto down = client_->Get<BFloat16>("down");
  ASSERT_TRUE(down.ok()) << down.status().ToString();
  EXPECT_EQ(std::vector<float>(down->begin(), down->end()), Integers(600, 2));
  EXPECT_THAT(moved, ElementsAre(std::pair(2400, 3600), std::pair(3600, 3600)));
}

TEST_F(LibraryFile, AnNpyFileIsOneTensor) {
  Put("W", 30, 20, 4);
  const auto saved = client_->Save(Path("V.npy"), {"W"});
  ASSERT_TRUE(saved.ok()) << saved.status().ToString();
  EXPECT_EQ(ReadNpy(Path("V.npy")).values, Integers(600, 4));
  const auto file = client_->Load(Path("V.npy"), {{.pattern = "*", .sharding = "[M, N_x]"}});
  ASSERT_TRUE(file.ok()) << file.status().ToString();
  EXPECT_EQ(file->loaded.at(0).tensor.name, "V");
  EXPECT_EQ(Get("V", 600), Integers(600, 4));
  EXPECT_EQ(client_->Save(Path("V.npy"), {"W", "V"}).status().code(), StatusCode::kInvalidArgument);
}

TEST_F(LibraryFile, ALoadThatCannotBeFinishedLoadsNothing) {
  const std::string path = SaveThree();
  for (const auto& [rules, strict, what] :
       std::vector<std::tuple<std::vector<LoadRule>, bool, std::string>>{
           {{}, false, "no rule loads a tensor"},
           {{{.pattern = "*.bias"}}, false, "the rules for \"*.bias\""},
           {{{.pattern = "*", .name = "one"}}, false, "would both become \"one\""},
           {{{.pattern = "norm", .name = "a,*"}, {.pattern = "*", .name = "x*"}},
            false,
            "tensor \"norm\" cannot be loaded: its name on the devices has ',' at byte 1"},
           {{{.pattern = "l*", .name = "x*"}}, true, "no rule matches \"norm\""},
           {{{.pattern = "norm", .sharding = "[M_y, N]", .name = "x*"},
             {.pattern = "*", .name = "x*"}},
            false,
            "tensor \"norm\" cannot be loaded: sharding"}}) {
    const auto file = client_->Load(path, rules, {.strict = strict});
    EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument) << what;
    EXPECT_THAT(file.status().message(), HasSubstr(what));
  }
  EXPECT_EQ(client_->List()->size(), 3u);
  EXPECT_EQ(client_->Load(Path("none.npy"), {{.pattern = "*"}}).status().code(),
            StatusCode::kInvalidArgument);
}

TEST_F(LibraryFile, AStopEndsTheWaitForAPipe) {
  ASSERT_EQ(mkfifo(Path("silent.safetensors").c_str(), 0600), 0);
  std::stop_source stop;
  LoadOptions options;
  options.transfer.stop = stop.get_token();
  auto load = std::async(std::launch::async, [&] {
    return client_->Load(Path("silent.safetensors"), {{.pattern = "*"}}, options).status();
  });
  // Refused until the load has opened the pipe.
  int writer = -1;
  EXPECT_TRUE(Eventually([&] {
    writer = open(Path("silent.safetensors").c_str(), O_WRONLY | O_NONBLOCK | O_CLOEXEC);
    return writer >= 0;
  }));
  stop.request_stop();
  const bool ended = load.wait_for(kPatienceMs) == std::future_status::ready;
  EXPECT_TRUE(ended);
  close(writer);  // which ends the load in any case
  EXPECT_EQ(load.get().code(), StatusCode::kCancelled);
  EXPECT_TRUE(client_->List()->empty());
}

TEST_F(LibraryFile, AnErrorNamesItsTensorAndThoseLoadedBefore) {
  const std::string path = SaveThree();
  const auto file =
      client_->Load(path, {{.pattern = "l.down", .ranks = {7}}, {.pattern = "*", .name = "x.*"}});
  EXPECT_EQ(file.status().code(), StatusCode::kInvalidArgument);
  EXPECT_THAT(file.status().message(),
              HasSubstr("tensor \"l.down\" was not loaded (loaded before it: \"x.l.up\"): "));
  EXPECT_TRUE(client_->Find("x.l.up").ok());
  EXPECT_FALSE(client_->Find("x.norm").ok());
}

TEST_F(LibraryFile, AFileThatIsCutDuringItsLoadIsDataLoss) {
  constexpr int64_t kRows = 2048, kCols = 1024;  // 8 MiB
  const std::vector<float> values(kRows * kCols, 1.5f);
  ASSERT_TRUE(client_
                  ->Put("big", {.rows = kRows, .cols = kCols, .sharding = "[M_x, N]"},
                        values.data(), BytesIn(values))
                  .ok());
  const std::string path = Path("big.safetensors");
  ASSERT_TRUE(client_->Save(path, {"big"}).ok());
  LoadOptions options;
  options.transfer.progress = [&](int64_t, int64_t) {
    std::filesystem::resize_file(path, 1 << 20);
  };
  const auto file =
      client_->Load(path, {{.pattern = "*", .sharding = "[M_x, N]", .name = "cut"}}, options);
  EXPECT_EQ(file.status().code(), StatusCode::kDataLoss) << file.status().ToString();
  EXPECT_EQ(client_->Find("cut").status().code(), StatusCode::kNotFound);
}

TEST_F(LibraryFile, ASaveThatFailsLeavesTheOldFile) {
  Put("W", 30, 20, 4);
  std::ofstream(Path("m.safetensors")) << "old";
  const auto saved = client_->Save(Path("m.safetensors"), {"W", "none"});
  EXPECT_EQ(saved.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(saved.status().message(), HasSubstr("tensor \"none\" was not saved to "));
  ASSERT_TRUE(client_->Create("empty", {.rows = 2, .cols = 2, .sharding = "[M, N]"}).ok());
  EXPECT_EQ(client_->Save(Path("m.safetensors"), {"W", "empty"}).status().code(),
            StatusCode::kFailedPrecondition);
  EXPECT_EQ(std::filesystem::file_size(Path("m.safetensors")), 3u);
}

}  // namespace
}  // namespace agmm
