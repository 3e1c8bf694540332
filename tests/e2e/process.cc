#include "tests/e2e/process.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"

namespace agmm {
namespace {

constexpr absl::Duration kPoll = absl::Milliseconds(5);

std::vector<std::string> Environment(const std::map<std::string, std::string>& more) {
  std::vector<std::string> result;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const std::string name = text.substr(0, text.find('='));
    // The AGMM_ variables of the person who runs the tests must not affect them.
    if (more.count(name) == 0 && name.rfind("AGMM_", 0) != 0) result.push_back(text);
  }
  for (const auto& [name, value] : more) result.push_back(absl::StrCat(name, "=", value));
  return result;
}

std::vector<char*> Pointers(std::vector<std::string>& strings) {
  std::vector<char*> result;
  for (std::string& text : strings) result.push_back(text.data());
  result.push_back(nullptr);
  return result;
}

}  // namespace

Process::Process(const std::vector<std::string>& argv, std::string log,
                 const std::map<std::string, std::string>& environment)
    : log_(std::move(log)) {
  std::vector<std::string> arguments = argv, variables = Environment(environment);
  std::vector<char*> arg_pointers = Pointers(arguments), env_pointers = Pointers(variables);
  const int flags = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC;
  const int out = open((log_ + ".out").c_str(), flags, 0600);
  const int err = open((log_ + ".err").c_str(), flags, 0600);
  pid_ = fork();
  if (pid_ == 0) {
    // Only calls that are safe between fork and exec. If the test is killed, its programs are
    // killed, too.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, nullptr);
    // A script or nohup that runs the tests may ignore them.
    for (int each : {SIGINT, SIGTERM, SIGHUP}) signal(each, SIG_DFL);
    const int null = open("/dev/null", O_RDONLY);
    dup2(null, STDIN_FILENO);
    dup2(out, STDOUT_FILENO);
    dup2(err, STDERR_FILENO);
    execve(arg_pointers[0], arg_pointers.data(), env_pointers.data());
    _exit(127);
  }
  close(out);
  close(err);
  EXPECT_GT(pid_, 0) << "fork failed";
  if (pid_ < 0) code_ = 127;
}

// A sanitizer's abort may look like the exit that the test expects, so its report is checked here.
Process::~Process() {
  if (Running()) {
    Signal(SIGKILL);
    Wait(absl::InfiniteDuration());
  }
  const std::string log = err();
  for (const char* report : {"Sanitizer:", "runtime error:"})
    EXPECT_EQ(log.find(report), std::string::npos) << log_ << ".err:\n" << log;
}

void Process::Signal(int signal) {
  if (!code_) kill(pid_, signal);
}

void Process::Stop() {
  Signal(SIGSTOP);
  // The thread that receives the signal stops the others: until then they may still answer.
  siginfo_t info = {};
  if (!code_) {
    EXPECT_EQ(waitid(P_PID, pid_, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
  }
  EXPECT_EQ(info.si_code, CLD_STOPPED) << log_;
}

std::optional<int> Process::Wait(absl::Duration limit) {
  const Deadline deadline = Deadline::After(limit);
  while (!code_) {
    int status = 0;
    if (waitpid(pid_, &status, WNOHANG) == pid_) {
      code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    } else if (deadline.HasPassed()) {
      return std::nullopt;
    } else {
      absl::SleepFor(kPoll);
    }
  }
  return code_;
}

bool Process::HasSignal(const std::string& set, int signal) const {
  std::ifstream file(absl::StrCat("/proc/", pid_, "/status"));
  std::string word, mask;
  while (file >> word)
    if (word == set + ":" && file >> mask)
      return (std::stoull(mask, nullptr, 16) >> (signal - 1) & 1) != 0;
  return true;
}

std::string Process::out() const { return ReadFile(log_ + ".out"); }
std::string Process::err() const { return ReadFile(log_ + ".err"); }

std::string ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream contents;
  contents << file.rdbuf();
  return contents.str();
}

void WriteFile(const std::string& path, const std::string& contents) {
  std::ofstream(path, std::ios::binary) << contents;
}

}  // namespace agmm
