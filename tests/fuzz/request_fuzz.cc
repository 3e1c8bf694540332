#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/requests.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  agmm::fuzz::CheckRequest(AGMM_REQUEST, data, size);
  return 0;
}
