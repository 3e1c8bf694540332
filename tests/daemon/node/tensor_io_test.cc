#include "daemon/node/tensor_io.h"

#include <cstring>
#include <set>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/reason.h"
#include "kernels/cpu/cpu_device.h"
#include "tests/daemon/fake_members.h"
#include "tests/daemon/transport/transport_harness.h"
#include "tests/support/hidden_heap.h"
#include "tests/support/notification.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr int kRanksPerNode = 2;

// A daemon's memory and its transport to the others.
struct MemoryNode {
  static constexpr int64_t kHeap = 1 << 20;

  // If `hides`, the host cannot address the heaps of the store.
  MemoryNode(int index, int nodes, bool hides) : device(*CreateCpuDevice(1)) {
    std::vector<Heap*> raw;
    for (int i = 0; i < kRanksPerNode; ++i) {
      heaps.push_back(*device->CreateHeap(kHeap));
      hidden.push_back(std::make_unique<test::HiddenHeap>(heaps.back()->host()));
      raw.push_back(hides ? hidden.back().get() : heaps.back().get());
      std::memset(heaps.back()->host().data(), 0xa5, kHeap);
    }
    store = std::make_unique<TensorStore>(index * kRanksPerNode, raw);
    if (nodes > 1) transport = *UcxTransport::Create({}, &receiver, store.get());
    std::vector<int> node_of_rank;
    for (int rank = 0; rank < nodes * kRanksPerNode; ++rank)
      node_of_rank.push_back(rank / kRanksPerNode);
    io = std::make_unique<TensorIo>(&loop, store.get(), transport.get(), index, node_of_rank);
  }
  std::unique_ptr<Device> device;
  std::vector<std::unique_ptr<Heap>> heaps, hidden;
  MapReceiver receiver;
  std::unique_ptr<TensorStore> store;
  std::unique_ptr<TensorIo> io;
  Loop loop{"test"};                        // its tasks use io
  std::unique_ptr<UcxTransport> transport;  // last, because transfers in flight end with it
};

// Nodes with two ranks each, connected.
struct MemoryWorld {
  explicit MemoryWorld(int count, bool hides = false) {
    for (int i = 0; i < count; ++i) nodes.push_back(std::make_unique<MemoryNode>(i, count, hides));
    std::vector<TransportPort> ports;
    for (int i = 0; count > 1 && i < count; ++i) {
      ports.push_back(Renewed(*nodes[i]->transport));
      nodes[i]->transport->SetWorld(1, i, kKey);
    }
    for (int i = 0; count > 1 && i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        EXPECT_TRUE(nodes[i]->transport->Connect(j, ports[j].address).ok());
      }
    }
  }
  absl::Status Place(const v1::Tensor& tensor) {
    for (auto& node : nodes)
      if (const absl::Status status = node->store->Place(tensor); !status.ok()) return status;
    return absl::OkStatus();
  }
  absl::Status Write(int node, const v1::Tensor& tensor, int64_t offset, const std::string& data) {
    Outcomes done;
    nodes[node]->io->Write(tensor, offset, data, nodes[node]->io->local_generation(), done.Next());
    return done.Wait(1) ? done.all()[0] : absl::DeadlineExceededError("no answer");
  }
  absl::Status Read(int node, const v1::Tensor& tensor, int64_t offset, std::string* data) {
    Outcomes done;
    nodes[node]->io->Read(tensor, offset, absl::MakeSpan(*data),
                          nodes[node]->io->local_generation(), done.Next());
    return done.Wait(1) ? done.all()[0] : absl::DeadlineExceededError("no answer");
  }
  std::vector<std::unique_ptr<MemoryNode>> nodes;
};

v1::Mesh SquareMesh() {
  v1::Mesh mesh;
  for (const char* name : {"d", "t"}) {
    v1::MeshAxis* axis = mesh.add_axes();
    axis->set_name(name);
    axis->set_size(2);
  }
  // Not in the world's order.
  for (int rank : {2, 0, 3, 1}) mesh.add_ranks(rank);
  return mesh;
}

