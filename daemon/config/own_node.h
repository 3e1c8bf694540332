// Finds which node of the world a daemon is, so that one configuration can serve all hosts.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace agmm {

// Names of a daemon's node from outside its configuration; empty if not given.
struct NodeNames {
  std::string option;    // of --node
  std::string variable;  // of AGMM_NODE
  std::string host;      // the host's, as gethostname gives it
};

// Returns the names on this host.
NodeNames NodeNamesHere(const std::string& option);

struct OwnNode {
  int index = 0;         // in the list
  std::string named_by;  // "--node", "AGMM_NODE", "local.node" or "the host's name"
};

// Finds a daemon's node in `nodes`, the names of the world's. The first name that is given decides:
// --node, AGMM_NODE, `configured`, then the host's full name, then its part before the first dot.
// Case does not matter. Errors: INVALID_ARGUMENT, with the names that were tried, the nodes, and
// the next action.
absl::StatusOr<OwnNode> FindOwnNode(const std::vector<std::string>& nodes,
                                    const std::string& configured, const NodeNames& names);

}  // namespace agmm
