// The flags of `agmmctl advise` as a request, and its answer as text and as JSON.
#include <limits>
#include <string>
#include <vector>

#include "client/ctl/advice_report.h"
#include "client/ctl/advice_texts.h"
#include "client/ctl/verbs.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/spec.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

absl::StatusOr<AdviceRequest> RequestOfTexts(const AdviceTexts& texts) {
  return ParseAdviceRequest(texts, *ParseMesh("x=2,y=2"), DType::kBF16);
}

TEST(AdviceRequest, ChoosesEveryShardingThatNoTextGives) {
  const auto request =
      RequestOfTexts({.specs = {"A[M, K] * B[K, N] -> C[M, N]"}, .shape = "M=8,N=4,K=2"});
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_THAT(request->products, SizeIs(1));
  EXPECT_EQ(SizesText(request->products[0]), "M=8 N=4 K=2 bf16  mesh x=2,y=2");
  EXPECT_THAT(request->keeps[0], ElementsAre(false, false, false));
  EXPECT_EQ(request->memory_bytes, std::numeric_limits<int64_t>::max());
}

TEST(AdviceRequest, KeepsOperandsWithASubscriptAndTheOutput) {
  const auto request = RequestOfTexts({.specs = {"A[M_x, K] * B[K, N] -> C[M, N]"},
                                       .shape = "M=8,N=4,K=2",
                                       .output = "C[M, N]",
                                       .memory = "300MB"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_THAT(request->keeps[0], ElementsAre(true, false, true));
  EXPECT_EQ(request->memory_bytes, 300'000'000);
}

TEST(AdviceRequest, ReadsProductsInARow) {
  for (const std::vector<std::string>& specs :
       {std::vector<std::string>{"x[B, D] * V[D, F] -> H[B, F]; H * W[F, D] -> Y[B, D];"},
        std::vector<std::string>{"x[B, D] * V[D, F] -> H[B, F]", "H[B, F] * W[F, D] -> Y[B, D]"}}) {
    const auto request =
        RequestOfTexts({.specs = specs, .shape = "B=8, D=4, F=16", .output = "Y[B, D_x]"});
    ASSERT_TRUE(request.ok()) << request.status();
    ASSERT_THAT(request->products, SizeIs(2));
    EXPECT_EQ(SpecText(request->products[1]), "H[B, F] * W[F, D] -> Y[B, D_x]");
    EXPECT_EQ(SizesText(request->products[1]), "M=8 N=4 K=16 bf16  mesh x=2,y=2");
    EXPECT_THAT(request->keeps,
                ElementsAre(ElementsAre(false, false, false), ElementsAre(false, false, true)));
  }
}

TEST(AdviceRequest, KeepsAnIntermediateInBothProducts) {
  const auto request =
      RequestOfTexts({.specs = {"x[B, D] * V[D, F] -> H[B, F_y]; H * W[F, D] -> Y[B, D]"},
                      .shape = "B=8,D=4,F=16"});
  ASSERT_TRUE(request.ok()) << request.status();
  EXPECT_EQ(SpecText(request->products[1]), "H[B, F_y] * W[F, D] -> Y[B, D]");
  EXPECT_THAT(request->keeps,
              ElementsAre(ElementsAre(false, false, true), ElementsAre(true, false, false)));
}

TEST(AdviceRequest, RefusesWhatItCannotUse) {
  const auto message = [](const AdviceTexts& texts) {
    return std::string(RequestOfTexts(texts).status().message());
  };
  const std::string chain = "x[B, D] * V[D, F] -> H[B, F]; H * W[F, D] -> Y[B, D]";
  EXPECT_THAT(message({.specs = {" ; "}}), HasSubstr("no product"));
  EXPECT_THAT(message({.specs = {"A[M_x, K] -> B[M, K]"}}), HasSubstr("does not multiply"));
  EXPECT_THAT(message({.specs = {chain}, .shape = "B=8,D=4,F=16,Q=2"}), HasSubstr("Q"));
  EXPECT_THAT(message({.specs = {chain}, .shape = "B=8,D=4"}), HasSubstr("F"));
  EXPECT_THAT(message({.specs = {chain}, .shape = "B=8,D=4,F=16", .output = "H[B, F]"}),
              HasSubstr("does not name the result"));
  EXPECT_THAT(message({.specs = {chain}, .shape = "B=8,D=4,F=16", .memory = "many"}),
              HasSubstr("\"many\" is not a size"));
}

TEST(AdviceRequest, ReadsDecimalAndBinarySizes) {
  EXPECT_EQ(*ParseMemory("300MB"), 300'000'000);
  EXPECT_EQ(*ParseMemory("1.5GB"), 1'500'000'000);
  EXPECT_EQ(*ParseMemory("1kB"), 1000);
  EXPECT_EQ(*ParseMemory("2GiB"), int64_t{2} << 30);
  EXPECT_EQ(*ParseMemory("17B"), 17);
  for (const char* text :
       {"", "MB", "-1MB", "0MB", "0B", "nanMB", "1e12TB", "3 GBs", "80", "-3GB", "80gb"}) {
    EXPECT_EQ(ParseMemory(text).status().message(),
              absl::StrCat("--memory \"", text,
                           "\" is not a size; write a number and a unit, such as 300MB or 80GiB"));
  }
}

// Two devices behind a switch, and what is best there.
struct Advised {
  Advised() {
    platform.machine.name = "test";
    platform.machine.within.rates = {10, 20, 100};
    platform.machine.staged = platform.machine.between = platform.machine.within;
    platform.machine.device.gemm = {{DType::kF32, 1e6, 1000}};
    platform.machine.device.memory = 1e6;
    platform.topology = *UniformTopology(2, 1);
    request = *ParseAdviceRequest({.specs = {"A[M, K] * B[K, N] -> C[M, N]"},
                                   .shape = "M=256,N=256,K=256",
                                   .output = "C[M, N]",
                                   .memory = "1MB"},
                                  *ParseMesh("x=2"), DType::kF32);
    answer = *Advise(request, platform);
  }
  Platform platform;
  AdviceRequest request;
  AdviceAnswer answer;
};

TEST(AdviceText, RanksTheShardings) {
  const Advised advised;
  const std::string text = AdviceText(advised.request, advised.platform, advised.answer);
  EXPECT_THAT(text, HasSubstr("machine   test, mesh x=2\n"));
  EXPECT_THAT(text, HasSubstr("memory    976.56 KiB a rank\n"));
  EXPECT_THAT(text,
              HasSubstr("   =1    30 us  16.8 us      128 KiB  640 KiB  N=x    A[M, K] * B[K, "
                        "N_x] -> C[M, N]\n    all-gather C over x; by "));
  EXPECT_THAT(text,
              HasSubstr("   =3  33.6 us  33.6 us          0 B  768 KiB  none   A[M, K] * B[K, "
                        "N] -> C[M, N]\n    moves nothing\n"));
  EXPECT_THAT(text,
              HasSubstr("place 1: the first 2 are equal; the first one is 1.12 times faster"));
  EXPECT_THAT(text, HasSubstr("=: within 1 %"));
}

TEST(AdviceJson, HasTheFieldsOfItsSchema) {
  const Advised advised;
  const Json json = AdviceJson(advised.request, advised.platform, advised.answer);
  const auto keys = [](const Json& object) {
    std::vector<std::string> names;
    for (const auto& item : object.items()) names.push_back(item.key());
    return names;
  };
  EXPECT_EQ(json["schema"], "agmm.advice.v1");
  EXPECT_THAT(keys(json), ElementsAre("schema", "machine", "mesh", "memory_bytes", "candidates",
                                      "too_large", "simulated", "least_bytes", "why", "ranked"));
  EXPECT_EQ(json["memory_bytes"], 1'000'000);
  const Json& first = json["ranked"][0];
  EXPECT_THAT(keys(first), ElementsAre("place", "is_shared", "time_ns", "gemm_ns", "received_bytes",
                                       "memory_bytes", "products"));
  EXPECT_EQ(first["place"], 1);
  EXPECT_EQ(first["is_shared"], true);
  const Json& product = first["products"][0];
  EXPECT_THAT(keys(product),
              ElementsAre("spec", "split", "algorithm", "chunks", "k_chunks", "workspace_shards",
                          "workspace_bytes", "time_ns", "gemm_ns", "received_bytes", "moves"));
  EXPECT_EQ(
      product["moves"][0],
      Json({{"collective", "all-gather"}, {"operand", "C"}, {"axes", {"x"}}, {"bytes", 131072}}));
}

TEST(NothingFits, NamesTheSmallestNeed) {
  Advised advised;
  advised.request.memory_bytes = 1000;
  const absl::Status status =
      NothingFits(advised.request, *Advise(advised.request, advised.platform));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()),
              HasSubstr("fits into 1000 B a rank; the smallest needs at least 512 KiB"));
}

TEST(NothingFits, WithoutAMemoryTheMachinesCounts) {
  CLI::App app("", "agmmctl");
  Command command;
  AddAdvise(&app, &command);
  app.parse("advise --preset tpu-v5e --mesh x=2 --shape M=131072,N=131072,K=131072");
  const absl::Status status = command.run();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("fits into 14.90 GiB a rank"));
}

}  // namespace
}  // namespace agmm
