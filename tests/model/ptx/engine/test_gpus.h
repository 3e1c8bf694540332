// Kernels that tests write as text, one on each of several GPUs.
#pragma once

#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {

struct GpusRun {
  std::vector<std::vector<uint32_t>> words;  // of each GPU
  std::map<std::string, int64_t> findings;
  std::string stop;

  bool Contains(const std::string& text) const { return Report().find(text) != std::string::npos; }
  // All findings and the stop.
  std::string Report() const {
    std::string report = stop;
    for (const auto& [finding, count] : findings) report += "\n" + finding;
    return report;
  }
};

constexpr size_t kGpuWords = 64;
constexpr uint64_t kMulticastAddress = uint64_t{0x7777} << 32;

// Runs a kernel of one warp with each body (as TestModule has it) on a GPU of its own. GPU k has 64
// words, 0 before the run, at %out + 256 * k, and %in is the multicast address of all of them.
inline GpusRun RunOnGpus(const std::vector<std::string>& bodies, const RunOptions& options = {}) {
  GpusRun run;
  const size_t bytes = kGpuWords * 4;
  const std::unique_ptr<std::byte, decltype(&std::free)> words(
      static_cast<std::byte*>(std::aligned_alloc(128, bodies.size() * bytes)), &std::free);
  std::memset(words.get(), 0, bodies.size() * bytes);
  HostMemory memory;
  std::vector<uint64_t> places;
  for (size_t gpu = 0; gpu < bodies.size(); ++gpu) {
    memory.Add(words.get() + gpu * bytes, bytes, static_cast<int>(gpu));
    places.push_back(reinterpret_cast<uint64_t>(words.get() + gpu * bytes));
  }
  memory.AddMulticast(kMulticastAddress, bytes, places);
  std::vector<std::unique_ptr<Module>> modules;  // outlives the world
  try {
    World world(memory, options);
    world.races.SetWritten(places[0], bodies.size() * bytes);
    for (size_t gpu = 0; gpu < bodies.size(); ++gpu) {
      modules.push_back(ParseModule(TestModule(bodies[gpu])));
      Launch launch{.module = modules.back().get(),
                    .kernel = modules.back()->kernels.at("test").get()};
      launch.gpu = static_cast<int>(gpu);
      const uint64_t parameters[] = {places[0], kMulticastAddress};
      launch.parameters.resize(sizeof parameters);
      std::memcpy(launch.parameters.data(), parameters, sizeof parameters);
      world.Start(std::move(launch));
    }
    try {
      world.Run();
    } catch (const Stop& stop) {
      run.stop = stop.what();
    }
    run.findings = world.races.findings();
  } catch (const Stop& stop) {
    run.stop = stop.what();
  }
  for (size_t gpu = 0; gpu < bodies.size(); ++gpu) {
    run.words.emplace_back(kGpuWords);
    std::memcpy(run.words.back().data(), words.get() + gpu * bytes, bytes);
  }
  return run;
}

}  // namespace ptx
