// Kernels that run as PTX (tests/model/ptx), beside copies, products and kernels with a host twin.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/model/ptx/state/state.h"
#include "tests/model/races.h"

namespace model {

class Memory;
struct Operation;

// A kernel of a loaded image. Its address is its handle.
struct ComputeKernel {
  const ptx::Module* module = nullptr;
  ptx::Kernel* kernel = nullptr;
  uint32_t most_dynamic_shared_bytes = 48 << 10;
};

// The launch of a kernel, as an operation of a stream.
struct ComputeLaunch {
  ptx::Launch launch;
  ptx::Grid* grid = nullptr;  // once it has begun
};

// The knowledge at a point in a stream, or of the host. The race check of PTX follows accesses;
// that of operations (races.h) follows rectangles, and is done when an operation is submitted.
using Known = std::shared_ptr<const ptx::Knowledge>;

// True for one aligned word of 64 bits. A copy of it moves at once and raises a slot: kernels that
// acquire the word know what the copy's stream has done before. CUDA does not promise this; NCCL's
// copies rely on it.
inline bool IsWord(const Rectangle& bytes) {
  return bytes.rows == 1 && bytes.row_bytes == 8 && bytes.address % 8 == 0;
}

// Used under the model's lock. Until an image with PTX for sm_90a is loaded, it does nothing.
class Compute {
 public:
  explicit Compute(Memory& memory);
  ~Compute();

  // Reads the PTX in an image, if it holds any as text (nvcc --no-compress).
  void Load(uint64_t library, const void* image);
  void Unload(uint64_t library);
  // Returns the kernel of this name, or null.
  ComputeKernel* Find(uint64_t library, const std::string& name);
  ComputeKernel* FromHandle(const void* handle);

  bool active() const { return world_ != nullptr; }
  // True once a kernel has run. From then on copies may be ordered by the slots that kernels wait
  // for, which only the race check of PTX knows; it follows copies, too.
  bool has_run() const { return has_run_; }
  // The host's knowledge: every operation that is submitted from now on comes after it.
  Known host() const { return host_; }
  void HostSaw(const Known& known);
  // From now on, this number stands for a new stream.
  void BeginStream(int stream) { streams_.erase(stream); }
  // The stream's knowledge: all that its operations so far have done.
  Known OfStream(int stream);
  // Memory is unmapped or freed: a finding if a kernel may still use it.
  void Release(uint64_t address, int64_t bytes);

  // The operation begins: its stream knows `submitted` and `awaited` from now on. Its accesses
  // enter the race check.
  void Begin(int stream, const Operation& operation, int gpu);
  // The operation has ended.
  void End(int stream, const Operation& operation);

  // Runs a part of the launch. Returns true once it has ended.
  bool Step(ComputeLaunch& launch);
  // True if the launch has begun, has not ended, and no warp of any kernel can go on before
  // something else happens.
  bool IsStuck(const ComputeLaunch& launch) const;
  // True if a launch has begun and has not ended.
  bool has_kernels() const;
  // A call of the host: it may have written a word that kernels poll.
  void HostActed();
  // The GPU is lost: its kernels end at once, without an effect any more.
  void Lose(int gpu);
  // One line for each warp that waits.
  std::string Waiters() const;

 private:
  struct Stream {
    ptx::Agent agent = 0;
    ptx::Clock clock = 0;
    ptx::Knowledge known;
  };
  class DeviceMemory;
  Stream& StreamOf(int number);
  // Ends the test if the race check has found anything.
  void CheckFindings();

  Memory& memory_;
  std::unique_ptr<DeviceMemory> device_memory_;
  std::unique_ptr<ptx::World> world_;
  struct Image {
    std::shared_ptr<ptx::Module> module;
    std::map<std::string, std::unique_ptr<ComputeKernel>> kernels;
  };
  std::map<std::string, std::shared_ptr<ptx::Module>>
      modules_;  // by text; kept, because findings name their kernels
  std::map<uint64_t, Image> images_;
  std::map<uint64_t, std::string> texts_;  // PTX that has not been parsed
  std::map<int, Stream> streams_;
  Known host_ = std::make_shared<ptx::Knowledge>();
  uint64_t stuck_events_ = 0, host_calls_ = 0;
  bool has_run_ = false;
};

}  // namespace model
