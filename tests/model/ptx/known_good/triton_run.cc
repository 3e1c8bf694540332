// Runs one of Triton's kernels, or a changed copy of it, with products of a usual and of no inner
// dimension: triton_run masked|tiles|maps. See run_settings.h.
#include <cstdio>

#include "tests/model/ptx/known_good/run_settings.h"
#include "tests/model/ptx/known_good/triton_product.h"

int main(int count, char** arguments) {
  if (count != 2) {
    std::fprintf(stderr, "usage: PTX_FILE=... triton_run masked|tiles|maps\n");
    return 4;
  }
  int wrong = 0;
  size_t findings = 0;
  try {
    const auto module = ptx::ModuleFromFile(ptx::Setting("PTX_FILE", ""));
    for (const int k : {ptx::TritonProduct::kK, 0}) {
      ptx::TritonProduct product(arguments[1], k);
      const auto world = product.Run(*module, ptx::OptionsFromEnvironment());
      std::printf("%s", ptx::ReportOf(*world).c_str());
      findings += world->races.findings().size();
      wrong += product.CountWrong();
    }
  } catch (const ptx::Stop& stop) {
    std::printf("stop: %s\n", stop.what());
    return 3;
  }
  std::printf("wrong elements: %d\n", wrong);
  return wrong ? 1 : findings ? 2 : 0;
}
