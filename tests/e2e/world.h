// A world of real daemons on loopback, for tests of the programs as users run them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "client/connect/connection.h"
#include "gtest/gtest.h"
#include "tests/e2e/process.h"
#include "tests/support/held_ports.h"
#include "tests/support/patience.h"
#include "tests/support/temp_folder.h"

namespace agmm {

// Under a sanitizer. clang has no macro for it, gcc 12 no __has_feature.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define AGMM_SANITIZED true
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define AGMM_SANITIZED true
#endif
#endif
#ifndef AGMM_SANITIZED
#define AGMM_SANITIZED false
#endif
inline constexpr bool kSanitized = AGMM_SANITIZED;

struct WorldOptions {
  int nodes = 1;
  int devices = 1;  // of each node; CPUs have one thread each
  std::string heap = "32MiB";
  // The configuration of a device in place of a CPU's: kind: "cuda" gpu: 0 heap: "64MiB".
  std::function<std::string(int node, int device)> device = nullptr;
  std::string failpoints;                          // AGMM_FAILPOINTS of every daemon
  std::map<int, std::string> node_failpoints;      // of these nodes alone, instead
  std::map<std::string, std::string> environment;  // more, of every daemon and of agmmctl
  std::string local;                               // more fields of `local`
  // The place of each node: a prefix for its command, and its IP address. Empty: on loopback. Tests
  // reach daemons elsewhere over their unix sockets.
  std::vector<std::pair<std::vector<std::string>, std::string>> hosts = {};
};

struct Ran {
  int exit_code = -1;  // -1: it did not end
  std::string out, err;
};

class World {
 public:
  explicit World(WorldOptions options);
  // Kills the daemons; prints their logs if the test has failed. With sanitizers, it stops them in
  // good order, so that leaks are reported.
  ~World();
  World(const World&) = delete;

  void Start(int node);
  // Starts all daemons and waits until jobs can run.
  void StartAll();
  // Sends SIGKILL.
  void Kill(int node);
  Process& daemon(int node) { return *daemons_[node]; }

  // "127.0.0.1:port", or the path of its unix socket if it runs in another network namespace.
  std::string endpoint(int node) const;
  // "127.0.0.1:port": the address for clients, which errors name.
  std::string address(int node) const;
  // The port at which the other daemons join.
  int peer_port() const { return ports_[options_.nodes]; }
  // The path of its unix socket, also an endpoint.
  std::string socket(int node) const;
  // The path of a file in this world's temporary folder.
  std::string Path(const std::string& name) const { return folder_ / name; }
  std::unique_ptr<Connection> Connect(int node) const;
  // Returns the status that `node` answers; fails the test if it does not answer.
  v1::GetStatusResponse Status(int node) const;
  // Waits until `holds` returns true, at most kPatience.
  ::testing::AssertionResult WaitFor(
      int node, const std::string& what,
      const std::function<bool(const v1::GetStatusResponse&)>& holds) const;
  ::testing::AssertionResult WaitReady(int node) const;

  // Run agmmctl with the endpoint of `node`. The first function returns when agmmctl has ended.
  Ran Ctl(int node, std::vector<std::string> arguments);
  std::unique_ptr<Process> StartCtl(int node, std::vector<std::string> arguments);

 private:
  void EndInGoodOrder();
  void WriteConfigs();

  const WorldOptions options_;
  const TempFolder folder_{"world"};
  const HeldPorts ports_;  // of the nodes, and the first node's for the other daemons
  std::vector<std::unique_ptr<Process>> daemons_;
  int programs_ = 0;
};

// Returns a metric of the answering daemon; 0 if it does not exist.
double MetricOf(const v1::GetStatusResponse& status, const std::string& name);
// Returns the free bytes of all heaps together.
int64_t FreeBytes(const v1::GetStatusResponse& status);

// Returns the path of a program in the build folder.
std::string Program(const std::string& name);

}  // namespace agmm
