#include "tests/model/ptx/engine/test_kernel.h"

#include <cstring>

namespace ptx {

std::string TestModule(const std::string& body) {
  return R"(.version 9.0
.target sm_90a
.address_size 64
.visible .entry test(.param .u64 test_out, .param .u64 test_in)
{
.reg .pred %p<16>;
.reg .b16 %h<16>;
.reg .b32 %r<64>;
.reg .f32 %f<64>;
.reg .b64 %rd<64>;
.reg .f64 %d<16>;
.reg .b64 %out, %in;
.reg .b32 %tid, %cta;
ld.param.u64 %out, [test_out];
ld.param.u64 %in, [test_in];
mov.u32 %tid, %tid.x;
mov.u32 %cta, %ctaid.x;
)" + body +
         "\nret;\n}\n";
}

TestRun RunBody(const std::string& body, const TestLaunch& test) {
  TestRun run;
  // 128 bytes: tests put tensor maps and bulk copies there.
  const auto aligned = [](size_t bytes) {
    void* const at = std::aligned_alloc(128, (bytes + 255) / 128 * 128);
    return std::unique_ptr<std::byte, decltype(&std::free)>(static_cast<std::byte*>(at),
                                                            &std::free);
  };
  const auto in = aligned(test.in.size() * 4), out = aligned(test.out_words * 4);
  if (!test.in.empty()) std::memcpy(in.get(), test.in.data(), test.in.size() * 4);
  std::memset(out.get(), 0xdd, test.out_words * 4);
  HostMemory memory;
  memory.Add(in.get(), test.in.size() * 4, 0);
  memory.Add(out.get(), test.out_words * 4, 0);
  try {
    const auto module = ParseModule(TestModule(body));
    World world(memory, test.options);
    world.races.policy = test.policy;
    world.races.SetWritten(reinterpret_cast<uint64_t>(in.get()), test.in.size() * 4);
    world.races.SetWritten(reinterpret_cast<uint64_t>(out.get()), test.out_words * 4);
    Launch launch{.module = module.get(), .kernel = module->kernels.at("test").get()};
    launch.grid[0] = test.ctas;
    launch.block[0] = test.threads;
    launch.cluster[0] = test.cluster;
    launch.dynamic_shared_bytes = test.dynamic_shared_bytes;
    launch.parameters.resize(16);
    const uint64_t addresses[] = {reinterpret_cast<uint64_t>(out.get()),
                                  reinterpret_cast<uint64_t>(in.get())};
    std::memcpy(launch.parameters.data(), addresses, sizeof addresses);
    world.Start(std::move(launch));
    try {
      world.Run();
    } catch (const Stop& stop) {
      run.stop = stop.what();
    }
    run.findings = world.races.findings();
    run.counts = world.counts;
    run.opcodes = CountOpcodes(*module);
  } catch (const Stop& stop) {
    run.stop = stop.what();
  }
  run.out.resize(test.out_words);
  std::memcpy(run.out.data(), out.get(), test.out_words * 4);
  return run;
}

}  // namespace ptx
