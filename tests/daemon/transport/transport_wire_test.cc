#include "daemon/transport/wire.h"

#include <netinet/in.h>
#include <signal.h>

#include <cstdlib>
#include <cstring>
#include <random>

#include "absl/strings/str_cat.h"
#include "daemon/transport/address.h"
#include "daemon/transport/generation.h"
#include "gtest/gtest.h"
#include "tests/daemon/transport/transport_harness.h"

namespace agmm {
namespace {

template <typename Header>
Header Sealed(const wire::HeaderKey& key, wire::Kind kind) {
  Header header;
  header.envelope = {wire::kVersion, kind, /*source_node=*/3, /*generation=*/11};
  header.bytes = 100;
  EXPECT_TRUE(key.Seal(&header));
  return header;
}

template <typename Header>
void ExpectEveryFlippedBitIsNoticed(wire::Kind kind) {
  const auto key = wire::HeaderKey::Make(kKey).value();
  const Header sealed = Sealed<Header>(*key, kind);
  ASSERT_TRUE(key->Holds(sealed));
  for (size_t bit = 0; bit < 8 * sizeof(Header); ++bit) {
    Header flipped = sealed;
    reinterpret_cast<unsigned char*>(&flipped)[bit / 8] ^= 1 << (bit % 8);
    EXPECT_FALSE(key->Holds(flipped)) << "bit " << bit;
  }
}

TEST(TransportWire, EveryFlippedBitIsNoticed) {
  ExpectEveryFlippedBitIsNoticed<wire::PlanHeader>(wire::kPlan);
  ExpectEveryFlippedBitIsNoticed<wire::BulkHeader>(wire::kWrite);
}

TEST(TransportWire, AnotherKeyGivesAnotherCheck) {
  const auto key = wire::HeaderKey::Make(kKey).value();
  const auto zero = wire::HeaderKey::Make({}).value();
  EXPECT_TRUE(key->Holds(Sealed<wire::PlanHeader>(*key, wire::kPlan)));
  EXPECT_FALSE(key->Holds(Sealed<wire::PlanHeader>(*zero, wire::kPlan)));
}

TEST(TransportWire, OnlyValidHeadersOfThisWorldAreAccepted) {
  const uint64_t seed = TestSeed();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  auto generation = std::make_shared<transport::Generation>();
  generation->number = 11;
  generation->self_node = 0;
  generation->key = wire::HeaderKey::Make(kKey).value();
  const wire::HeaderKey& key = *generation->key;
  transport::CurrentGeneration current;
  TransportCounters counters;
  wire::PlanHeader out;
  const auto admitted = [&](const wire::PlanHeader& header) {
    return Admit(current, wire::kPlan, &header, sizeof(header), &out, &counters);
  };
  const wire::PlanHeader sound = Sealed<wire::PlanHeader>(key, wire::kPlan);
  EXPECT_FALSE(admitted(sound)) << "before there is a world";
  current.Set(generation);
  EXPECT_TRUE(admitted(sound));
  EXPECT_EQ(out.bytes, 100);

  wire::PlanHeader header = sound;
  header.envelope.source_node = 0;  // ourselves
  ASSERT_TRUE(key.Seal(&header));
  EXPECT_FALSE(admitted(header));
  header = sound;
  header.bytes = -1;
  ASSERT_TRUE(key.Seal(&header));
  EXPECT_FALSE(admitted(header));
  EXPECT_FALSE(admitted(Sealed<wire::PlanHeader>(key, wire::kRead)));
  EXPECT_EQ(counters.malformed, 3);
  header = sound;
  header.envelope.generation = 12;
  ASSERT_TRUE(key.Seal(&header));
  EXPECT_FALSE(admitted(header));
  EXPECT_EQ(counters.stale_generation, 2);

  std::mt19937_64 random(seed);
  for (int i = 0; i < 2000; ++i) {
    // Any length; half of them with a valid envelope.
    std::vector<unsigned char> bytes(i % 4 == 0 ? random() % 200 : sizeof(wire::PlanHeader));
    for (unsigned char& byte : bytes) byte = static_cast<unsigned char>(random());
    if (i % 2 == 0 && bytes.size() >= sizeof(wire::Envelope)) {
      std::memcpy(bytes.data(), &sound.envelope, sizeof(wire::Envelope));
    }
    EXPECT_FALSE(Admit(current, wire::kPlan, bytes.data(), bytes.size(), &out, &counters));
  }
  EXPECT_FALSE(Admit(current, wire::kPlan, nullptr, sizeof(wire::PlanHeader), &out, &counters));
  EXPECT_GT(counters.bad_check, 0);
}

TEST(TransportWire, OnlyAddressesSurviveFraming) {
  transport::TransportAddress address;
  address.listener.socket.bytes.ss_family = AF_INET;
  address.listener.socket.size = sizeof(sockaddr_in);
  address.listener.socket.set_port(7301);
  address.listener.salt = "salt";
  address.worker = std::string("\0\1abc", 5);
  const std::string framed = transport::Frame(address);
  const absl::StatusOr<transport::TransportAddress> back = transport::Unframe(framed);
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->listener.socket.ToString(), "0.0.0.0:7301");
  EXPECT_EQ(back->listener.salt, address.listener.salt);
  EXPECT_EQ(back->worker, address.worker);
  for (size_t at = 0; at < framed.size(); ++at) {
    std::string other = framed;
    other[at] ^= 1;
    EXPECT_FALSE(transport::Unframe(other).ok()) << at;
    EXPECT_FALSE(transport::Unframe(framed.substr(0, at)).ok()) << at;
  }
}

// UCX installs handlers for SIGHUP and the fatal signals when its library is loaded; a daemon needs
// these signals itself.
TEST(TransportWire, SignalHandlersAreRestored) {
  if (std::getenv("UCX_HANDLE_ERRORS") != nullptr)
    GTEST_SKIP() << "the environment says what UCX does";
  Node node;
  struct sigaction action;
  ASSERT_EQ(sigaction(SIGHUP, nullptr, &action), 0);
  EXPECT_EQ(action.sa_handler, SIG_DFL);
}

}  // namespace
}  // namespace agmm
