// Runs rings and products with kernels of a PTX file, for mutants
// (tests/model/ptx/known_good/mutants.py) and counts (compare.py beside it). See run_settings.h;
// RING_MISTAKE names a mistake of the host.
//
//   sm90_run KERNEL
//   sm90_run ring GPUS ROWS N K TILE_COLS CLUSTER CTAS SEND_COLUMNS   one ring of f16: ROWS of A on
//   each GPU
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

#include "tests/model/ptx/known_good/run_settings.h"
#include "tests/sm90/ring.h"

namespace agmm::sm90 {
namespace {

// Each case reaches code that the others do not: several blocks and pieces of one, ragged ends,
// shared sending, epochs, and pieces that several CTAs send in the second direction alone.
std::vector<Case> Cases(bool sends) {
  if (!sends) {
    return {{.name = "chunks", .rows = {200, 129, 7}, .n = 201, .k = 137, .odd = true},
            {.name = "copied chunks",
             .gpus = 3,
             .rows = {64, 129, 7},
             .n = 136,
             .k = 136,
             .epochs = 2,
             .delivered = true},
            {.name = "parts of K",
             .gpus = 2,
             .rows = {64, 300},
             .n = 136,
             .k = 200,
             .delivered = true,
             .along_k = true}};
  }
  return {
      {.name = "two GPUs", .gpus = 2, .rows = {300, 129}, .n = 264, .k = 328},
      {.name = "three GPUs",
       .gpus = 3,
       .rows = {200, 300, 64},
       .n = 201,
       .k = 137,
       .odd = true,
       .ctas = 3,
       .send_columns = 2,
       .epochs = 3,
       .credits = true},
      {.name = "parts of K", .gpus = 3, .rows = {64, 100, 7}, .n = 136, .k = 200, .along_k = true},
      {.name = "both ways",
       .gpus = 5,
       .rows = {64, 130, 7, 64, 1},
       .n = 72,
       .k = 72,
       .epochs = 2,
       .credits = true,
       .both_ways = true}};
}

// For what clusters do otherwise: they share B, wait for pieces together, and end together.
std::vector<Case> ClusterCases(bool sends) {
  std::vector<Case> cases = {{.name = "chunks", .rows = {300, 129}, .n = 72, .k = 200},
                             {.name = "copied chunks",
                              .gpus = 3,
                              .rows = {129, 64, 7},
                              .n = 72,
                              .k = 72,
                              .epochs = 2,
                              .delivered = true},
                             {.name = "parts of K",
                              .gpus = 2,
                              .rows = {64, 300},
                              .n = 136,
                              .k = 200,
                              .delivered = true,
                              .along_k = true}};
  for (Case& product : cases) {
    product.tile_cols = kWide;
    product.cluster = kPair;
    if (!sends) continue;
    product.gpus = static_cast<int>(product.rows.size());
    product.delivered = false;
  }
  return cases;
}

Mistake MistakeNamed(const std::string& name) {
  if (name.empty()) return Mistake::kNone;
  if (name == "one slot for two steps") return Mistake::kOneSlotForTwoSteps;
  if (name == "credit raised early") return Mistake::kCreditRaisedEarly;
  throw ptx::Stop("no mistake " + name);
}

Case RingOf(char** numbers) {
  const auto number = [&](int i) { return std::atoi(numbers[i]); };
  return {.name = "ring",
          .gpus = number(0),
          .element = Element::kF16,
          .out = Element::kF16,
          .tile_cols = number(4),
          .cluster = number(5),
          .rows = std::vector<int>(number(0), number(1)),
          .n = number(2),
          .k = number(3),
          .ctas = number(6),
          .send_columns = number(7)};
}

int Run(const std::vector<Case>& cases) {
  const auto module = ptx::ModuleFromFile(ptx::Setting("PTX_FILE", ""));
  int wrong = 0;
  size_t findings = 0;
  for (Case product : cases) {
    product.options = ptx::OptionsFromEnvironment();
    product.mistake = MistakeNamed(ptx::Setting("RING_MISTAKE", ""));
    product.check_races = ptx::ChecksRaces();
    Ring ring(product, *module);
    for (int epoch = 1; epoch <= product.epochs; ++epoch) {
      ring.Run(epoch);
      wrong += ring.CountWrong();
    }
    std::printf("%s: %s", product.name.c_str(), ptx::ReportOf(ring.world()).c_str());
    std::printf("%s", ptx::CountsOf(ring.world(), *module).c_str());
    findings += ring.world().races.findings().size();
  }
  std::printf("wrong elements: %d\n", wrong);
  return wrong ? 1 : findings ? 2 : 0;
}

}  // namespace
}  // namespace agmm::sm90

int main(int count, char** arguments) {
  const std::string kernel = count > 1 ? arguments[1] : "";
  if (count != (kernel == "ring" ? 10 : 2)) {
    std::fprintf(stderr,
                 "usage: PTX_FILE=... sm90_run agmm_{product,ring}_bf16_bf16_{128,256_2}\n"
                 "       PTX_FILE=... sm90_run ring GPUS ROWS N K TILE_COLS CLUSTER CTAS "
                 "SEND_COLUMNS\n");
    return 4;
  }
  try {
    using agmm::sm90::Cases, agmm::sm90::ClusterCases, agmm::sm90::RingOf;
    const bool sends = kernel.starts_with("agmm_ring");
    return agmm::sm90::Run(kernel == "ring"            ? std::vector{RingOf(arguments + 2)}
                           : kernel.ends_with("256_2") ? ClusterCases(sends)
                                                       : Cases(sends));
  } catch (const ptx::Stop& stop) {
    std::printf("stop: %s\n", stop.what());
    return 3;
  }
}
