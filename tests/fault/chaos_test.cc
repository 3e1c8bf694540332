// Three daemons on separate hosts, under load, while they are killed, paused, flooded and cut off
// from each other: no daemon ends by itself, every result is exact, every call returns, and nothing
// is left behind.
//
// tests/fault/chaos.sh runs it for longer. $AGMM_CHAOS_SECONDS: the time during which faults are
// injected. $AGMM_CHAOS_FAULTS: their kinds, "pause,partition"; all by default. $AGMM_SEED: the
// seed.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/agmm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/clock.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/usage.h"
#include "tests/e2e/world.h"
#include "tests/fault/network.h"
#include "tests/support/call_flood.h"
#include "tests/support/matrix.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

constexpr int kNodes = 3, kClients = 4;
constexpr std::chrono::seconds kCallTimeout{15};
// Bound on the time of a call, including the time that a client adds to its timeout.
constexpr absl::Duration kLongestCall = absl::Seconds(25);
constexpr char kSpec[] = "A[M_x, K] * B[K, N_x] -> C[M, N_x]";

// gRPC's own pools vary by a few; a leak per fault or call would be many more.
constexpr int kSpareDescriptors = 8, kSpareThreads = 5;
// Two heaps of 64 MiB, and the daemon's other memory.
constexpr int64_t kMostResidentKiB = 400 << 10;

// Returns the number of pieces of shared memory that a process has mapped.
int SharedMappings(pid_t pid) {
  std::ifstream maps(absl::StrCat("/proc/", pid, "/maps"));
  int count = 0;
  for (std::string line; std::getline(maps, line);) {
    for (const char* kind : {"/memfd:", "/dev/shm/", "/SYSV"})
      if (line.find(kind) != std::string::npos) ++count;
  }
  EXPECT_GT(count, 0) << "a heap is shared memory";
  return count;
}

// Returns the value of a variable of the environment, or `otherwise` if it is unset or empty.
std::string Setting(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr || *value == '\0' ? otherwise : value;
}

// The combined results of the clients.
class Tally {
 public:
  void Call(const std::string& what, const Status& status, int64_t began_ns) {
    const absl::Duration took = absl::Nanoseconds(MonotonicNanos() - began_ns);
    std::lock_guard lock(mutex_);
    ++calls_[absl::StrCat(what, " ", status.ok() ? "OK" : ToString(status))];
    EXPECT_LE(took, kLongestCall) << what << ": " << status.ToString();
    longest_ = std::max(longest_, took);
  }
  void Product() { ++products_; }
  int64_t products() const { return products_; }
  void Print() {
    std::lock_guard lock(mutex_);
    for (const auto& [what, count] : calls_)
      std::printf("%8lld %s\n", static_cast<long long>(count), what.c_str());
    std::printf("%8lld products compared; the longest call took %s\n",
                static_cast<long long>(products_), absl::FormatDuration(longest_).c_str());
  }

 private:
  static std::string ToString(const Status& status) {
    const std::string text = status.ToString();
    return text.substr(0, text.find(':'));
  }

  std::mutex mutex_;
  std::map<std::string, int64_t> calls_;
  absl::Duration longest_;
  std::atomic<int64_t> products_ = 0;
};

// A client's thread: products, and tensors of 4 MiB that keep the network busy. Calls may fail, but
// successful results must be right.
class Load {
 public:
  Load(std::string endpoint, int number, uint64_t seed, Tally* tally)
      : endpoint_(std::move(endpoint)), name_(absl::StrCat(number)), tally_(tally), random_(seed) {
    thread_ = std::thread([this] { Run(); });
  }
  ~Load() {
    stopping_ = true;
    thread_.join();
  }

 private:
  static constexpr int64_t kRows[] = {1, 33, 96}, kK = 64, kN = 48, kLarge = 1024;

  void Run() {
    while (!stopping_) {
      if (client_ == nullptr) {
        Result<std::unique_ptr<Client>> client =
            Client::Connect({.endpoint = endpoint_,
                             .call_timeout = kCallTimeout,
                             .transfer_timeout = kCallTimeout});
        if (client.ok()) client_ = *std::move(client);
      }
      if (client_ == nullptr || !(random_() % 2 == 0 ? Product() : Large()))
        absl::SleepFor(absl::Milliseconds(50));
    }
    if (client_ == nullptr) return;
    Delete("B");
    Delete("L");
    for (int64_t rows : kRows) {
      Delete(absl::StrCat("A", rows));
      Delete(absl::StrCat("C", rows));
    }
  }

