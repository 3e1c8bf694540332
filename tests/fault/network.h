// Hosts on one machine: network namespaces, joined by a router in this process that can lose,
// delay, duplicate, reorder and cut their traffic.
//
// Each host has one TUN device, eth0, whose packets the router reads and writes. Each host has
// three addresses. The first one is a trap that a program may choose by mistake: the router
// delivers nothing to it. Another address is on lo. Needs root.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace agmm {

class Network {
 public:
  // Returns why no network can be created here, for GTEST_SKIP; empty if one can.
  static std::string Missing();

  Network(int hosts, uint64_t seed);
  ~Network();
  Network(const Network&) = delete;

  // Returns a prefix for a program's arguments that runs it on `host`.
  std::vector<std::string> Command(int host) const;
  // Runs `use` on `host`: sockets that it opens belong to that host.
  void On(int host, const std::function<void()>& use) const;
  // "10.214.0.1".
  std::string address(int host) const;
  // "fd00:214::1"; empty if the kernel has no IPv6.
  std::string address6(int host) const;
  // "10.215.0.1": on lo, so only `host` itself reaches it.
  std::string lo_address(int host) const;

  // The treatment of each packet; probabilities from 0 to 1.
  struct Weather {
    double loss = 0, duplicates = 0, reordered = 0;
    absl::Duration delay;  // one way; reordered packets take three times as long
  };
  void SetWeather(const Weather& weather);

  // From now on packets from one host do not reach the other; the other direction still works. With
  // `ports`, only packets from or to these TCP ports are cut.
  void Cut(int from, int to, std::set<int> ports = {});
  // Cuts `host` off from all others, both ways.
  void CutOff(int host);
  // Ends all cuts.
  void Restore();
  // Takes down eth0 of `host`. The interface keeps its addresses.
  void TakeDown(int host);

 private:
  struct Rule {
    int from, to;
    std::set<int> ports;
  };
  struct Delayed {
    int to;
    std::string packet;
  };

  void Route();
  void Take(int from, const char* packet, size_t size);
  bool IsCut(int from, int to, const char* packet, size_t size) const;
  bool Happens(double probability);
  // Sends the delayed packets that are due. Returns the nanoseconds until the next one; -1 without
  // one.
  int64_t SendDue();

  std::vector<std::string> names_;
  std::vector<int> tuns_;
  int stop_ = -1;  // an eventfd

  std::mutex mutex_;  // guards all below
  Weather weather_;
  std::vector<Rule> cuts_;
  std::mt19937_64 random_;
  std::multimap<int64_t, Delayed> delayed_;  // by the time when they are due

  std::thread router_;
};

}  // namespace agmm
