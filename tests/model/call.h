// The beginning of every function of the driver.
#pragma once

#include <cuda.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/model/stream.h"

namespace model {

// Holds the model's lock, counts the call, and has the result that AGMM_MODEL sets for it.
class Call {
 public:
  explicit Call(const char* name);

  const std::string name;
  CUresult result = CUDA_SUCCESS;

  // Returns the current context's GPU; without a context, this is a finding.
  Gpu& Context() const;
  // Returns the stream or event of a handle, or null if it does not exist. The null stream is a
  // finding.
  Stream* Find(CUstream handle) const;
  Event* Find(CUevent handle) const;
  // With calls=block and calls=lock: waits until all submitted work is done.
  void Block() const;
  // Ends the test because of an argument that the model does not support.
  [[noreturn]] void Refuse(const std::string& what) const;
  void RefuseUnless(bool known, const std::string& what) const;

 private:
  std::unique_lock<std::mutex> lock_;
};

// The contexts that this host thread has pushed.
std::vector<Gpu*>& CurrentContexts();

bool IsGpu(CUdevice device);
// Returns true if GPU `gpu` may reach the memory of the other.
bool MayReach(int gpu, int memory_of);

}  // namespace model

// MODEL_CALL(cuMemCreate): `call` for a function that needs no context.
#define MODEL_CALL(function)           \
  const ::model::Call call(#function); \
  if (call.result != CUDA_SUCCESS) return call.result

// MODEL_CONTEXT_CALL(cuMemAlloc): `call`, and `gpu`, the current context. If the context has an
// error, the function returns it.
#define MODEL_CONTEXT_CALL(function)                   \
  const ::model::Call call(#function);                 \
  if (call.result != CUDA_SUCCESS) return call.result; \
  [[maybe_unused]] ::model::Gpu& gpu = call.Context(); \
  if (gpu.error != CUDA_SUCCESS) return gpu.error

// MODEL_RELEASE_CALL(cuMemFree): the same for a function that releases something, which it does
// even after an error.
#define MODEL_RELEASE_CALL(function)                   \
  const ::model::Call call(#function);                 \
  if (call.result != CUDA_SUCCESS) return call.result; \
  ::model::Gpu& gpu = call.Context()
