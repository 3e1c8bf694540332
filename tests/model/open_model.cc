// Opens the model before main, so that later attempts to open the driver or cuBLASLt by name get
// the model. With AGMM_TEST_GPU set, programs get this machine's libraries instead.
#include <dlfcn.h>

#include <cstdlib>

namespace {

const bool opened = [] {
  if (std::getenv("AGMM_TEST_GPU")) return false;
  // Without the model, which bundles leave out, programs also get this machine's libraries.
  return dlopen(AGMM_MODEL_FOLDER "/libcuda.so.1", RTLD_NOW) &&
         dlopen(AGMM_MODEL_FOLDER "/libcublasLt.so.13", RTLD_NOW);
}();

}  // namespace
