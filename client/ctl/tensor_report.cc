#include "client/ctl/tensor_report.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/ctl/arguments.h"
#include "client/ctl/messages.h"
#include "client/ctl/table.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

std::string ShapeText(const v1::TensorSpec& spec) {
  return absl::StrCat(spec.rows(), "x", spec.cols());
}

// "[K, N_x] over mesh x=4 on ranks 0-3".
std::string Spread(const v1::TensorSpec& spec) {
  return absl::StrFormat("%s over mesh %s on ranks %s", spec.sharding(), AxesText(spec.mesh()),
                         FormatRanks(RanksOf(spec.mesh())));
}

// "FormatBytes (exact count)".
std::string Bytes(int64_t bytes) {
  return bytes < 1024 ? FormatBytes(bytes)
                      : absl::StrFormat("%s (%d bytes)", FormatBytes(bytes), bytes);
}

}  // namespace

std::string TensorTable(const v1::ListTensorsResponse& list) {
  if (list.tensors().empty()) return "no tensors\n";
  Table table({{"id"},
               {"name", "", Column::kLong},
               {"shape"},
               {"dtype", "", Column::kText},
               {"sharding", "", Column::kLong},
               {"mesh", "", Column::kLong},
               {"ranks", "", Column::kLong},
               {"state", "", Column::kText},
               {"version"},
               {"a rank", "MiB"}});
  for (const v1::Tensor& tensor : list.tensors()) {
    const v1::TensorSpec& spec = tensor.spec();
    table.AddRow({absl::StrCat(tensor.tensor_id()), tensor.name().empty() ? "-" : tensor.name(),
                  ShapeText(spec), DTypeName(spec.dtype()), spec.sharding(), AxesText(spec.mesh()),
                  FormatRanks(RanksOf(spec.mesh())), StateName(tensor.state()),
                  absl::StrCat(tensor.version()), Mebibytes(tensor.shard_bytes())});
  }
  return table.ToString();
}

std::string MemoryTable(const v1::GetStatusResponse& status) {
  const Memory memory = MemoryOf(status);
  Table table({{"memory", "", Column::kText},
               {"tensors", "MiB"},
               {"held", "MiB"},
               {"workspaces", "MiB"},
               {"packed", "MiB"},
               {"scratch", "MiB"},
               {"staging", "MiB"},
               {"heaps", "MiB"},
               {"free", "MiB"}});
  table.AddRow({"all ranks", Mebibytes(memory.tensor_bytes), Mebibytes(memory.held_bytes),
                Mebibytes(memory.workspace_bytes), Mebibytes(memory.packed_bytes),
                Mebibytes(memory.scratch_bytes), Mebibytes(memory.staging_bytes),
                Mebibytes(memory.heap_bytes), Mebibytes(memory.free_bytes)});
  return table.ToString();
}

std::string TensorLine(const v1::Tensor& tensor) {
  return absl::StrFormat("%s#%d: %s %s, %s, version %d",
                         tensor.name().empty() ? "" : tensor.name() + " ", tensor.tensor_id(),
                         ShapeText(tensor.spec()), DTypeName(tensor.spec().dtype()),
                         Spread(tensor.spec()), tensor.version());
}

std::string SavedLine(const v1::Tensor& tensor, const SavedFile& saved) {
  const v1::TensorSpec& spec = tensor.spec();
  return absl::StrFormat("%s: %s %s%s, %s", saved.path, ShapeText(spec), Name(saved.dtype),
                         saved.raw ? " without a header" : "",
                         FormatBytes(spec.rows() * spec.cols() * SizeOf(saved.dtype)));
}

std::string TensorText(const v1::Tensor& tensor) {
  const v1::TensorSpec& spec = tensor.spec();
  const std::vector<int> ranks = RanksOf(spec.mesh());
  Fields fields;
  fields.Add("name", tensor.name().empty() ? "-" : tensor.name());
  fields.Add("id", absl::StrCat("#", tensor.tensor_id()));
  fields.Add("shape", absl::StrCat(ShapeText(spec), " ", DTypeName(spec.dtype())));
  fields.Add("sharding", Spread(spec));
  fields.Add("state",
             absl::StrFormat("%s, version %d", StateName(tensor.state()), tensor.version()));
  fields.Add("a rank", Bytes(tensor.shard_bytes()));
  fields.Add("all ranks", Bytes(tensor.shard_bytes() * static_cast<int64_t>(ranks.size())));
  fields.Add("place",
             absl::StrFormat("%d bytes into the heap of each rank", tensor.offset_bytes()));
  fields.Add("owner", tensor.owner().empty() ? "-" : tensor.owner());
  fields.Add("lives", tensor.session_id().empty()
                          ? "until it is deleted"
                          : absl::StrCat("as long as session ", tensor.session_id()));
  if (tensor.has_create_time()) fields.Add("created", LocalTime(FromProto(tensor.create_time())));
  return fields.ToString();
}

}  // namespace agmm
