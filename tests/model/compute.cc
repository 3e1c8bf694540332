#include "tests/model/compute.h"

#include <algorithm>
#include <cstring>
#include <tuple>

#include "tests/model/memory.h"
#include "tests/model/options.h"
#include "tests/model/ptx/program/image.h"
#include "tests/model/stream.h"

namespace model {
namespace {

// A limit for all kernels of a process: more is an endless loop. 1,000 epochs of a ring of 3 take
// up to 2e9 on a busy machine, most of them polls.
constexpr int64_t kMostInstructions = 20'000'000'000;

ptx::RunOptions RunOptionsOf(const Options& options) {
  ptx::RunOptions run;
  run.seed = options.seed;
  run.instruction_limit = kMostInstructions;
  switch (options.order) {
    case Order::kEager: run.mode = ptx::Mode::kEager; break;
    case Order::kLazy: run.mode = ptx::Mode::kLate; break;
    default: run.mode = ptx::Mode::kRandom;
  }
  return run;
}

}  // namespace

// Device addresses with the rights of a GPU, and pinned memory.
class Compute::DeviceMemory : public ptx::GlobalMemory {
 public:
  explicit DeviceMemory(Memory& memory) : memory_(memory) {}
  std::byte* Find(uint64_t address, uint64_t bytes, int gpu) override {
    const auto count = static_cast<int64_t>(bytes);
    const bool there = memory_.IsDevice(address) ? memory_.IsMapped(address, count, gpu)
                                                 : memory_.IsPinned(address, count);
    return there ? reinterpret_cast<std::byte*>(memory_.Engine(address)) : nullptr;
  }

