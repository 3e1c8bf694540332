#include "client/ctl/status_report.h"

#include "absl/strings/str_cat.h"
#include "client/ctl/messages.h"
#include "client/ctl/table.h"

namespace agmm {
namespace {

std::string Ranks(const v1::NodeStatus& node) {
  if (node.devices().empty()) return "-";
  const int first = node.devices(0).rank(), last = node.devices(node.devices_size() - 1).rank();
  return first == last ? absl::StrCat(first) : absl::StrCat(first, "-", last);
}

}  // namespace

std::string StatusText(const v1::GetStatusResponse& status) {
  std::string text =
      absl::StrCat("world ", status.cluster(), "  generation ", status.generation(), "  ",
                   status.ready() ? "ready" : "not ready: " + status.reason(), "\n");
  if (status.insecure()) {
    text +=
        "insecure: the daemons listen on TCP without protection; whoever reaches their ports can\n"
        "use them\n";
  }
  Table nodes({{"node"},
               {"name", "", Column::kLong},
               {"address", "", Column::kLong},
               {"state", "", Column::kText},
               {"incarnation", "", Column::kText},
               {"ranks", "", Column::kText},
               {"staging", "MiB"}});
  Table devices({{"rank"},
                 {"node", "", Column::kLong},
                 {"kind", "", Column::kText},
                 {"description", "", Column::kLong}});
  Table memory({{"rank"},
                {"heap", "MiB"},
                {"free", "MiB"},
                {"largest free", "MiB"},
                {"tensors", "MiB"},
                {"held", "MiB"},
                {"workspaces", "MiB"},
                {"packed", "MiB"},
                {"scratch", "MiB"}});
  bool any_device = false;
  for (const v1::NodeStatus& node : status.nodes()) {
    nodes.AddRow({absl::StrCat(node.index()), node.name(), node.address(), StateName(node.state()),
                  node.incarnation().empty() ? "-" : node.incarnation().substr(0, 8), Ranks(node),
                  Mebibytes(node.staging_bytes())});
    for (const v1::DeviceStatus& device : node.devices()) {
      any_device = true;
      const std::string rank = absl::StrCat(device.rank());
      devices.AddRow({rank, node.name(), device.kind(), device.description()});
      memory.AddRow({rank, Mebibytes(device.heap_bytes()), Mebibytes(device.heap_free_bytes()),
                     Mebibytes(device.heap_largest_free_bytes()), Mebibytes(device.tensor_bytes()),
                     Mebibytes(device.held_bytes()), Mebibytes(device.workspace_bytes()),
                     Mebibytes(device.packed_bytes()), Mebibytes(device.scratch_bytes())});
    }
  }
  absl::StrAppend(&text, "\n", nodes.ToString());
  if (any_device) absl::StrAppend(&text, "\n", devices.ToString(), "\n", memory.ToString());
  return text;
}

}  // namespace agmm
