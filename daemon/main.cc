// agmmd: owns this host's devices and serves them to the world.
#include <grpc/grpc.h>
#include <grpc/support/log.h>
#include <malloc.h>
#include <spdlog/sinks/stdout_sinks.h>
#include <spdlog/spdlog.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <csignal>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"
#include "absl/synchronization/mutex.h"
#include "daemon/config/config.h"
#include "daemon/daemon.h"
#include "daemon/devices.h"
#include "daemon/transport/ucx_config.h"
#include "kernels/base/host_limits.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/base/version.h"

namespace agmm {
namespace {

enum ExitCode { kOk = 0, kFailed = 1, kUsage = 2, kInUse = 3, kRefused = 4 };

// Time for a stop before the process exits anyway.
constexpr int kStopLimitSeconds = 2;

struct Flags {
  std::string config, node, socket, log_level;
  bool check_config = false, until_stdin_ends = false;
};

absl::StatusOr<Config> ReadConfig(const Flags& flags) {
  if (!flags.socket.empty()) AGMM_RETURN_IF_ERROR(CheckSocketPath(flags.socket));
  if (!flags.log_level.empty()) AGMM_RETURN_IF_ERROR(CheckLogLevel(flags.log_level));
  if (!flags.node.empty() && flags.config.empty()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "--node %s names a node of a configuration; give its file with --config", flags.node));
  }
  absl::StatusOr<Config> config = flags.config.empty()
                                      ? DefaultConfig(flags.socket)
                                      : LoadConfig(flags.config, NodeNamesHere(flags.node));
  if (!config.ok()) return config;
  if (!flags.socket.empty()) config->socket = flags.socket;
  if (!flags.log_level.empty()) config->log_level = flags.log_level;
  config->version = Version();
  return config;
}

// Sends the log to stderr.
void SetUpLog() {
  auto logger =
      std::make_shared<spdlog::logger>("agmmd", std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_pattern("%Y-%m-%dT%H:%M:%S.%e %-5l %v");
  logger->flush_on(spdlog::level::debug);
  spdlog::set_default_logger(std::move(logger));
}

void LogOfGrpc(gpr_log_func_args* args) {
  spdlog::debug("grpc: {} ({}:{})", args->message, args->file, args->line);
}

// The signals that stop the daemon. SIGHUP, which is sent when a terminal closes, and SIGINT stay
// ignored if the process was started so: nohup ignores SIGHUP, and scripts ignore SIGINT in
// programs that they start in the background. SIGTERM always stops it, as service managers expect.
sigset_t StopSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  for (const int signal : {SIGINT, SIGHUP}) {
    struct sigaction action = {};
    // A blocked signal would be taken even if it is ignored.
    if (sigaction(signal, nullptr, &action) == 0 && action.sa_handler != SIG_IGN)
      sigaddset(&signals, signal);
  }
  return signals;
}

// Waits for a signal, or for the sequencer to refuse this daemon.
class Stop {
 public:
  // Runs before any other thread starts, because all threads inherit the mask.
  Stop() {
    pthread_sigmask(SIG_BLOCK, &signals_, nullptr);
    thread_ = std::thread([this] { Watch(); });
  }
  ~Stop() {
    {
      std::lock_guard lock(mutex_);
      over_ = true;
    }
    // Wakes the thread, unless a signal has ended it.
    pthread_kill(thread_.native_handle(), SIGTERM);
    thread_.join();
  }
  void Refuse(const absl::Status& why) {
    std::lock_guard lock(mutex_);
    over_ = true;
    refusal_ = why;
    changed_.notify_all();
  }
  // Until this call a signal ends the process at once, because a start may wait for other programs.
  void SetStarted() {
    std::lock_guard lock(mutex_);
    started_ = true;
  }
  absl::Status Wait() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return over_; });
    return refusal_;
  }

 private:
  void Watch() {
    int signal = 0;
    sigwait(&signals_, &signal);
    std::lock_guard lock(mutex_);
    if (over_) return;
    const bool during_start = !started_;
    spdlog::info("received SIG{}{}, stopping", sigabbrev_np(signal),
                 during_start ? " during the start" : "");
    if (during_start) _exit(kOk);
    over_ = true;
    changed_.notify_all();
  }

  const sigset_t signals_ = StopSignals();
  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  bool started_ = false, over_ = false;
  absl::Status refusal_;
  std::thread thread_;
};

