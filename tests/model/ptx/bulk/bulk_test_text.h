// Text that the tests of bulk copies share, for kernels of one warp in each CTA.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "tests/model/ptx/bulk/tensor_map.h"
#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {

// %data (.b32) is the address of 16 KB of shared memory, a multiple of 1024, and %bar that of an
// mbarrier for one arrival. %first holds in lane 0 of each CTA.
inline std::string SharedText() {
  return R"(
.shared .align 1024 .b8 data_bytes[16384];
.shared .align 8 .b8 bar_bytes[64];
.reg .b32 %data, %bar;
.reg .pred %first;
mov.u32 %data, data_bytes;
mov.u32 %bar, bar_bytes;
setp.eq.u32 %first, %tid, 0;
@%first mbarrier.init.shared.b64 [%bar], 1;
fence.mbarrier_init.release.cluster;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
)";
}

// Lane 0 of each CTA arrives at its mbarrier, which then expects these bytes.
inline std::string ExpectText(uint32_t bytes) {
  return "@%first mbarrier.arrive.expect_tx.shared.b64 _, [%bar], " + std::to_string(bytes) + ";\n";
}

// All wait for the mbarrier's phase of this parity.
inline std::string WaitText(int parity = 0) {
  const std::string loop = "WAIT" + std::to_string(parity);
  return loop + ":\nmbarrier.try_wait.parity.shared.b64 %p15, [%bar], " + std::to_string(parity) +
         ";\n@!%p15 bra " + loop + ";\n";
}

// The words of shared memory from %data on go to %out, those of CTA k to word k * words and the
// following.
inline std::string CopyOutText(uint32_t words) {
  const std::string count = std::to_string(words);
  return R"(
mov.u32 %r63, %tid;
COPY:
setp.ge.u32 %p14, %r63, )" +
         count + R"(;
@%p14 bra COPIED;
shl.b32 %r62, %r63, 2;
add.u32 %r62, %r62, %data;
ld.shared.u32 %r61, [%r62];
mad.lo.u32 %r62, %cta, )" +
         count + R"(, %r63;
mul.wide.u32 %rd63, %r62, 4;
add.u64 %rd63, %rd63, %out;
st.global.u32 [%rd63], %r61;
add.u32 %r63, %r63, 32;
bra COPY;
COPIED:
)";
}

// The words of shared memory from %data on become the words at this address plus `offset`, in CTA 0
// or in all.
inline std::string FillText(uint32_t words, const std::string& address = "%in",
                            uint32_t offset = 0) {
  return R"(
mov.u32 %r63, %tid;
FILL:
setp.ge.u32 %p14, %r63, )" +
         std::to_string(words) + R"(;
@%p14 bra FILLED;
mul.wide.u32 %rd63, %r63, 4;
add.u64 %rd63, %rd63, )" +
         address + R"(;
ld.global.u32 %r61, [%rd63+)" +
         std::to_string(offset) + R"(];
shl.b32 %r62, %r63, 2;
add.u32 %r62, %r62, %data;
st.shared.u32 [%r62], %r61;
add.u32 %r63, %r63, 32;
bra FILL;
FILLED:
)";
}

// %map (.b64) is the address of the tensor map at the begin of %in. Lane 0 of CTA 0 has given it
// the global address %in + 128 or %out, and all of the first cluster may use it.
inline std::string MapText(const std::string& base) {
  return R"(
.reg .b64 %map, %base;
mov.b64 %map, %in;
mov.b64 %base, )" +
         base + R"(;
setp.eq.u32 %p13, %cta, 0;
and.pred %p13, %p13, %first;
@%p13 tensormap.replace.tile.global_address.global.b1024.b64 [%map], %base;
@%p13 fence.proxy.tensormap::generic.acquire.gpu [%map], 128;
barrier.cluster.arrive.aligned;
barrier.cluster.wait.aligned;
)";
}
inline std::string LoadMapText() { return "add.u64 %rd62, %in, 128;\n" + MapText("%rd62"); }

// The words of a map, then the data.
inline std::vector<uint32_t> WithMap(const TensorMap& map, const std::vector<uint32_t>& data) {
  std::vector<uint32_t> words(32 + data.size());
  std::memcpy(words.data(), &map, sizeof map);
  std::copy(data.begin(), data.end(), words.begin() + 32);
  return words;
}

// The runs of a kernel that must not depend on the order, which the seed and the mode draw.
inline std::vector<RunOptions> Orders() {
  std::vector<RunOptions> orders;
  for (uint64_t seed = 1; seed <= 8; ++seed) orders.push_back({.seed = seed});
  orders.push_back({.mode = Mode::kLate});
  orders.push_back({.mode = Mode::kEager});
  return orders;
}

inline bool Contains(const TestRun& run, const std::string& text) {
  for (const auto& [finding, count] : run.findings) {
    if (finding.find(text) != std::string::npos) return true;
  }
  return run.stop.find(text) != std::string::npos;
}

// All findings and the stop, for messages.
inline std::string Report(const TestRun& run) {
  std::string report = run.stop;
  for (const auto& [finding, count] : run.findings) report += "\n" + finding;
  return report;
}

}  // namespace ptx
