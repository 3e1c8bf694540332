// A rank of the same node as another one's GPU sees it.
#pragma once

#include <cuda.h>

namespace agmm {

struct CudaPeer {
  CUdeviceptr heap = 0;  // 0: on another node, and the rest does not count
  int gpu = 0;
  bool reachable = false;  // loads and stores work; else copied through pinned memory
  int island = 0;          // of its GPU: ranks of one island reach each other
  int sms = 0;             // of its GPU, if kernels compute its products; else 0
  // Clusters of 2 CTAs of those kernels that its GPU holds at a time, if nothing else runs there.
  int clusters = 0;
  int tenants = 1;  // ranks of any plan on its GPU
  // It has peer access to all GPUs of the machine, so no copies reach it through pinned memory.
  bool reaches_all = true;
};

}  // namespace agmm