  template <typename Call>
  bool Try(const std::string& what, const Call& call) {
    const int64_t began_ns = MonotonicNanos();
    const Status status = call();
    tally_->Call(what, status, began_ns);
    return status.ok();
  }

  void Delete(const std::string& kind) {
    Try("delete", [&] { return client_->Delete(Name(kind)); });
  }
  std::string Name(const std::string& kind) const { return absl::StrCat(kind, ".", name_); }

  bool Put(const std::string& kind, const TestMatrix& matrix, const std::string& sharding) {
    return Try("put", [&] {
      return client_
          ->Put(Name(kind), {.rows = matrix.rows, .cols = matrix.cols, .sharding = sharding},
                matrix.values.data(), matrix.values.size() * sizeof(float))
          .status();
    });
  }

  bool Product() {
    const int64_t rows = kRows[random_() % std::size(kRows)];
    const std::string a_kind = absl::StrCat("A", rows), c_kind = absl::StrCat("C", rows);
    const TestMatrix a = SmallIntegers(rows, kK, random_()), b = SmallIntegers(kK, kN, random_());
    if (!Put(a_kind, a, "[M_x, K]") || !Put("B", b, "[K, N_x]")) return false;
    static constexpr const char* kAlgorithms[] = {"auto", "ring", "direct", "serial"};
    const JobRequest request{.spec = kSpec,
                             .a = Name(a_kind),
                             .b = Name("B"),
                             .c = Name(c_kind),
                             .algorithm = kAlgorithms[random_() % 4],
                             .repeat_count = random_() % 8 == 0 ? 200 : 1,
                             .timeout = kCallTimeout};
    if (!Try("run", [&] { return client_->Run(request).status(); })) return false;
    TestMatrix c{rows, kN, std::vector<float>(rows * kN, -1)};
    if (!Try("get", [&] {
          return client_->Get(Name(c_kind), c.values.data(), c.values.size() * sizeof(float))
              .status();
        }))
      return false;
    EXPECT_TRUE(SameBits(c, MatrixProduct(a, b)));
    tally_->Product();
    return true;
  }

  bool Large() {
    const float value = static_cast<float>(random_() % 1000);
    const TestMatrix whole{kLarge, kLarge, std::vector<float>(kLarge * kLarge, value)};
    if (!Put("L", whole, "[M_x, K]")) return false;
    std::vector<float> got(kLarge * kLarge, -1);
    if (!Try("get", [&] {
          return client_->Get(Name("L"), got.data(), got.size() * sizeof(float)).status();
        }))
      return false;
    EXPECT_EQ(got, whole.values) << "a torn tensor";
    return true;
  }

  const std::string endpoint_, name_;
  Tally* const tally_;
  std::mt19937_64 random_;
  std::unique_ptr<Client> client_;
  std::atomic<bool> stopping_ = false;
  std::thread thread_;
};

WorldOptions OnHosts(const Network& network) {
  WorldOptions options{.nodes = kNodes, .devices = 2, .heap = "64MiB"};
  for (int node = 0; node < kNodes; ++node)
    options.hosts.emplace_back(network.Command(node), network.address(node));
  return options;
}

class Chaos : public ::testing::Test {
 protected:
  void SetUp() override {
    if (const std::string missing = Network::Missing(); !missing.empty()) GTEST_SKIP() << missing;
    if (kSanitized) GTEST_SKIP() << "sanitized daemons are so slow that they lose each other";
    network_ = std::make_unique<Network>(kNodes, seed_);
    world_ = std::make_unique<World>(OnHosts(*network_));
    ASSERT_NO_FATAL_FAILURE(world_->StartAll());
  }
  void TearDown() override {
    loads_.clear();
    world_ = nullptr;
    network_ = nullptr;
  }

