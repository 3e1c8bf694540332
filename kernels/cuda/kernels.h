// The kernels of elementwise.cu, loaded into one context.
#pragma once

#include <cuda.h>

#include "kernels/base/dtype.h"
#include "kernels/cuda/driver.h"
#include "kernels/cuda/elementwise.h"

namespace agmm {

// Thread-compatible; Launch is const and thread-safe. Results are the driver's.
class Kernels {
 public:
  explicit Kernels(const Driver& driver) : driver_(driver) {}
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;

  // Loads all kernels for the current context, so that none is loaded while work runs. To be called
  // once.
  CUresult Load();
  // Requires that no kernel runs, and that the context is current.
  void Unload();
  // These queue `work` on `stream`. Its context must be current.
  CUresult Launch(const elementwise::Convert& work, CUstream stream) const;
  CUresult Launch(const elementwise::Reduce& work, CUstream stream) const;
  CUresult Launch(const elementwise::Fill& work, CUstream stream) const;

 private:
  template <typename Work>
  CUresult LaunchOn(CUfunction function, const Work& work, CUstream stream) const;

  const Driver& driver_;
  CUlibrary library_ = nullptr;
  CUfunction convert_ = nullptr, reduce_ = nullptr, fill_ = nullptr;
};

}  // namespace agmm