// Stops the daemon when stdin ends. The kernel closes a pipe's other end even if the program there
// was killed.
void StopAtEndOfStdin() {
  std::thread([] {
    char ignored[256];
    ssize_t count = 0;
    do {
      count = read(STDIN_FILENO, ignored, sizeof(ignored));
    } while (count > 0 || (count < 0 && errno == EINTR));
    spdlog::info("stdin has ended");
    kill(getpid(), SIGTERM);
  }).detach();
}

// Makes a write beyond the file size limit fail, and reports this once. By default the signal would
// end the process silently.
void SurviveFileSizeLimit() {
  std::signal(SIGXFSZ, [](int) {
    static std::atomic<bool> said = false;
    if (said.exchange(true)) return;
    constexpr char kText[] =
        "agmmd: received SIGXFSZ: a file would exceed the limit of file sizes (ulimit -f), and is "
        "not written; raise the limit\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  });
}

// Every client and every peer needs some. Errors: RESOURCE_EXHAUSTED if there are too few, because
// libraries end the process if they run out of them.
absl::Status RaiseDescriptorLimit(size_t nodes) {
  constexpr size_t kAlone = 64, kOfAPeer = 16;
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return absl::OkStatus();
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  const size_t least = kAlone + kOfAPeer * (nodes - 1);
  if (limit.rlim_cur >= least) return absl::OkStatus();
  return absl::ResourceExhaustedError(
      absl::StrFormat("%d descriptors may be open, and a daemon of a world of %s takes up to %d; "
                      "raise ulimit -n",
                      limit.rlim_cur, Counted(nodes, "node"), least));
}

// The program and its libraries, gRPC's and UCX's memory, and messages in flight.
constexpr int64_t kBaseBytes = int64_t{256} << 20;
// Arenas of malloc. Each takes 64 MiB, and briefly twice as much.
constexpr int kArenas = 2;
constexpr int64_t kArenaBytes = int64_t{64} << 20;
// Threads of the daemon, gRPC and UCX, without the devices' workers and gRPC's two per core.
constexpr int kThreads = 17;
// The default of glibc if `ulimit -s` is unlimited.
constexpr int64_t kStackBytes = int64_t{2} << 20;

// Under a limit of the address space (ulimit -v), keeps malloc from taking an arena for each
// thread, and checks that heaps, stacks, libraries and their buffers fit. Must run before gRPC and
// UCX start, because they end the process if they cannot get memory or a thread. Errors:
// RESOURCE_EXHAUSTED.
absl::Status FitAddressSpace(const Config& config) {
  rlimit space{}, stack{};
  if (getrlimit(RLIMIT_AS, &space) != 0 || space.rlim_cur == RLIM_INFINITY) return absl::OkStatus();
  mallopt(M_ARENA_MAX, kArenas);
  const bool bounded = getrlimit(RLIMIT_STACK, &stack) == 0 && stack.rlim_cur != RLIM_INFINITY;
  const int64_t stack_bytes = bounded ? static_cast<int64_t>(stack.rlim_cur) : kStackBytes;
  int64_t needed = kBaseBytes + (kArenas + 1) * kArenaBytes;
  int64_t threads = kThreads + 2 * int64_t{UsableCores()};
  for (const DeviceConfig& device : config.devices) {
    needed += device.heap_bytes;
    threads += device.threads;
  }
  needed += threads * stack_bytes;
  const auto limit = static_cast<int64_t>(space.rlim_cur);
  if (limit >= needed) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrFormat(
      "the process may have %s of address space, and this configuration takes up to %s; raise the "
      "limit (ulimit -v), or give the devices smaller heaps or fewer threads",
      FormatBytes(limit), FormatBytes(needed)));
}

// Sends `state`, lines such as "READY=1", to the socket of the service manager that NOTIFY_SOCKET
// names, as the manual of sd_notify(3) shows, so that agmmd does not need libsystemd. Does nothing
// if the variable is not set. Errors: INVALID_ARGUMENT if the name is not valid for a unix socket;
// otherwise errno's.
absl::Status NotifyServiceManager(absl::string_view state) {
  const char* const name = std::getenv("NOTIFY_SOCKET");
  if (name == nullptr || *name == '\0') return absl::OkStatus();
  const absl::string_view path(name);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  // '@' stands for the zero byte of an abstract socket's name.
  if ((path[0] != '/' && path[0] != '@') || path.size() >= sizeof(address.sun_path)) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "NOTIFY_SOCKET=%s is not a path or an abstract name of at most %d characters", path,
        sizeof(address.sun_path) - 1));
  }
  std::copy(path.begin(), path.end(), address.sun_path);
  if (path[0] == '@') address.sun_path[0] = '\0';
  const int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup close_fd = [fd] { close(fd); };
  // Without the terminating zero byte, because it would become part of an abstract name.
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + path.size());
  if (fd < 0 || sendto(fd, state.data(), state.size(), MSG_NOSIGNAL,
                       reinterpret_cast<const sockaddr*>(&address), size) < 0) {
    return absl::ErrnoToStatus(errno,
                               absl::StrFormat("nothing can be sent to NOTIFY_SOCKET=%s", path));
  }
  return absl::OkStatus();
}

