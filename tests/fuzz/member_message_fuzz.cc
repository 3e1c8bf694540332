// Streams of members into the sequencer and its catalog. The input is a sequence of messages: a
// byte for the stream, two for the length, and a serialised MemberMessage.
#include <spdlog/spdlog.h>

#include <memory>

#include "daemon/node/member.h"
#include "daemon/sequencer/catalog.h"
#include "daemon/sequencer/sequencer.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/two_nodes.h"
#include "tests/fuzz/valid_requests.h"

namespace agmm::fuzz {
namespace {

struct Link final : MemberLink {
  void Send(v1::SequencerMessage message) override {
    for (const v1::Command& command : message.commands())
      if (command.has_world()) world = command.world();
  }
  void Refuse(v1::Refusal) override {}
  void Close() override {}
  v1::World world;
};

class World {
 public:
  World() {
    sequencer_.SetListeners({catalog_.get()});
    sequencer_.OnReadyChanged([](bool) {});
    for (int node : {0, 1}) sequencer_.OnMessage(links_[node], HelloOf(node));
    v1::MemberMessage ready;
    ready.set_generation(sequencer_.generation());
    ready.add_reports()->mutable_world_ready();
    for (int node : {0, 1}) sequencer_.OnMessage(links_[node], ready);
    // A request is in flight to the nodes.
    v1::CreateTensorRequest request = Valid<v1::CreateTensorRequest>();
    request.mutable_spec()->clear_mesh();
    request.mutable_spec()->mutable_mesh()->add_axes()->set_name("x");
    request.mutable_spec()->mutable_mesh()->mutable_axes(0)->set_size(3);
    request.mutable_spec()->set_sharding("[M_x, K]");
    catalog_->CreateTensor({}, request, [](const absl::StatusOr<v1::Tensor>&) {});
  }

  void Take(uint8_t stream, absl::string_view bytes) {
    v1::MemberMessage message;
    if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) return;
    // The fuzzer could not guess it.
    if (message.generation() == 0) message.set_generation(sequencer_.generation());
    const uint64_t before = sequencer_.generation();
    const std::shared_ptr<Link>& link = links_[stream % 3];
    if (stream & 0x80) sequencer_.OnLost(link.get(), "fuzzed");
    sequencer_.OnMessage(link, message);
    FUZZ_CHECK(sequencer_.generation() >= before, "a generation went back");
    // For any hello, members receive only worlds that they can enter.
    for (const auto& each : links_) {
      if (each->world.generation() == 0) continue;
      FUZZ_CHECK(CheckWorld(TwoNodes(), each->world).ok(), each->world.DebugString());
    }
    v1::GetStatusResponse status;
    sequencer_.FillStatus(&status);
    FUZZ_CHECK(status.nodes_size() == 2, "nodes");
    for (int rank = 0; rank < placement_.rank_count(); ++rank) {
      FUZZ_CHECK(placement_.free_bytes(rank) >= 0 &&
                     placement_.used_bytes(rank, MemoryClass::kTensor) >= 0,
                 "bytes");
    }
  }

 private:
  Metrics metrics_;
  Sequencer sequencer_{TwoNodes(), &metrics_};
  Placement placement_;
  std::unique_ptr<Catalog> catalog_ = std::make_unique<Catalog>(&sequencer_, &placement_);
  const std::shared_ptr<Link> links_[3] = {std::make_shared<Link>(), std::make_shared<Link>(),
                                           std::make_shared<Link>()};
};

void Check(absl::string_view bytes) {
  // The sequencer logs every join.
  static const bool quiet = (spdlog::set_level(spdlog::level::off), true);
  (void)quiet;
  World world;
  while (bytes.size() >= 3) {
    const uint8_t stream = bytes[0];
    const size_t length = static_cast<uint8_t>(bytes[1]) | static_cast<uint8_t>(bytes[2]) << 8;
    bytes.remove_prefix(3);
    world.Take(stream, bytes.substr(0, length));
    bytes.remove_prefix(std::min(length, bytes.size()));
  }
}

[[maybe_unused]] const bool kAdded = AddTarget("member_message", Check);

}  // namespace
}  // namespace agmm::fuzz