  // A daemon that has ended is a test failure, and is started again.
  void ExpectAllRun() {
    for (int node = 0; node < kNodes; ++node) {
      if (world_->daemon(node).Running()) continue;
      ++deaths_;
      ADD_FAILURE() << "daemon " << node << " ended with "
                    << *world_->daemon(node).Wait(absl::ZeroDuration());
      world_->Start(node);
    }
  }
  absl::Duration Between(double low_s, double high_s) {
    return absl::Seconds(std::uniform_real_distribution<>(low_s, high_s)(random_));
  }

  void Kill(int node) {
    world_->Kill(node);
    absl::SleepFor(Between(0, 0.5));
    world_->Start(node);
  }
  // The pause is long enough for the others to give it up.
  void Pause(int node) {
    world_->daemon(node).Stop();
    absl::SleepFor(Between(2.7, 4.5));
    world_->daemon(node).Signal(SIGCONT);
  }
  void Partition(int node) {
    network_->CutOff(node);
    absl::SleepFor(Between(2.7, 4.5));
    network_->Restore();
  }
  void OneWay(int node) {
    network_->Cut(node, (node + 1 + random_() % 2) % kNodes);
    absl::SleepFor(Between(0.5, 4.5));
    network_->Restore();
  }
  // Floods the node with calls of one kind, and with silent connections, from its own host or
  // another one, at the port for clients or at the port where daemons join.
  void Flood(int node) {
    constexpr int kSilent = 600;
    const std::string ways[] = {world_->socket(node), world_->address(node),
                                absl::StrCat(network_->address(0), ":", world_->peer_port())};
    const std::string way = ways[random_() % std::size(ways)];
    const int from = static_cast<int>((way == ways[2] ? 0 : node) + 1 + random_() % 2) % kNodes;
    const auto connect = [&, local = way == ways[0]] {
      int fd = -1;
      if (local) return ConnectTo(way);
      network_->On(from, [&] { fd = ConnectTo(way); });
      return fd;
    };
    using Kind = CallFlood::Kind;
    static constexpr Kind kKinds[] = {Kind::kFields,     Kind::kContinuation, Kind::kHalf,
                                      Kind::kUnreadJobs, Kind::kReset,        Kind::kLeave,
                                      Kind::kHeaders,    Kind::kUnreadTensor};
    // The kinds take turns, so that a short run includes all.
    const CallFlood calls(connect, kKinds[floods_++ % std::size(kKinds)]);
    std::vector<int> silent;
    // A daemon that is flooded may not answer each attempt to connect.
    const Deadline end = Deadline::After(absl::Seconds(2));
    for (int i = 0; i < kSilent && !end.HasPassed(); ++i)
      if (const int fd = connect(); fd >= 0) silent.push_back(fd);
    absl::SleepFor(Between(0.5, 2));
    EXPECT_FALSE(silent.empty()) << "no flood reached " << way;
    EXPECT_GT(calls.calls(), 0) << "no flood reached " << way;
    for (int fd : silent) close(fd);
  }
  void Storm() {
    network_->SetWeather(
        {.loss = 0.03, .duplicates = 0.03, .reordered = 0.1, .delay = absl::Milliseconds(2)});
    absl::SleepFor(Between(1, 3));
    network_->SetWeather({});
  }

  void StartLoad() {
    for (int i = 0; i < kClients; ++i)
      loads_.push_back(
          std::make_unique<Load>(world_->endpoint(i % kNodes), i, seed_ * 100 + i, &tally_));
  }

  // Waits for a product, injects one of the chosen faults, and waits until the world is ready
  // again.
  void InjectOne() {
    const int64_t before = tally_.products();
    ASSERT_TRUE(Eventually([&] { return tally_.products() > before; })) << "no job succeeds";
    absl::SleepFor(Between(0, 0.5));
    const std::string& fault = chosen_[random_() % chosen_.size()];
    const auto inject = faults_.find(fault);
    ASSERT_NE(inject, faults_.end()) << fault << " is not a fault";
    inject->second(static_cast<int>(random_() % kNodes));
    const int count = ++counts_[fault];
    if (count % 10 == 0) {
      std::printf("%d times %s, %lld products\n", count, fault.c_str(),
                  static_cast<long long>(tally_.products()));
      std::fflush(stdout);
    }
    ExpectAllRun();
    for (int node = 0; node < kNodes; ++node) {
      const ::testing::AssertionResult ready = world_->WaitReady(node);
      ExpectAllRun();
      ASSERT_TRUE(ready) << "after " << fault;
    }
  }