// `state`: "READY=1", "STOPPING=1" or empty. `text`: shown by `systemctl status`.
void Notify(absl::string_view state, absl::string_view text) {
  const std::string line = absl::StrReplaceAll(text, {{"\n", " "}});
  const absl::Status sent =
      NotifyServiceManager(absl::StrCat(state, state.empty() ? "" : "\n", "STATUS=", line));
  if (!sent.ok()) spdlog::warn("could not notify systemd: {}", sent.ToString());
}

// Ends the process if the stop takes too long. Uses a signal, because a daemon that cannot start a
// thread is the one whose stop may hang. Asks the kernel, because the thread sanitizer's _exit
// would report the threads that still run as leaks.
void LimitStop() {
  std::signal(SIGALRM, [](int) {
    constexpr char kText[] = "agmmd: the stop took longer than 2 s; exiting anyway\n";
    [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
    syscall(SYS_exit_group, kFailed);
  });
  static_assert(kStopLimitSeconds == 2);  // as the text says
  sigset_t set;                           // the parent process may have blocked it
  sigemptyset(&set);
  sigaddset(&set, SIGALRM);
  pthread_sigmask(SIG_UNBLOCK, &set, nullptr);
  alarm(kStopLimitSeconds);
}

// Reports an uncaught exception: a lack of memory or threads, in a library or on one of its
// threads.
void EndWithReason() {
  bool exhausted = false;
  try {
    if (const std::exception_ptr thrown = std::current_exception()) std::rethrow_exception(thrown);
  } catch (const std::bad_alloc&) {
    exhausted = true;
  } catch (const std::system_error& error) {
    exhausted = error.code() == std::errc::resource_unavailable_try_again ||
                error.code() == std::errc::not_enough_memory;
  } catch (...) {
  }
  if (!exhausted) std::abort();  // with a core dump, because it is a bug
  // Allocates no memory.
  constexpr char kText[] =
      "agmmd: out of memory or threads; give the daemon more memory, or raise the limits of "
      "address space (ulimit -v) and of processes (ulimit -u)\n";
  [[maybe_unused]] const ssize_t written = write(STDERR_FILENO, kText, sizeof(kText) - 1);
  _exit(kFailed);
}

// Keeps up to this much freed memory at the end of an arena. By default glibc returns an upload's
// chunks of a few MiB to the kernel when they are freed, and then allocates them again page by
// page.
constexpr int kKeptBytes = 16 << 20;

// Returns the socket's folder if it does not exist, so that the daemon will make it; else "".
std::string MissingFolder(const Config& config) {
  const std::string folder = config.socket.substr(0, config.socket.rfind('/'));
  return access(folder.c_str(), F_OK) != 0 && errno == ENOENT ? folder : "";
}

int Run(const Config& config, bool until_stdin_ends, Stop* stop) {
  mallopt(M_MMAP_THRESHOLD, kKeptBytes);
  mallopt(M_TRIM_THRESHOLD, kKeptBytes);
  // No fastbins: each call and each job allocates more than 1 KiB at once, for which glibc would
  // first merge all fastbins.
  mallopt(M_MXFAST, 0);
  std::signal(SIGPIPE, SIG_IGN);
  SurviveFileSizeLimit();
  if (const absl::Status enough = RaiseDescriptorLimit(config.nodes.size()); !enough.ok()) {
    spdlog::error("{}", std::string(enough.message()));
    return kFailed;
  }
  // Disabled, because Debian builds absl with assertions, which would search for lock cycles at
  // each lock of gRPC.
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  gpr_set_log_function(LogOfGrpc);
  // Never shut down, because gRPC's shutdown after its last user may wait 10 s for a polling
  // thread. Called after `stop` was created, because gRPC's threads inherit its signal mask.
  grpc_init();
  const std::string named =
      config.named_by.empty() ? "" : absl::StrFormat(" (named by %s)", config.named_by);
  spdlog::info("agmmd {}, pid {}, node {}{} of cluster {}, config hash {}", config.version,
               getpid(), config.node().name, named, config.cluster, config.hash);
  // Before `daemon`, so that the folder is empty when it is removed.
  const absl::Cleanup remove_folder = [folder = until_stdin_ends ? MissingFolder(config) : ""] {
    if (!folder.empty()) rmdir(folder.c_str());
  };
  absl::StatusOr<std::unique_ptr<Daemon>> daemon =
      Daemon::Start(config, [stop](const absl::Status& why) { stop->Refuse(why); });
  if (!daemon.ok()) {
    spdlog::error("{}", std::string(daemon.status().message()));
    Notify("", daemon.status().message());
    return absl::IsAlreadyExists(daemon.status()) ? kInUse : kFailed;
  }
  // Called before the daemon reports that it is ready: from then on, a signal stops it in good
  // order.
  stop->SetStarted();
  if (until_stdin_ends) StopAtEndOfStdin();
  // Ready means that it answers calls, not that the world is complete: that depends on other hosts,
  // which may start later, and a start that waits for them would run into systemd's limit.
  Notify("READY=1",
         absl::StrFormat("serving as node %s of cluster %s", config.node().name, config.cluster));
  const absl::Status refused = stop->Wait();
  if (refused.ok()) {
    Notify("STOPPING=1", "stopping");
  } else {
    spdlog::error("{}", std::string(refused.message()));
    Notify("STOPPING=1", refused.message());
  }
  LimitStop();
  daemon->reset();
  alarm(0);
  return refused.ok() ? kOk : kRefused;
}

// Prints what the daemon would do, and what only a start on the right host can check.
void PrintCheck(const Config& config) {
  std::fputs(Summary(config).c_str(), stdout);
  std::fputs("not checked: that the host has these GPUs, their memory and these ports\n", stdout);
  int64_t heaps = 0;
  for (const DeviceConfig& device : config.devices)
    if (device.kind == "cpu") heaps += device.heap_bytes;
  if (heaps <= UsableMemory()) return;
  // Not an error, because the configuration may be for another host.
  std::fprintf(
      stderr,
      "agmmd: the cpu devices' heaps of %s in all do not fit into the %s that a process may "
      "use on this host; give them smaller ones, unless the daemon runs elsewhere\n",
      FormatBytes(heaps).c_str(), FormatBytes(UsableMemory()).c_str());
}

int Main(int argc, char** argv) {
  std::set_terminate(EndWithReason);
  CLI::App app(
      "The agmm daemon. Without arguments: a world of this machine's cores, on a unix socket.",
      "agmmd");
  Flags flags;
  app.add_option("--config", flags.config, "configuration file");
  app.add_option("--node", flags.node,
                 "name of this daemon's node; overrides AGMM_NODE, the configuration and, without\n"
                 "these, the host's name");
  app.add_flag("--check-config", flags.check_config,
               "check the configuration, print a summary, and exit; memory, GPUs and ports are\n"
               "checked at start");
  app.add_option("--socket", flags.socket, "path of the unix socket; overrides the configuration");
  app.add_option("--log-level", flags.log_level,
                 "debug, info, warn or error; overrides the configuration");
  app.add_flag("--until-stdin-ends", flags.until_stdin_ends,
               "stop when stdin ends, such as a pipe from a program that has ended; at the end,\n"
               "remove the socket's folder if this daemon made it and it is empty");
  app.set_version_flag("--version", absl::StrCat("agmmd ", Version()));
  app.footer(
      "Exit codes: 0 stopped by a signal, 2 flags or configuration, 3 address in use,\n"
      "4 refused by the sequencer, 1 anything else.");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? kOk : kUsage;
  }
  SetUpLog();
  // Before `stop`, which needs to know whether SIGHUP was ignored.
  transport::ReturnSignals();
  // Created before the configuration is read, because that may wait for the writer of a pipe. With
  // --check-config, a signal ends the process as usual.
  std::optional<Stop> stop;
  if (!flags.check_config) stop.emplace();
  const absl::StatusOr<Config> config = ReadConfig(flags);
  if (!config.ok()) {
    std::fprintf(stderr, "agmmd: %s\n", std::string(config.status().message()).c_str());
    return kUsage;
  }
  if (flags.check_config) {
    PrintCheck(*config);
    return kOk;
  }
  spdlog::set_level(spdlog::level::from_str(config->log_level));
  SetUpDrivers();
  if (absl::Status fits = FitAddressSpace(*config); !fits.ok()) {
    spdlog::error("{}", std::string(fits.message()));
    return kFailed;
  }
  return Run(*config, flags.until_stdin_ends, &*stop);
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) { return agmm::Main(argc, argv); }
