#include "tests/fault/network.h"

#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <spawn.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gtest/gtest.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

constexpr char kIp[] = "/usr/sbin/ip";
constexpr char kNamespaces[] = "/run/netns";
constexpr char kPrefix[] = "agmm-test-";
// Fewer, larger packets: each costs the router two system calls.
constexpr int kMtu = 32000;

int RunIp(std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), kIp);
  std::vector<char*> argv;
  for (std::string& argument : arguments) argv.push_back(argument.data());
  argv.push_back(nullptr);
  pid_t pid = -1;
  int status = -1;
  if (posix_spawn(&pid, kIp, nullptr, nullptr, argv.data(), environ) != 0) return -1;
  while (waitpid(pid, &status, 0) < 0 && errno == EINTR) {
  }
  return status;
}

void Ip(const std::vector<std::string>& arguments) {
  EXPECT_EQ(RunIp(arguments), 0) << "ip " << absl::StrJoin(arguments, " ");
}

// Removes the namespaces of tests that were killed.
void RemoveAbandoned() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(kNamespaces, ignored)) {
    const std::vector<std::string> parts =
        absl::StrSplit(entry.path().filename().string(), '-');  // agmm-test-PID-HOST
    int pid = 0;
    if (parts.size() == 4 && absl::StartsWith(entry.path().filename().string(), kPrefix) &&
        absl::SimpleAtoi(parts[2], &pid) && kill(pid, 0) != 0)
      RunIp({"netns", "del", entry.path().filename().string()});
  }
}

// Uses a separate thread, because a namespace belongs to a thread.
void RunIn(const std::string& name, const std::function<void()>& use) {
  std::thread([&] {
    const int space = open(absl::StrCat(kNamespaces, "/", name).c_str(), O_RDONLY | O_CLOEXEC);
    EXPECT_EQ(setns(space, CLONE_NEWNET), 0) << name;
    close(space);
    use();
  }).join();
}

// Opens eth0 of the namespace `name`.
int OpenTun(const std::string& name) {
  int tun = -1;
  RunIn(name, [&] {
    tun = open("/dev/net/tun", O_RDWR | O_NONBLOCK | O_CLOEXEC);
    ifreq request{};
    std::strcpy(request.ifr_name, "eth0");
    request.ifr_flags = IFF_TUN | IFF_NO_PI;
    EXPECT_EQ(ioctl(tun, TUNSETIFF, &request), 0) << name;
  });
  return tun;
}

int Port(const char* header, size_t offset) {
  return static_cast<uint8_t>(header[offset]) << 8 | static_cast<uint8_t>(header[offset + 1]);
}

bool IsIp6(const char* packet) { return (packet[0] >> 4) == 6; }

// Returns the destination host of a packet, or -1. It is the last byte of both kinds of address.
int HostOf(const char* packet, size_t size) {
  // The bytes before the host in the destination of an IPv4 and an IPv6 header.
  constexpr char kNetwork[] = {10, static_cast<char>(214), 0};
  constexpr char kNetwork6[15] = {static_cast<char>(0xfd), 0, 2, 0x14};
  if (size >= 20 && (packet[0] >> 4) == 4 && std::memcmp(packet + 16, kNetwork, 3) == 0)
    return static_cast<uint8_t>(packet[19]) - 1;
  if (size >= 40 && IsIp6(packet) && std::memcmp(packet + 24, kNetwork6, 15) == 0)
    return static_cast<uint8_t>(packet[39]) - 1;
  return -1;
}

}  // namespace

std::string Network::Missing() {
  if (geteuid() != 0) return "network namespaces need root";
  if (access(kIp, X_OK) != 0) return absl::StrCat("there is no ", kIp);
  if (access("/dev/net/tun", R_OK | W_OK) != 0) return "there is no /dev/net/tun";
  const std::string name = absl::StrCat(kPrefix, getpid(), "-0");
  if (RunIp({"netns", "add", name}) != 0) return "`ip netns add` fails";
  RunIp({"netns", "del", name});
  return "";
}

Network::Network(int hosts, uint64_t seed) : stop_(eventfd(0, EFD_CLOEXEC)), random_(seed) {
  RemoveAbandoned();
  for (int host = 0; host < hosts; ++host) {
    const std::string name = absl::StrCat(kPrefix, getpid(), "-", host);
    names_.push_back(name);
    Ip({"netns", "add", name});
    tuns_.push_back(OpenTun(name));
    Ip({"-n", name, "link", "set", "lo", "up"});
    Ip({"-n", name, "link", "set", "eth0", "mtu", absl::StrCat(kMtu), "up"});
    Ip({"-n", name, "address", "add", absl::StrCat("10.213.0.", host + 1, "/24"), "dev", "eth0"});
    Ip({"-n", name, "address", "add", absl::StrCat(address(host), "/24"), "dev", "eth0"});
    Ip({"-n", name, "address", "add", absl::StrCat(lo_address(host), "/32"), "dev", "lo"});
    if (const std::string ip6 = address6(host); !ip6.empty())
      Ip({"-n", name, "address", "add", absl::StrCat(ip6, "/64"), "dev", "eth0", "nodad"});
  }
  router_ = std::thread([this] { Route(); });
}

