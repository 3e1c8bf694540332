// agmmd: owns this host's devices and serves them to the world.
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <poll.h>
#include <spdlog/spdlog.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <future>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "absl/synchronization/mutex.h"
#include "daemon/config/config.h"
#include "daemon/daemon.h"
#include "daemon/observe/log.h"

namespace agmm {
namespace {

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kInUse = 3, kRefused = 4 };

// How long a stop may take before the process ends anyhow.
constexpr int kStopLimitSeconds = 2;

struct Flags {
  std::string config, socket, log_level;
  bool check_config = false;
};

absl::StatusOr<Config> ReadConfig(const Flags& flags) {
  if (!flags.socket.empty())
    if (const absl::Status path = CheckSocketPath(flags.socket); !path.ok()) return path;
  if (!flags.log_level.empty())
    if (const absl::Status level = CheckLogLevel(flags.log_level); !level.ok()) return level;
  absl::StatusOr<Config> config =
      flags.config.empty() ? DefaultConfig(flags.socket) : LoadConfig(flags.config);
  if (!config.ok()) return config;
  if (!flags.socket.empty()) config->socket = flags.socket;
  if (!flags.log_level.empty()) config->log_level = flags.log_level;
  return config;
}

void LogOfGrpc(gpr_log_func_args* args) {
  spdlog::debug("grpc: {} ({}:{})", args->message, args->file, args->line);
}

// Ends when a signal asks for it, or when the sequencer refuses this daemon.
class Stop {
 public:
  Stop() {
    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGINT);
    sigaddset(&signals, SIGTERM);
    // Before any thread is made: all of them inherit it.
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    signals_ = signalfd(-1, &signals, SFD_CLOEXEC);
    refusals_ = eventfd(0, EFD_CLOEXEC);
  }
  bool ok() const { return signals_ >= 0 && refusals_ >= 0; }

  void Refuse(const absl::Status& why) {
    std::lock_guard lock(mutex_);
    refusal_ = why;
    const uint64_t one = 1;
    if (write(refusals_, &one, sizeof(one)) != sizeof(one)) std::abort();
  }
  absl::Status Wait() {
    pollfd fds[] = {{signals_, POLLIN, 0}, {refusals_, POLLIN, 0}};
    while (poll(fds, 2, -1) < 0 && errno == EINTR) {
    }
    std::lock_guard lock(mutex_);
    return refusal_;
  }

 private:
  int signals_ = -1, refusals_ = -1;
  std::mutex mutex_;
  absl::Status refusal_;
};

int Run(const Config& config) {
  std::signal(SIGPIPE, SIG_IGN);
  // Debian builds absl with assertions, and so with a search for lock cycles in every lock that
  // gRPC takes.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_function(LogOfGrpc);
  Stop stop;
  if (!stop.ok()) {
    spdlog::error("signals cannot be received: {}", std::strerror(errno));
    return kFailed;
  }
  // Held for the life of the process: when the last user of gRPC lets go, its shutdown may wait 10
  // s for a thread of its own that polls. Behind `stop`, whose signal mask its threads inherit.
  grpc_init();
  spdlog::info("agmmd {}, pid {}, node {} of cluster {}, config hash {}", AGMM_VERSION, getpid(),
               config.node().name, config.cluster, config.hash);
  absl::StatusOr<std::unique_ptr<Daemon>> daemon =
      Daemon::Start(config, [&stop](const absl::Status& why) { stop.Refuse(why); });
  if (!daemon.ok()) {
    spdlog::error("{}", std::string(daemon.status().message()));
    return absl::IsAlreadyExists(daemon.status()) ? kInUse : kFailed;
  }
  const absl::Status refused = stop.Wait();
  if (refused.ok()) {
    spdlog::info("stopping");
  } else {
    spdlog::error("{}", std::string(refused.message()));
  }
  std::promise<void> ended;
  std::thread limit([has_ended = ended.get_future()] {
    if (has_ended.wait_for(std::chrono::seconds(kStopLimitSeconds)) == std::future_status::ready)
      return;
    spdlog::error("not everything ended within {} s; ending anyhow", kStopLimitSeconds);
    _exit(kFailed);
  });
  daemon->reset();
  ended.set_value();
  limit.join();
  return refused.ok() ? kOk : kRefused;
}

int Main(int argc, char** argv) {
  CLI::App app(
      "The agmm daemon. Without arguments: a world of this machine's cores, on a unix socket.",
      "agmmd");
  Flags flags;
  app.add_option("--config", flags.config, "configuration file");
  app.add_flag("--check-config", flags.check_config,
               "check the configuration, print a summary and exit");
  app.add_option("--socket", flags.socket, "path of the unix socket; overrides the configuration");
  app.add_option("--log-level", flags.log_level,
                 "debug, info, warn or error; overrides the configuration");
  app.set_version_flag("--version", std::string("agmmd " AGMM_VERSION));
  app.footer(
      "Exit codes: 0 stopped by a signal, 2 flags or configuration, 3 address in use,\n"
      "4 refused by the sequencer, 1 anything else.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  const absl::StatusOr<Config> config = ReadConfig(flags);
  if (!config.ok()) {
    std::fprintf(stderr, "agmmd: %s\n", std::string(config.status().message()).c_str());
    return kUsage;
  }
  if (flags.check_config) {
    std::fputs(Summary(*config).c_str(), stdout);
    return kOk;
  }
  SetUpLog(config->log_level);
  return Run(*config);
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) { return agmm::Main(argc, argv); }