 private:
  Memory& memory_;
};

Compute::Compute(Memory& memory)
    : memory_(memory), device_memory_(std::make_unique<DeviceMemory>(memory)) {}
Compute::~Compute() = default;

void Compute::Load(uint64_t library, const void* image) {
  std::string text = ptx::PtxInImage(image);
  if (text.empty()) return;
  texts_[library] = std::move(text);
  if (world_ == nullptr) {
    world_ = std::make_unique<ptx::World>(*device_memory_, RunOptionsOf(TheOptions()));
    // The model does not follow which memory has been written.
    world_->races.SetWritten(0, ~uint64_t{0});
  }
}

void Compute::Unload(uint64_t library) {
  texts_.erase(library);
  const auto image = images_.find(library);
  if (image == images_.end()) return;
  // The cache of modules has one, too. Another library of the same text goes on.
  if (active() && image->second.module.use_count() <= 2) {
    for (const auto& grid : world_->grids()) {
      if (grid->done || grid->launch.module != image->second.module.get()) continue;
      Fail(grid->launch.kernel->name + " runs while its library is unloaded; wait for it first");
    }
  }
  images_.erase(image);
}

ComputeKernel* Compute::Find(uint64_t library, const std::string& name) {
  Image& image = images_[library];
  if (image.module == nullptr) {
    if (texts_[library].empty()) return nullptr;
    try {
      std::shared_ptr<ptx::Module>& parsed = modules_[texts_[library]];
      if (parsed == nullptr) parsed = ptx::ParseModule(texts_[library]);
      image.module = parsed;
    } catch (const ptx::Stop& stop) {
      Fail(Format("the PTX of a library: %s", stop.what()));
    }
  }
  const auto found = image.module->kernels.find(name);
  if (found == image.module->kernels.end()) return nullptr;
  auto& kernel = image.kernels[name];
  if (kernel == nullptr) {
    kernel = std::make_unique<ComputeKernel>();
    kernel->module = image.module.get();
    kernel->kernel = found->second.get();
  }
  return kernel.get();
}

ComputeKernel* Compute::FromHandle(const void* handle) {
  for (auto& [library, image] : images_) {
    for (auto& [name, kernel] : image.kernels) {
      if (kernel.get() == handle) return kernel.get();
    }
  }
  return nullptr;
}

void Compute::HostSaw(const Known& known) {
  if (known == nullptr) return;
  auto joined = std::make_shared<ptx::Knowledge>(*host_);
  joined->Join(*known);
  host_ = std::move(joined);
}

Known Compute::OfStream(int stream) {
  return active() ? std::make_shared<ptx::Knowledge>(StreamOf(stream).known) : nullptr;
}

Compute::Stream& Compute::StreamOf(int number) {
  Stream& stream = streams_[number];
  if (stream.agent == 0) std::tie(stream.agent, stream.clock) = world_->races.TakeAgent({}, -1);
  return stream;
}

void Compute::Begin(int number, const Operation& operation, int gpu) {
  if (!active()) return;
  Stream& stream = StreamOf(number);
  if (operation.host_knew) stream.known.Join(*operation.host_knew);
  if (operation.awaits && operation.awaits->known) stream.known.Join(*operation.awaits->known);
  ++stream.clock;
  // The end of an operation orders everything before all proxies of a later one.
  stream.known.async_global.Join(stream.known.order);
  for (const auto& [bytes, writes] : operation.accesses) {
    ptx::Access access;
    access.agent = stream.agent;
    access.clock = stream.clock;
    access.write = writes;
    access.gpu = gpu;
    if (operation.copies && IsWord(bytes)) access.scope = ptx::Scope::kSystem;
    for (int64_t row = 0; row < bytes.rows; ++row) {
      const char* const at = memory_.Engine(bytes.address + row * bytes.pitch_bytes);
      world_->races.TouchGlobal(reinterpret_cast<uint64_t>(at), bytes.row_bytes, access,
                                stream.known);
    }
  }
  CheckFindings();
}

void Compute::End(int number, const Operation& operation) {
  if (!active()) return;
  Stream& stream = StreamOf(number);
  if (operation.compute != nullptr && operation.compute->grid != nullptr) {
    stream.known.Join(operation.compute->grid->at_end);
    world_->RemoveEnded(operation.compute->grid);
    operation.compute->grid = nullptr;
  }
  stream.known.order.Learn(stream.agent, stream.clock);
  for (const auto& [bytes, writes] : operation.accesses) {
    if (!operation.copies || !writes || !IsWord(bytes)) continue;
    // A kernel that acquires the word still needs a proxy fence for what the stream has done.
    ptx::Knowledge published;
    published.order = stream.known.order;
    const auto key = reinterpret_cast<uint64_t>(memory_.Engine(bytes.address));
    ++world_->releases;
    world_->released[key] = {{ptx::Scope::kSystem, -1, 0, 0, stream.agent, published}};
  }
  ++world_->events;
}

void Compute::Release(uint64_t address, int64_t bytes) {
  if (!active()) return;
  world_->races.Release(reinterpret_cast<uint64_t>(memory_.Engine(address)), bytes, *host_);
  CheckFindings();
}

bool Compute::Step(ComputeLaunch& launch) {
  // Steps of a turn: to find the next operation takes longer than one of them.
  constexpr uint32_t kMostSteps = 64;
  try {
    if (launch.grid == nullptr) launch.grid = &world_->Start(launch.launch);
    has_run_ = true;
    // The steps are those of all kernels, and another launch's step may have ended this one.
    for (uint32_t left = 1 + world_->Random(kMostSteps); left > 0 && !launch.grid->done; --left) {
      if (world_->Step() || launch.grid->done) continue;
      stuck_events_ = world_->events;
      break;
    }
  } catch (const ptx::Stop& stop) {
    Fail(stop.what());
  }
  CheckFindings();
  return launch.grid->done;
}

bool Compute::IsStuck(const ComputeLaunch& launch) const {
  return launch.grid != nullptr && !launch.grid->done && stuck_events_ == world_->events;
}

bool Compute::has_kernels() const { return active() && !world_->done(); }

void Compute::HostActed() {
  // Most calls of the host write no word that a kernel polls, and each event makes all kernels
  // poll.
  constexpr uint64_t kCallsToAnEvent = 256;
  if (active() && ++host_calls_ % kCallsToAnEvent == 0) ++world_->events;
}

void Compute::Lose(int gpu) {
  if (active()) world_->Lose(gpu);
}

std::string Compute::Waiters() const { return active() ? world_->Waiters() : ""; }

void Compute::CheckFindings() {
  if (world_->races.findings().empty()) return;
  const auto& [text, count] = *world_->races.findings().begin();
  Fail(Format("race: %s (%lld times)", text.c_str(), (long long)count));
}

}  // namespace model