  void PrintCounts() {
    tally_.Print();
    for (const auto& [fault, count] : counts_) std::printf("%8d times %s\n", count, fault.c_str());
    std::printf("%8d daemons ended by themselves\n", deaths_);
  }

  struct Held {
    Usage usage;
    int mapped = 0;
  };
  Held HeldBy(int node) {
    return {UsageOf(*world_, node), SharedMappings(world_->daemon(node).pid())};
  }

  // Expects that the node soon holds no more than `before`, except some of gRPC's descriptors and
  // threads.
  void ExpectReleased(int node, const Held& before) {
    Usage now;
    EXPECT_TRUE(Eventually([&] {
      now = UsageOf(*world_, node);
      return now.descriptors <= before.usage.descriptors + kSpareDescriptors &&
             now.threads <= before.usage.threads + kSpareThreads && now.staging_bytes == 0;
    })) << "node "
        << node << " held " << ::testing::PrintToString(before.usage) << ", and now "
        << ::testing::PrintToString(now);
    EXPECT_EQ(SharedMappings(world_->daemon(node).pid()), before.mapped) << "node " << node;
    // After a flood, memory is returned a little later.
    int64_t resident_kib = 0;
    EXPECT_TRUE(Eventually([&] {
      resident_kib = ProcessField(world_->daemon(node).pid(), "VmRSS");
      return resident_kib < kMostResidentKiB;
    })) << "node "
        << node << " has " << resident_kib << " KiB";
    std::printf("node %d: %s, %lld MiB resident\n", node, ::testing::PrintToString(now).c_str(),
                static_cast<long long>(resident_kib / 1024));
  }

  const uint64_t seed_ = TestSeed();
  std::mt19937_64 random_{seed_};
  const std::map<std::string, std::function<void(int node)>> faults_ = {
      {"flood", [this](int node) { Flood(node); }},
      {"kill", [this](int node) { Kill(node); }},
      {"one_way", [this](int node) { OneWay(node); }},
      {"partition", [this](int node) { Partition(node); }},
      {"pause", [this](int node) { Pause(node); }},
      {"storm", [this](int) { Storm(); }}};
  // The faults to draw from: those in $AGMM_CHAOS_FAULTS, by default all.
  const std::vector<std::string> chosen_ =
      absl::StrSplit(Setting("AGMM_CHAOS_FAULTS", "flood,kill,one_way,partition,pause,storm"), ',');
  std::map<std::string, int> counts_;
  Tally tally_;
  std::unique_ptr<Network> network_;
  std::unique_ptr<World> world_;
  std::vector<std::unique_ptr<Load>> loads_;
  int deaths_ = 0;
  size_t floods_ = 0;
};

TEST_F(Chaos, DaemonsSurviveAndResultsAreExact) {
  int seconds = 0;
  ASSERT_TRUE(absl::SimpleAtoi(Setting("AGMM_CHAOS_SECONDS", "120"), &seconds));

  StartLoad();
  ASSERT_TRUE(Eventually([&] { return tally_.products() > 100; }));
  loads_.clear();
  // The daemons' resources after work without faults: gRPC keeps some threads and connections.
  std::vector<Held> before;
  for (int node = 0; node < kNodes; ++node) before.push_back(HeldBy(node));

  StartLoad();
  const int64_t end_ns = MonotonicNanos() + seconds * 1'000'000'000LL;
  while (MonotonicNanos() < end_ns) ASSERT_NO_FATAL_FAILURE(InjectOne());
  loads_.clear();
  PrintCounts();

  for (int node = 0; node < kNodes; ++node) ASSERT_TRUE(world_->WaitReady(node));
  EXPECT_TRUE(world_->WaitFor(0, "empty heaps", [](const v1::GetStatusResponse& status) {
    return TensorBytes(status) == 0;
  }));
  for (int node = 0; node < kNodes; ++node) ExpectReleased(node, before[node]);
}

}  // namespace
}  // namespace agmm
