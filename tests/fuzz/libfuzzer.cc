// libFuzzer runs one target: the one that AGMM_FUZZ_TARGET names.
#include <cstdint>

#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

const Target& ChosenTarget() {
  const char* const name = std::getenv("AGMM_FUZZ_TARGET");
  const auto found = Targets().find(name == nullptr ? "" : name);
  if (found != Targets().end()) return found->second;
  std::fprintf(stderr, "AGMM_FUZZ_TARGET is \"%s\"; set it to one of\n",
               name == nullptr ? "" : name);
  for (const auto& [known, target] : Targets()) std::fprintf(stderr, "  %s\n", known.c_str());
  std::exit(2);
}

}  // namespace
}  // namespace agmm::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const agmm::fuzz::Target& target = agmm::fuzz::ChosenTarget();
  target({reinterpret_cast<const char*>(data), size});
  return 0;
}
