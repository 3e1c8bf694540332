#include "tests/e2e/world.h"

#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <iostream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/deadline.h"

namespace agmm {
namespace {

constexpr absl::Duration kStatusPoll = absl::Milliseconds(20);

}  // namespace

std::string Program(const std::string& name) { return absl::StrCat(AGMM_BIN_DIR, "/", name); }

World::World(WorldOptions options)
    : options_(std::move(options)), ports_(options_.nodes + 1), daemons_(options_.nodes) {
  WriteConfigs();
}

World::~World() {
  if (kSanitized) EndInGoodOrder();
  for (int node = 0; node < options_.nodes; ++node) Kill(node);
  if (::testing::Test::HasFailure()) {
    for (int node = 0; node < options_.nodes; ++node) {
      std::cerr << "--- log of daemon " << node << "\n"
                << ReadFile(Path(absl::StrCat("n", node, ".out")))
                << ReadFile(Path(absl::StrCat("n", node, ".err")));
    }
  }
}

// A daemon's sanitizer reports leaks when it exits.
void World::EndInGoodOrder() {
  for (const auto& daemon : daemons_)
    if (daemon != nullptr && daemon->Running()) daemon->Signal(SIGTERM);
  for (int node = 0; node < options_.nodes; ++node) {
    if (daemons_[node] == nullptr) continue;
    EXPECT_TRUE(daemons_[node]->Wait(kPatience).has_value())
        << "daemon " << node << " does not stop";
  }
}

void World::WriteConfigs() {
  WriteFile(Path("secret"), "of this world alone");
  std::filesystem::permissions(Path("secret"), std::filesystem::perms::owner_read);
  std::string world = "world {\n  cluster: \"test\"\n";
  for (int node = 0; node < options_.nodes; ++node) {
    absl::StrAppendFormat(&world, "  node { name: \"n%d\" address: \"%s\" devices: %d }\n", node,
                          address(node), options_.devices);
  }
  absl::StrAppendFormat(&world, "  peer_port: %d\n}\n", peer_port());
  for (int node = 0; node < options_.nodes; ++node) {
    std::string local = absl::StrFormat(
        "local {\n  node: \"n%d\"\n  socket: \"%s\"\n  secret: \"secret\"\n", node, socket(node));
    // Only tests of measurements have any, because they change counters and memory.
    if (!absl::StrContains(options_.local, "machines:"))
      absl::StrAppend(&local, "  machines: \"none\"\n");
    absl::StrAppend(&local, options_.local);
    const std::string cpu = absl::StrFormat("kind: \"cpu\" threads: 1 heap: \"%s\"", options_.heap);
    for (int device = 0; device < options_.devices; ++device)
      absl::StrAppendFormat(&local, "  device { %s }\n",
                            options_.device ? options_.device(node, device) : cpu);
    WriteFile(Path(absl::StrCat("n", node, ".txtpb")), world + local + "}\n");
  }
}

void World::Start(int node) {
  std::map<std::string, std::string> environment = options_.environment;
  const auto own = options_.node_failpoints.find(node);
  const std::string& failpoints =
      own == options_.node_failpoints.end() ? options_.failpoints : own->second;
  if (!failpoints.empty()) environment["AGMM_FAILPOINTS"] = failpoints;
  daemons_[node].reset();
  std::vector<std::string> command;
  if (!options_.hosts.empty()) command = options_.hosts[node].first;
  command.insert(command.end(),
                 {Program("agmmd"), "--config", Path(absl::StrCat("n", node, ".txtpb"))});
  daemons_[node] = std::make_unique<Process>(command, Path(absl::StrCat("n", node)), environment);
}

void World::StartAll() {
  for (int node = 0; node < options_.nodes; ++node) Start(node);
  for (int node = 0; node < options_.nodes; ++node) ASSERT_TRUE(WaitReady(node));
}

void World::Kill(int node) { daemons_[node].reset(); }

std::string World::endpoint(int node) const {
  return options_.hosts.empty() ? address(node) : socket(node);
}

std::string World::address(int node) const {
  return absl::StrCat(options_.hosts.empty() ? "127.0.0.1" : options_.hosts[node].second, ":",
                      ports_[node]);
}

std::string World::socket(int node) const { return Path(absl::StrCat("n", node, ".sock")); }

std::unique_ptr<Connection> World::Connect(int node) const {
  return std::make_unique<Connection>(*ResolveEndpoint(endpoint(node)));
}

v1::GetStatusResponse World::Status(int node) const {
  absl::StatusOr<v1::GetStatusResponse> status = Connect(node)->GetStatus();
  EXPECT_TRUE(status.ok()) << status.status();
  return status.ok() ? *std::move(status) : v1::GetStatusResponse();
}

::testing::AssertionResult World::WaitFor(
    int node, const std::string& what,
    const std::function<bool(const v1::GetStatusResponse&)>& holds) const {
  const Deadline deadline = Deadline::After(kPatience);
  std::string last;
  do {
    const absl::StatusOr<v1::GetStatusResponse> status = Connect(node)->GetStatus();
    if (status.ok() && holds(*status)) return ::testing::AssertionSuccess();
    last = status.ok() ? status->ShortDebugString() : status.status().ToString();
    for (const auto& daemon : daemons_) {
      if (daemon != nullptr && !daemon->Running())
        return ::testing::AssertionFailure()
               << "a daemon has ended; node " << node << " says " << last;
    }
    absl::SleepFor(kStatusPoll);
  } while (!deadline.HasPassed());
  return ::testing::AssertionFailure()
         << "node " << node << " never had " << what << "; the last answer: " << last;
}

::testing::AssertionResult World::WaitReady(int node) const {
  return WaitFor(node, "a ready world",
                 [](const v1::GetStatusResponse& status) { return status.ready(); });
}

std::unique_ptr<Process> World::StartCtl(int node, std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), {Program("agmmctl"), "--endpoint", endpoint(node)});
  return std::make_unique<Process>(arguments, Path(absl::StrCat("ctl", ++programs_)),
                                   options_.environment);
}

Ran World::Ctl(int node, std::vector<std::string> arguments) {
  const std::unique_ptr<Process> process = StartCtl(node, std::move(arguments));
  const std::optional<int> code = process->Wait(kPatience);
  EXPECT_TRUE(code.has_value()) << "agmmctl hangs";
  return {code.value_or(-1), process->out(), process->err()};
}

double MetricOf(const v1::GetStatusResponse& status, const std::string& name) {
  for (const v1::Metric& metric : status.metrics()) {
    if (metric.name() == name) return metric.value();
  }
  return 0;
}

int64_t FreeBytes(const v1::GetStatusResponse& status) {
  int64_t bytes = 0;
  for (const v1::NodeStatus& node : status.nodes()) {
    for (const v1::DeviceStatus& device : node.devices()) bytes += device.heap_free_bytes();
  }
  return bytes;
}

}  // namespace agmm
