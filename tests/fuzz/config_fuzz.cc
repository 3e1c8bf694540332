// A configuration is refused with the place of the mistake, or all its indices are in range.
#include "absl/strings/match.h"
#include "daemon/config/config.h"
#include "tests/fuzz/fuzz.h"

namespace agmm::fuzz {
namespace {

void Check(absl::string_view text) {
  const absl::StatusOr<Config> config = ParseConfig(text, "f.txtpb");
  if (!config.ok()) {
    FUZZ_CHECK(absl::IsInvalidArgument(config.status()), config.status().ToString());
    FUZZ_CHECK(absl::StartsWith(config.status().message(), "f.txtpb:"), config.status().ToString());
    return;
  }
  const int nodes = static_cast<int>(config->nodes.size());
  FUZZ_CHECK(config->self >= 0 && config->self < nodes, "self");
  FUZZ_CHECK(static_cast<int>(config->devices.size()) == config->node().devices, "devices");
  FUZZ_CHECK(config->hash.size() == 16, config->hash);
  FUZZ_CHECK(!config->socket.empty() || !config->listen.empty(), "nowhere to listen");
  const std::vector<int> node_of_rank = config->node_of_rank();
  for (int node = 0; node < nodes; ++node) {
    const int first = config->first_rank(node);
    FUZZ_CHECK(node_of_rank.at(first) == node, "first_rank");
    FUZZ_CHECK(config->nodes[node].devices >= 1, "devices");
  }
  for (const DeviceConfig& device : config->devices)
    FUZZ_CHECK(device.heap_bytes >= 4096 && device.threads >= 1, "device");
  FUZZ_CHECK(!Summary(*config).empty(), "summary");
}

[[maybe_unused]] const bool kAdded = AddTarget("config", Check);

}  // namespace
}  // namespace agmm::fuzz