v1::Tensor TensorOf(uint64_t id, const v1::CreateTensorRequest& request, int64_t offset) {
  v1::Tensor tensor;
  tensor.set_tensor_id(id);
  *tensor.mutable_spec() = request.spec();
  tensor.set_offset_bytes(offset);
  const PlacedTensor placed = *FromProto(request.spec());
  tensor.set_shard_bytes(ShardBytes(placed.mesh, placed.tensor));
  return tensor;
}

uint16_t ValueAt(int64_t row, int64_t col) { return static_cast<uint16_t>(row * 251 + col); }

// Elements [begin, end) of a tensor with `cols` columns of bf16.
std::string Elements(int64_t cols, int64_t begin, int64_t end) {
  std::string bytes;
  for (; begin < end; ++begin) {
    const uint16_t value = ValueAt(begin / cols, begin % cols);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
  }
  return bytes;
}

// The parameter is true if the host cannot address the heaps.
class TensorIoOnHeaps : public testing::TestWithParam<bool> {};
INSTANTIATE_TEST_SUITE_P(Hidden, TensorIoOnHeaps, testing::Bool());

TEST_P(TensorIoOnHeaps, PiecesAreReadBackThroughAnyNode) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  std::mt19937_64 random(seed);
  MemoryWorld world(2, GetParam());
  constexpr int64_t kRows = 37, kCols = 151;
  uint64_t id = 0;
  for (const char* sharding :
       {"[M_d, K]", "[K, N_t]", "[M, K]", "[M_d, K_t]", "[M_dt, K]", "[M, K_td]"}) {
    SCOPED_TRACE(sharding);
    const v1::Tensor tensor = TensorOf(
        ++id, TensorRequest("", sharding, kRows, kCols, SquareMesh(), v1::DTYPE_BF16), 4096);
    ASSERT_TRUE(world.Place(tensor).ok());
    for (int64_t at = 0; at < kRows * kCols;) {
      const int64_t end = std::min<int64_t>(at + 1 + random() % (3 * kCols), kRows * kCols);
      const absl::Status status =
          world.Write(static_cast<int>(random() % 2), tensor, at * 2, Elements(kCols, at, end));
      ASSERT_TRUE(status.ok()) << status;
      at = end;
    }
    for (int i = 0; i < 20; ++i) {
      const int64_t at = random() % (kRows * kCols);
      const int64_t end = at + 1 + random() % (kRows * kCols - at);
      for (int node : {0, 1}) {
        std::string data((end - at) * 2, '\x5a');
        const absl::Status status = world.Read(node, tensor, at * 2, &data);
        ASSERT_TRUE(status.ok()) << status;
        ASSERT_EQ(data == Elements(kCols, at, end), true) << at << " to " << end;
      }
    }
  }
}

