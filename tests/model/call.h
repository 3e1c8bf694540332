// The beginning of every function of the driver.
#pragma once

#include <cuda.h>

#include <mutex>
#include <string>
#include <vector>

#include "tests/model/stream.h"

namespace model {

// Holds the model's lock, counts the call, and knows the result that AGMM_MODEL wants for it.
class Call {
 public:
  explicit Call(const char* name);

  const std::string name;
  CUresult result = CUDA_SUCCESS;

  // The current context's GPU; none is a finding.
  Gpu& Context() const;
  // The stream or event behind a handle, or null for one that does not exist. The null stream is a
  // finding.
  Stream* Find(CUstream handle) const;
  Event* Find(CUevent handle) const;
  // With calls=block: until all that was submitted is done.
  void Block() const;
  // Ends the test because of an argument that the model does not know.
  [[noreturn]] void Refuse(const std::string& what) const;
  void RefuseUnless(bool known, const std::string& what) const;

 private:
  std::unique_lock<std::mutex> lock_;
};

// The contexts that this host thread has pushed.
std::vector<Gpu*>& CurrentContexts();

bool IsGpu(CUdevice device);
// Whether GPU `gpu` may reach the memory of the other.
bool MayReach(int gpu, int memory_of);

}  // namespace model

// MODEL_CALL(cuMemCreate): `call` for a function that needs no context.
#define MODEL_CALL(function)           \
  const ::model::Call call(#function); \
  if (call.result != CUDA_SUCCESS) return call.result

// MODEL_CONTEXT_CALL(cuMemAlloc): `call`, and `gpu`, the current context. One with an error returns
// it.
#define MODEL_CONTEXT_CALL(function)                   \
  const ::model::Call call(#function);                 \
  if (call.result != CUDA_SUCCESS) return call.result; \
  [[maybe_unused]] ::model::Gpu& gpu = call.Context(); \
  if (gpu.error != CUDA_SUCCESS) return gpu.error

// MODEL_RELEASE_CALL(cuMemFree): the same for a function that gives something back, and does so in
// any case.
#define MODEL_RELEASE_CALL(function)                   \
  const ::model::Call call(#function);                 \
  if (call.result != CUDA_SUCCESS) return call.result; \
  ::model::Gpu& gpu = call.Context()
