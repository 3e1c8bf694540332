// Bytes from another node: addresses, and headers with a valid check and arbitrary other fields.
// The places that they name must be in this node's heap. The first byte selects the kind of the
// rest.
#include <memory>

#include "daemon/node/store.h"
#include "daemon/transport/address.h"
#include "daemon/transport/generation.h"
#include "daemon/transport/wire.h"
#include "kernels/device/message_slot.h"
#include "kernels/schedule/plan.h"
#include "kernels/schedule/spec.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/hidden_heap.h"

namespace agmm::fuzz {
namespace {

using transport::Admit;
using transport::CurrentGeneration;

constexpr int64_t kHeapBytes = 1 << 16;
constexpr uint64_t kTensor = 7;

// Node 1 of two, with rank 1 of two.
struct Node {
  Node() {
    store = std::make_unique<TensorStore>(1, std::vector<Heap*>{&heap});
    v1::Tensor tensor;
    tensor.set_tensor_id(kTensor);
    tensor.mutable_spec()->set_rows(11);
    tensor.mutable_spec()->set_cols(37);
    tensor.mutable_spec()->set_dtype(v1::DTYPE_BF16);
    tensor.mutable_spec()->set_sharding("[M_x, K]");
    tensor.mutable_spec()->mutable_mesh()->add_axes()->set_name("x");
    tensor.mutable_spec()->mutable_mesh()->mutable_axes(0)->set_size(2);
    tensor.set_shard_bytes(4096);
    tensor.set_offset_bytes(kHeapBytes - 4096);
    FUZZ_CHECK(store->Place(tensor).ok(), "the tensor does not fit");
    auto made = std::make_shared<transport::Generation>();
    made->number = 3;
    made->self_node = 1;
    made->key = wire::HeaderKey::Make({1, 2, 3}).value();
    generation = made;
    current.Set(generation);
    mesh = ParseMesh("x=2").value();
    problem = ParseProblem(kDefaultSpec, mesh, {6, 4, 5}, DType::kF32).value();
    schedule = Plan(problem, Topology{{0, 1}}, {"ring", 2}).value();
  }
  bool Inside(const Rows& rows) {
    if (rows.rows == 0 || rows.row_bytes == 0) return true;
    return rows.heap == &heap && rows.offset_bytes >= 0 && rows.rows > 0 && rows.row_bytes > 0 &&
           rows.pitch_bytes >= rows.row_bytes && rows.row_bytes <= kHeapBytes &&
           rows.rows <= kHeapBytes &&
           rows.offset_bytes + (rows.rows - 1) * rows.pitch_bytes + rows.row_bytes <= kHeapBytes;
  }

  std::vector<std::byte> bytes = std::vector<std::byte>(kHeapBytes);
  test::HiddenHeap heap{absl::MakeSpan(bytes)};
  std::unique_ptr<TensorStore> store;
  std::shared_ptr<const transport::Generation> generation;
  CurrentGeneration current;
  Mesh mesh;
  Problem problem;
  Schedule schedule;
  TransportCounters counters;
};

template <typename Header>
bool AdmitSealed(Node& node, wire::Kind kind, absl::string_view bytes, Header* header) {
  Header sealed;
  std::memcpy(&sealed, bytes.data(), std::min(bytes.size(), sizeof(Header)));
  sealed.envelope = {wire::kVersion, kind, sealed.envelope.source_node, node.generation->number};
  FUZZ_CHECK(node.generation->key->Seal(&sealed), "no seal");
  const bool admitted = Admit(node.current, kind, &sealed, sizeof(sealed), header, &node.counters);
  FUZZ_CHECK(!admitted || header->bytes >= 0, "bytes");
  FUZZ_CHECK(!admitted || header->envelope.source_node >= 0, "source");
  return admitted;
}

template <typename Header>
void CheckRaw(Node& node, wire::Kind kind, absl::string_view bytes) {
  Header header;
  // The key is private to this process: an input is valid with a probability of 2^-64.
  FUZZ_CHECK(!Admit(node.current, kind, bytes.data(), bytes.size(), &header, &node.counters),
             "admitted");
}

void CheckBulk(Node& node, absl::string_view bytes) {
  wire::BulkHeader header;
  if (!AdmitSealed(node, wire::kWrite, bytes, &header) || header.rank < 0) return;
  const BulkBlock block{header.tensor % 8, header.rank % 3,  header.row_begin,
                        header.row_end,    header.col_begin, header.col_end};
  const absl::StatusOr<Rows> rows = node.store->Resolve(0, block, /*write=*/true);
  if (rows.ok()) FUZZ_CHECK(node.Inside(*rows), "a block outside the heap");
}

void CheckPlan(Node& node, absl::string_view bytes) {
  wire::PlanHeader header;
  if (!AdmitSealed(node, wire::kPlan, bytes, &header)) return;
  const std::vector<int> nodes{0, 1};
  const std::vector<Heap*> heaps{nullptr, &node.heap};
  // The operands of the launch are fuzzed, too, because a sequencer may have bugs.
  Operands operands;
  operands.offsets.assign(3, static_cast<int64_t>(header.check));
  operands.workspace_offset = header.reserved == 0 ? 4096 : static_cast<int64_t>(header.plan);
  const ArrivalContext context{node.problem, node.schedule, nodes, 1, heaps, &operands};
  const Message message{header.plan, header.epoch, header.source_rank % 3, header.step % 64,
                        header.part % 4};
  const absl::StatusOr<Arrival> arrival =
      ResolveArrival(context, header.envelope.source_node % 3, message, header.bytes % 1024);
  if (arrival.ok()) FUZZ_CHECK(node.Inside(arrival->to), "an arrival outside the heap");
}

void CheckAddress(absl::string_view bytes) {
  const absl::StatusOr<transport::TransportAddress> address = transport::Unframe(bytes);
  if (address.ok()) FUZZ_CHECK(transport::Frame(*address) == bytes, "frames differ");
  if (bytes.empty()) return;
  const absl::StatusOr<transport::TransportAddress> back =
      transport::Unframe(transport::Frame({{{}, "salt"}, std::string(bytes)}));
  FUZZ_CHECK(back.ok() && back->worker == bytes, "an address does not come back");
}

void Check(absl::string_view input) {
  if (input.empty()) return;
  static Node& node = *new Node;
  const absl::string_view bytes = input.substr(1);
  switch (static_cast<uint8_t>(input[0]) % 5) {
    case 0: CheckAddress(bytes); break;
    case 1: CheckRaw<wire::PlanHeader>(node, wire::kPlan, bytes); break;
    case 2: CheckRaw<wire::BulkHeader>(node, wire::kRead, bytes); break;
    case 3: CheckBulk(node, bytes); break;
    case 4: CheckPlan(node, bytes); break;
  }
}

[[maybe_unused]] const bool kAdded = AddTarget("wire", Check);

}  // namespace
}  // namespace agmm::fuzz
