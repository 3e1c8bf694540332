#include "client/trace/world_view.h"

#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"

namespace agmm {

NodeNameFn NamesOf(const v1::GetStatusResponse& status) {
  std::map<int, std::string> names;
  for (const v1::NodeStatus& node : status.nodes()) names[node.index()] = node.name();
  return [names = std::move(names)](int node) {
    const auto it = names.find(node);
    return it == names.end() ? absl::StrCat(node) : it->second;
  };
}

Topology TopologyOfWorld(const v1::GetStatusResponse& status) {
  Topology topology;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) {
      topology.node_of_rank.push_back(node.index());
      topology.island_of_rank.push_back(device.island());
    }
  }
  return topology;
}

}  // namespace agmm