TEST_P(TensorIoOnHeaps, EveryReplicaIsWritten) {
  MemoryWorld world(2, GetParam());
  const v1::Tensor tensor =
      TensorOf(1, TensorRequest("", "[M, K]", 4, 4, MeshOf(4), v1::DTYPE_BF16), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  ASSERT_TRUE(world.Write(0, tensor, 0, Elements(4, 0, 16)).ok());
  for (const auto& node : world.nodes) {
    for (const auto& heap : node->heaps) {
      uint16_t value;
      std::memcpy(&value, heap->host().data() + 3 * 128 + 2 * sizeof(value), sizeof(value));
      EXPECT_EQ(value, ValueAt(3, 2));
    }
  }
}

TEST(TensorIo, PiecesThatAreNotTheTensorsAreRefused) {
  MemoryWorld world(1);
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M, K]", 4, 4, MeshOf(2)), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  for (int64_t offset : {int64_t{-8}, int64_t{60}, int64_t{2}, int64_t{1} << 62}) {
    std::string data(8, 'x');
    EXPECT_EQ(world.Read(0, tensor, offset, &data).code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(world.Write(0, tensor, offset, data).code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_EQ(world.Write(0, tensor, 0, "12345").code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorIo, ALostPeerFailsTheCallOnce) {
  MemoryWorld world(2);
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(4)), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  Renewed(*world.nodes[0]->transport);
  std::string data(8 * 8 * 4, '\0');
  EXPECT_EQ(world.Write(0, tensor, 0, data).code(), absl::StatusCode::kAborted);
  EXPECT_EQ(world.Read(0, tensor, 0, &data).code(), absl::StatusCode::kAborted);
}

TEST(TensorIo, AWriteThatOutlivesItsGenerationIsRefused) {
  MemoryWorld world(1);
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(2)), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  std::string data(8 * 8 * 4, '\0');
  MemoryNode& node = *world.nodes[0];
  const uint64_t generation = node.io->local_generation();
  node.store->EndTransfers(absl::AbortedError("node b was lost"));
  Outcomes done;
  node.io->Write(tensor, 0, data, generation, done.Next());
  ASSERT_TRUE(done.Wait(1));
  EXPECT_EQ(done.all()[0].code(), absl::StatusCode::kAborted);
  EXPECT_EQ(node.heaps[0]->host()[0], std::byte{0xa5});
  EXPECT_TRUE(world.Write(0, tensor, 0, data).ok());
  EXPECT_EQ(node.heaps[0]->host()[0], std::byte{0});
}

TEST(TensorIo, ABrokenConnectionIsReportedAsTheLossThatEndsTheGeneration) {
  MemoryWorld world(2);
  MemoryNode& node = *world.nodes[0];
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(4)), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  Notification broken;
  node.transport->OnPeerFailure([&](int, const absl::Status&) { broken.Notify(); });
  std::string data(8 * 8 * 4, 'x');
  ASSERT_TRUE(world.Write(0, tensor, 0, data).ok());
  // Like node b, which ends its connections when it has lost node c.
  world.nodes[1]->transport = nullptr;
  ASSERT_TRUE(broken.WaitFor(kPatience));
  Outcomes done;
  node.io->Read(tensor, 0, absl::MakeSpan(data), node.io->local_generation(), done.Next());
  node.store->EndTransfers(absl::AbortedError("node c was lost"));
  node.io->OnGenerationEnd();
  ASSERT_TRUE(done.Wait(1));
  EXPECT_EQ(ReasonOf(done.all()[0]), kReasonPeerLost);
  EXPECT_EQ(done.all()[0].message(), "node c was lost; repeat the whole transfer of tensor 1");
}

TEST(TensorIo, EachGenerationHasItsOwnReason) {
  MemoryWorld world(1);
  MemoryNode& node = *world.nodes[0];
  const uint64_t generation = node.io->local_generation();
  node.store->EndTransfers(absl::AbortedError("node b was lost"));
  node.store->EndTransfers(absl::AbortedError("node b joined"));
  EXPECT_THAT(std::string(node.io->CheckGeneration(1, generation).message()),
              StartsWith("node b was lost;"));
  EXPECT_THAT(std::string(node.io->CheckGeneration(1, generation + 1).message()),
              StartsWith("node b joined;"));
  EXPECT_TRUE(node.io->CheckGeneration(1, generation + 2).ok());
}

TEST(TensorIo, NothingWaitsForAReasonAfterTheStop) {
  MemoryWorld world(1);
  MemoryNode& node = *world.nodes[0];
  Outcomes done;
  node.io->Explain(1, node.io->local_generation(), absl::AbortedError("before"), done.Next());
  node.io->Stop();
  node.io->Explain(1, node.io->local_generation(), absl::AbortedError("behind"), done.Next());
  ASSERT_TRUE(done.Wait(2));
  EXPECT_EQ(done.all()[0].message(), "before");
  EXPECT_EQ(done.all()[1].message(), "behind");
}

TEST(TensorIo, AGenerationEndsAfterTheCopiesThatBeganInIt) {
  MemoryWorld world(1);
  MemoryNode& node = *world.nodes[0];
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(2)), 0);
  ASSERT_TRUE(world.Place(tensor).ok());
  const std::string data(8 * 8 * 4, 'x');
  failpoint::Arm("tensor_io.slow_copy", 1);
  const uint64_t generation = node.io->local_generation();
  Outcomes done;
  std::thread writer([&] { node.io->Write(tensor, 0, data, generation, done.Next()); });
  EXPECT_TRUE(Eventually([] { return failpoint::Hits("tensor_io.slow_copy") == 1; }));
  node.store->EndTransfers(absl::AbortedError("node b was lost"));
  // From here on the memory may belong to another tensor.
  const auto heap = node.heaps[0]->host();
  const std::string seen(reinterpret_cast<const char*>(heap.data()), heap.size());
  writer.join();
  EXPECT_TRUE(done.Wait(1));
  EXPECT_EQ(std::memcmp(seen.data(), heap.data(), heap.size()), 0);
  failpoint::Disarm("tensor_io.slow_copy");
}

