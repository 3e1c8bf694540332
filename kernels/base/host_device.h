// A mark for functions that nvcc compiles for both a GPU and its host.
#pragma once

#ifdef __CUDACC__
#define AGMM_HOST_DEVICE __host__ __device__
#else
#define AGMM_HOST_DEVICE
#endif
