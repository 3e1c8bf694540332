#include "kernels/cuda/cublaslt.h"

#include <dlfcn.h>

#include <cstdlib>
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

constexpr char kVariable[] = "AGMM_CUBLASLT";

std::vector<std::string> Names() {
  const char* named = std::getenv(kVariable);
  if (named != nullptr && *named != '\0') return {named};
  // The declarations belong to one major version.
  const std::string soname = absl::StrCat("libcublasLt.so.", CUBLAS_VER_MAJOR);
  return {soname, absl::StrCat("/usr/local/cuda/lib64/", soname)};
}

absl::StatusOr<const CublasLt*> LoadCublasLt() {
  void* library = nullptr;
  std::vector<std::string> tried;
  for (const std::string& name : Names()) {
    library = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
    tried.push_back(absl::StrFormat("%s (%s)", name, dlerror()));
  }
  if (library == nullptr) {
    return absl::FailedPreconditionError(
        absl::StrFormat("no cuBLASLt: tried %s; install the CUDA toolkit's libraries, or set %s to "
                        "the file, which PyTorch also includes",
                        absl::StrJoin(tried, ", "), kVariable));
  }
  auto table = std::make_unique<CublasLt>();
#define AGMM_FIND(name)                                                                  \
  table->name = reinterpret_cast<decltype(table->name)>(dlsym(library, #name));          \
  if (table->name == nullptr)                                                            \
    return absl::FailedPreconditionError(                                                \
        absl::StrFormat("no cuBLASLt: %s has no " #name "; set %s to one of version %d", \
                        Names().front(), kVariable, CUBLAS_VER_MAJOR));
  AGMM_CUBLASLT_FUNCTIONS(AGMM_FIND)
#undef AGMM_FIND
  const size_t version = table->cublasLtGetVersion();
  table->version = absl::StrFormat("%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  return table.release();  // for as long as the process lives
}

}  // namespace

absl::StatusOr<const CublasLt*> OpenCublasLt() {
  static const auto* const table = new absl::StatusOr<const CublasLt*>(LoadCublasLt());
  return *table;
}

}  // namespace agmm