TEST(TensorStore, ReportsTheBytesOfDroppedTensors) {
  MemoryWorld world(1);
  std::vector<Heap*> heaps;
  for (const auto& heap : world.nodes[0]->heaps) heaps.push_back(heap.get());
  std::vector<std::tuple<int, int64_t, int64_t>> dropped;
  TensorStore store(0, heaps, [&](int local, int64_t offset, int64_t bytes) {
    dropped.emplace_back(local, offset, bytes);
  });
  ASSERT_TRUE(store.Place(TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(2)), 4096)).ok());
  ASSERT_TRUE(store.Place(TensorOf(2, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(2)), 8192)).ok());
  store.Drop(1);
  store.Drop(1);
  EXPECT_EQ(dropped,
            (std::vector<std::tuple<int, int64_t, int64_t>>{{0, 4096, 512}, {1, 4096, 512}}));
  store.DropAll();
  EXPECT_EQ(dropped.size(), 4u);
}

TEST(TensorIo, AnUnknownTensorIsReported) {
  MemoryWorld world(2);
  const v1::Tensor tensor = TensorOf(1, TensorRequest("", "[M_x, K]", 8, 8, MeshOf(4)), 0);
  ASSERT_TRUE(world.nodes[0]->store->Place(tensor).ok());
  std::string data(8 * 8 * 4, '\0');
  EXPECT_EQ(world.Read(0, tensor, 0, &data).code(), absl::StatusCode::kNotFound);
  ASSERT_TRUE(world.nodes[1]->store->Place(tensor).ok());
  EXPECT_TRUE(world.Read(0, tensor, 0, &data).ok());
  world.nodes[1]->store->Drop(1);
  EXPECT_EQ(world.Read(0, tensor, 0, &data).code(), absl::StatusCode::kNotFound);
}

TEST(TensorStore, PlacesOutsideTheHeapAreRefused) {
  MemoryWorld world(1);
  const v1::CreateTensorRequest request = TensorRequest("", "[M, K]", 64, 64, MeshOf(2));
  EXPECT_EQ(world.Place(TensorOf(1, request, MemoryNode::kHeap - 4096)).code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(world.Place(TensorOf(1, request, -4096)).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(world.Place(TensorOf(1, request, 64)).code(), absl::StatusCode::kInvalidArgument);
  v1::Tensor small = TensorOf(1, request, 0);
  small.set_shard_bytes(small.shard_bytes() - 1);
  EXPECT_EQ(world.Place(small).code(), absl::StatusCode::kInvalidArgument);
}

TEST(TensorStore, BlocksOutsideTheShardAreRefused) {
  MemoryWorld world(1);
  ASSERT_TRUE(world.Place(TensorOf(1, TensorRequest("", "[M_x, K]", 5, 8, MeshOf(2)), 0)).ok());
  TensorStore& store = *world.nodes[0]->store;
  // Rank 1 holds two rows, rank 0 three.
  EXPECT_TRUE(store.Resolve(0, {1, 0, 0, 3, 0, 8}, true).ok());
  EXPECT_EQ(store.Resolve(0, {1, 1, 0, 3, 0, 8}, true).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store.Resolve(0, {1, 1, 0, 2, 0, 9}, true).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store.Resolve(0, {1, 1, -1, 2, 0, 8}, true).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store.Resolve(0, {1, 1, 2, 1, 0, 8}, true).status().code(),
            absl::StatusCode::kOutOfRange);
  EXPECT_EQ(store.Resolve(0, {1, 2, 0, 1, 0, 8}, true).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(store.Resolve(0, {2, 0, 0, 1, 0, 8}, true).status().code(),
            absl::StatusCode::kNotFound);
  world.nodes[0]->store->DropAll();
  EXPECT_EQ(store.Resolve(0, {1, 0, 0, 3, 0, 8}, true).status().code(),
            absl::StatusCode::kNotFound);
}

}  // namespace
}  // namespace agmm
