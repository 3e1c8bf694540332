#include "daemon/config/own_node.h"

#include <unistd.h>

#include <algorithm>
#include <climits>
#include <cstdlib>

#include "absl/strings/match.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

// The index of `name` in `nodes`, or -1. As for host names, case does not matter.
int IndexOf(const std::vector<std::string>& nodes, const std::string& name) {
  const auto at = std::find_if(nodes.begin(), nodes.end(), [&](const std::string& node) {
    return absl::EqualsIgnoreCase(node, name);
  });
  return at == nodes.end() ? -1 : static_cast<int>(at - nodes.begin());
}

}  // namespace

NodeNames NodeNamesHere(const std::string& option) {
  const char* const variable = std::getenv("AGMM_NODE");
  char host[HOST_NAME_MAX + 1] = {};
  if (gethostname(host, sizeof(host) - 1) != 0) host[0] = '\0';
  return {option, variable == nullptr ? "" : variable, host};
}

absl::StatusOr<OwnNode> FindOwnNode(const std::vector<std::string>& nodes,
                                    const std::string& configured, const NodeNames& names) {
  const std::string list = absl::StrJoin(nodes, ", ");
  const struct {
    const std::string &name, source;
  } given[] = {{names.option, "--node"}, {names.variable, "AGMM_NODE"}, {configured, "local.node"}};
  for (const auto& [name, source] : given) {
    if (name.empty()) continue;
    if (const int index = IndexOf(nodes, name); index >= 0) return OwnNode{index, source};
    return absl::InvalidArgumentError(
        absl::StrFormat("\"%s\", from %s, does not name a node of the world; set %s to one of %s",
                        name, source, source, list));
  }
  const std::string brief = names.host.substr(0, names.host.find('.'));
  for (const std::string& name : {names.host, brief}) {
    if (const int index = IndexOf(nodes, name); index >= 0)
      return OwnNode{index, "the host's name"};
  }
  const std::string tried =
      brief == names.host ? brief : absl::StrFormat("%s\" or \"%s", names.host, brief);
  return absl::InvalidArgumentError(absl::StrFormat(
      "the host's name, \"%s\", does not name a node of the world; set --node, AGMM_NODE or "
      "local.node to one of %s",
      tried, list));
}

}  // namespace agmm
