// Runs rings and products with kernels of a PTX file, for mutants
// (tests/model/ptx/known_good/mutants.py): sm90_run KERNEL. See run_settings.h; RING_MISTAKE names
// a mistake of the host.
#include <cstdio>
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

Mistake MistakeNamed(const std::string& name) {
  if (name.empty()) return Mistake::kNone;
  if (name == "one slot for two steps") return Mistake::kOneSlotForTwoSteps;
  if (name == "credit raised early") return Mistake::kCreditRaisedEarly;
  throw ptx::Stop("no mistake " + name);
}

int Run(const std::string& kernel) {
  const auto module = ptx::ModuleFromFile(ptx::Setting("PTX_FILE", ""));
  int wrong = 0;
  size_t findings = 0;
  for (Case product : Cases(kernel.starts_with("agmm_ring"))) {
    product.options = ptx::OptionsFromEnvironment();
    product.mistake = MistakeNamed(ptx::Setting("RING_MISTAKE", ""));
    Ring ring(product, *module);
    for (int epoch = 1; epoch <= product.epochs; ++epoch) {
      ring.Run(epoch);
      wrong += ring.CountWrong();
    }
    std::printf("%s: %s", product.name.c_str(), ptx::ReportOf(ring.world()).c_str());
    findings += ring.world().races.findings().size();
  }
  std::printf("wrong elements: %d\n", wrong);
  return wrong ? 1 : findings ? 2 : 0;
}

}  // namespace
}  // namespace agmm::sm90

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(
        stderr,
        "usage: PTX_FILE=... sm90_run agmm_product_bf16_bf16_128|agmm_ring_bf16_bf16_128\n");
    return 4;
  }
  try {
    return agmm::sm90::Run(arguments[1]);
  } catch (const ptx::Stop& stop) {
    std::printf("stop: %s\n", stop.what());
    return 3;
  }
}
