// Opens the model before main, so that whoever then opens the driver or cuBLASLt by name gets it.
// With AGMM_TEST_GPU set, programs get what this machine has instead.
#include <dlfcn.h>

#include <cstdlib>

namespace {

const bool opened = [] {
  if (std::getenv("AGMM_TEST_GPU")) return false;
  // Without the model, too, what this machine has: bundles leave it out.
  return dlopen(AGMM_MODEL_FOLDER "/libcuda.so.1", RTLD_NOW) &&
         dlopen(AGMM_MODEL_FOLDER "/libcublasLt.so.13", RTLD_NOW);
}();

}  // namespace
