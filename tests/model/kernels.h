// Kernels by name: the bytes that each one touches, and its effect on an element, on the host.
#pragma once

#include <cuda.h>

#include <cstdint>
#include <cstring>
#include <functional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "tests/model/stream.h"

namespace model {

// One launch with its arguments. The elements run in an order drawn by the seed.
struct Launch {
  std::vector<Access> accesses;
  int64_t elements = 0;
  std::function<void(int64_t element)> body;
};

struct Kernel {
  std::string name;
  std::function<Launch(void** arguments)> launch;
};

// Returns the kernel of this name, or null. Its address is its handle.
const Kernel* FindKernel(const std::string& name);
bool IsKernel(const void* handle);

// The rows of the table for the kernels of kernels/cuda.
std::vector<Kernel> AgmmKernels();

// Rows in device memory that a launch reads or writes.
inline Access Reads(CUdeviceptr address, int64_t rows, int64_t row_bytes, int64_t pitch_bytes) {
  return {{address, rows, row_bytes, pitch_bytes}, false};
}
inline Access Writes(CUdeviceptr address, int64_t rows, int64_t row_bytes, int64_t pitch_bytes) {
  return {{address, rows, row_bytes, pitch_bytes}, true};
}

// Returns the address at which a body finds a device address.
template <typename T>
T* At(CUdeviceptr address) {
  return reinterpret_cast<T*>(TheMachine().memory.Engine(address));
}

// A row of the table: the arguments of `launch` are those of the kernel, with CUdeviceptr for a
// pointer.
template <typename... Arguments>
Kernel Row(const char* name, Launch (*launch)(Arguments...)) {
  return {name, [launch](void** arguments) {
            std::tuple<Arguments...> values;
            [&]<size_t... i>(std::index_sequence<i...>) {
              (std::memcpy(&std::get<i>(values), arguments[i], sizeof(std::get<i>(values))), ...);
            }
            (std::index_sequence_for<Arguments...>());
            return std::apply(launch, values);
          }};
}

}  // namespace model