Network::~Network() {
  eventfd_write(stop_, 1);
  router_.join();
  for (int tun : tuns_) close(tun);
  close(stop_);
  for (const std::string& name : names_) RunIp({"netns", "del", name});
}

std::vector<std::string> Network::Command(int host) const {
  return {kIp, "netns", "exec", names_[host]};
}

void Network::On(int host, const std::function<void()>& use) const { RunIn(names_[host], use); }

std::string Network::address(int host) const { return absl::StrCat("10.214.0.", host + 1); }

std::string Network::lo_address(int host) const { return absl::StrCat("10.215.0.", host + 1); }

std::string Network::address6(int host) const {
  if (access("/proc/net/if_inet6", F_OK) != 0) return "";
  return absl::StrCat("fd00:214::", host + 1);
}

void Network::SetWeather(const Weather& weather) {
  std::lock_guard lock(mutex_);
  weather_ = weather;
}

void Network::Cut(int from, int to, std::set<int> ports) {
  std::lock_guard lock(mutex_);
  cuts_.push_back({from, to, std::move(ports)});
}

void Network::CutOff(int host) {
  for (int other = 0; other < static_cast<int>(tuns_.size()); ++other) {
    if (other == host) continue;
    Cut(host, other);
    Cut(other, host);
  }
}

void Network::TakeDown(int host) { Ip({"-n", names_[host], "link", "set", "eth0", "down"}); }

void Network::Restore() {
  std::lock_guard lock(mutex_);
  cuts_.clear();
}

void Network::Route() {
  std::vector<pollfd> fds;
  for (int tun : tuns_) fds.push_back({tun, POLLIN, 0});
  fds.push_back({stop_, POLLIN, 0});
  std::vector<char> packet(kMtu + 1024);
  while (true) {
    int64_t wait_ns;
    {
      std::lock_guard lock(mutex_);
      wait_ns = SendDue();
    }
    const timespec timeout = absl::ToTimespec(absl::Nanoseconds(std::max<int64_t>(wait_ns, 0)));
    ppoll(fds.data(), fds.size(), wait_ns < 0 ? nullptr : &timeout, nullptr);
    if (fds.back().revents != 0) return;
    std::lock_guard lock(mutex_);
    for (size_t from = 0; from < tuns_.size(); ++from) {
      // Bounded, so that one busy host does not delay the others.
      for (int count = 0; count < 64; ++count) {
        const ssize_t size = read(tuns_[from], packet.data(), packet.size());
        if (size <= 0) break;
        Take(static_cast<int>(from), packet.data(), size);
      }
    }
  }
}

void Network::Take(int from, const char* packet, size_t size) {
  const int to = HostOf(packet, size);
  if (to < 0 || to >= static_cast<int>(tuns_.size()) || IsCut(from, to, packet, size)) return;
  if (Happens(weather_.loss)) return;
  absl::Duration delay = weather_.delay;
  if (Happens(weather_.reordered)) delay = std::max(3 * delay, absl::Milliseconds(1));
  const int copies = Happens(weather_.duplicates) ? 2 : 1;
  for (int copy = 0; copy < copies; ++copy) {
    if (delay == absl::ZeroDuration()) {
      [[maybe_unused]] const ssize_t sent = write(tuns_[to], packet, size);
    } else {
      delayed_.emplace(MonotonicNanos() + absl::ToInt64Nanoseconds(delay),
                       Delayed{to, std::string(packet, size)});
    }
  }
}

bool Network::IsCut(int from, int to, const char* packet, size_t size) const {
  return std::any_of(cuts_.begin(), cuts_.end(), [&](const Rule& rule) {
    if (rule.from != from || rule.to != to) return false;
    if (rule.ports.empty()) return true;
    const bool ip6 = IsIp6(packet);
    const size_t header = ip6 ? 40 : 4 * (packet[0] & 0xf);
    constexpr int kTcp = 6;
    return packet[ip6 ? 6 : 9] == kTcp && size >= header + 4 &&
           (rule.ports.count(Port(packet, header)) > 0 ||
            rule.ports.count(Port(packet, header + 2)) > 0);
  });
}

bool Network::Happens(double probability) {
  return probability > 0 && std::uniform_real_distribution<>()(random_) < probability;
}

int64_t Network::SendDue() {
  const int64_t now = MonotonicNanos();
  while (!delayed_.empty() && delayed_.begin()->first <= now) {
    const Delayed& due = delayed_.begin()->second;
    [[maybe_unused]] const ssize_t sent =
        write(tuns_[due.to], due.packet.data(), due.packet.size());
    delayed_.erase(delayed_.begin());
  }
  return delayed_.empty() ? -1 : delayed_.begin()->first - now;
}

}  // namespace agmm
