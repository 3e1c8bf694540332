// cuda_probe: the behaviour of the driver that the CUDA device relies on, as a list of checks.
//
//   cuda_probe [--json FILE] [--driver LIBRARY] [NAME...]
//
// Exits with 0 if every `must` that applies holds here, with 1 if one does not, with 2 without a
// driver. tests/gpu/README.md describes the output.
#include "tests/gpu/probe.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "kernels/cuda/cuda_device.h"

// The fat binary of probe.cu.
asm(".section .rodata\n.balign 16\nprobe_image: .incbin \"" AGMM_PROBE_FATBIN "\"\n.previous\n");
extern "C" const char probe_image[];

namespace {

constexpr int kLimitSeconds = 60;
constexpr const char* kKinds[] = {"must", "may", "fact"};

struct Result {
  std::string state;  // pass, fail, skip, fact
  std::string text;
};

std::vector<ProbeCheck> AllChecks() {
  std::vector<ProbeCheck> all;
  for (const auto& table : {EventChecks(), MemoryChecks(), ProductChecks(), KernelChecks(),
                            Measurements(), SignalChecks(), LostChecks()}) {
    all.insert(all.end(), table.begin(), table.end());
  }
  return all;
}

Result Run(Probe& probe, const ProbeCheck& check, const std::string& driver) {
  if (std::string error = probe.Open(driver, 2); !error.empty()) return {"fail", error};
  char name[128] = {};
  probe.cu.cuDeviceGetName(name, sizeof name, 0);
  probe.model = std::strstr(name, "MODEL");
  if (check.kind == ProbeCheck::kFact && probe.model) {
    probe.Skip("model: no timings");
  } else {
    check.run(probe);
  }
  const std::string failure = probe.failure;
  // Errors here are ignored, because some checks leave a context in which every call fails.
  if (probe.kernel_library && !probe.abandoned) probe.cu.cuLibraryUnload(probe.kernel_library);
  if (!probe.abandoned) probe.Close();
  if (!failure.empty()) {
    return {"fail", failure + (probe.text.empty() ? "" : "; before: " + probe.text)};
  }
  if (!probe.skipped.empty()) return {"skip", probe.skipped};
  return {check.kind == ProbeCheck::kFact ? "fact" : "pass", probe.text};
}

// Runs the check in a separate process, because some checks leave an unusable context, and some may
// hang.
Result RunApart(const ProbeCheck& check, const std::string& driver) {
  int ends[2];
  if (pipe(ends)) return {"fail", "no pipe"};
  std::fflush(nullptr);
  const pid_t child = fork();
  if (child == 0) {
    alarm(kLimitSeconds);
    Probe probe;
    const Result result = Run(probe, check, driver);
    const std::string line = result.state + " " + result.text;
    if (write(ends[1], line.data(), line.size()) < 0) _exit(2);
    if (probe.abandoned) _exit(0);
    // exit() runs destructors, in which the model looks for leaks.
    std::exit(0);
  }
  close(ends[1]);
  std::string line;
  char bytes[512];
  for (ssize_t got; (got = read(ends[0], bytes, sizeof bytes)) > 0;) line.append(bytes, got);
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  if (WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM) {
    return {"fail", "did not end within " + std::to_string(kLimitSeconds) + " s"};
  }
  if (WIFSIGNALED(status)) return {"fail", std::string("died: ") + strsignal(WTERMSIG(status))};
  const size_t space = line.find(' ');
  if (status || space == std::string::npos) return {"fail", "ended with an error; " + line};
  return {line.substr(0, space), line.substr(space + 1)};
}

// Keeps the GPUs open during its lifetime, in a process beside the checks: a GPU that no process
// has open goes to sleep between two checks, and takes seconds to wake up. Does nothing if a GPU
// accepts only one process, because the check needs it.
class KeptOpen {
 public:
  explicit KeptOpen(const std::string& driver) {
    char byte = 0;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends_)) return;
    std::fflush(nullptr);
    child_ = fork();
    if (child_ == 0) {
      close(ends_[1]);
      alarm(kLimitSeconds);
      Probe probe;
      if (!Shared(probe, driver) || !probe.Open(driver, kMost).empty()) _exit(1);
      alarm(0);
      if (write(ends_[0], &byte, 1) == 1) _exit(read(ends_[0], &byte, 1) != 0);
      _exit(1);
    }
    close(ends_[0]);
    // Waits until the GPUs are open, because the first check may measure free memory.
    if (read(ends_[1], &byte, 1) <= 0) std::fprintf(stderr, "cuda_probe: GPUs are not kept open\n");
  }
  ~KeptOpen() {
    close(ends_[1]);
    if (child_ > 0) waitpid(child_, nullptr, 0);
  }

 private:
  static constexpr int kMost = 2;  // GPUs, as in Run

  // Returns true if each GPU accepts several processes at a time. Does not create a context.
  static bool Shared(Probe& probe, const std::string& driver) {
    int count = 0;
    if (!probe.cu.Open(driver).empty() || probe.cu.cuInit(0) != CUDA_SUCCESS ||
        probe.cu.cuDeviceGetCount(&count) != CUDA_SUCCESS) {
      return false;
    }
    for (int gpu = 0; gpu < std::min(count, kMost); ++gpu) {
      int mode = 0;
      if (probe.cu.cuDeviceGetAttribute(&mode, CU_DEVICE_ATTRIBUTE_COMPUTE_MODE, gpu) !=
              CUDA_SUCCESS ||
          mode != CU_COMPUTEMODE_DEFAULT) {
        return false;
      }
    }
    return true;
  }

  int ends_[2] = {-1, -1};
  pid_t child_ = -1;
};

std::string Quoted(const std::string& text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c == '\n' ? ' ' : c;
  }
  return quoted + "\"";
}

// Returns false if the file cannot be written.
bool WriteJson(const std::string& path, const std::string& machine, const std::string& rows) {
  FILE* file = std::fopen(path.c_str(), "w");
  if (file) {
    std::fprintf(file, "{\n  \"machine\": %s,\n  \"checks\": [%s\n  ]\n}\n",
                 Quoted(machine).c_str(), rows.c_str());
    if (std::fclose(file) == 0) return true;
  }
  std::fprintf(stderr, "cuda_probe: cannot write %s\n", path.c_str());
  return false;
}

void Describe(Probe& probe) {
  char name[128] = {};
  int version = 0, count = 0;
  probe.Check("cuDeviceGetName", probe.cu.cuDeviceGetName(name, sizeof name, 0));
  probe.Check("cuDriverGetVersion", probe.cu.cuDriverGetVersion(&version));
  probe.Check("cuDeviceGetCount", probe.cu.cuDeviceGetCount(&count));
  probe.text =
      std::string(name) + ", CUDA " + std::to_string(version) + ", GPUs " + std::to_string(count);
}

}  // namespace

void Probe::Failed(const std::string& call, CUresult result) { Fail(call + ": " + Name(result)); }

std::string Probe::Name(CUresult result) const {
  const char* name = nullptr;
  cu.cuGetErrorName(result, &name);
  return name ? name : std::to_string(result);
}

int Probe::Attribute(CUdevice_attribute which) {
  int value = 0;
  Check("cuDeviceGetAttribute", cu.cuDeviceGetAttribute(&value, which, 0));
  return value;
}

void Probe::Fail(const std::string& why) {
  if (failure.empty()) failure = why;
}

void Probe::Expect(CUresult result, CUresult wanted, const std::string& call) {
  if (result == wanted) return;
  Failed(call + " instead of " + std::to_string(wanted), result);
}

CUfunction Probe::Kernel(const char* name) {
  CUkernel kernel = nullptr;
  CUfunction function = nullptr;
  if (!kernel_library) {
    Check("cuLibraryLoadData", cu.cuLibraryLoadData(&kernel_library, probe_image, nullptr, nullptr,
                                                    0, nullptr, nullptr, 0));
  }
  Check("cuLibraryGetKernel", cu.cuLibraryGetKernel(&kernel, kernel_library, name));
  Check("cuKernelGetFunction", cu.cuKernelGetFunction(&function, kernel));
  return function;
}

void Probe::Launch(const char* name, int blocks, int threads, CUstream stream, void** arguments) {
  const CUfunction function = Kernel(name);
  if (!failure.empty()) return;
  Check("cuLaunchKernel",
        cu.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream, arguments, nullptr));
}

int main(int argc, char** argv) {
  agmm::SetUpCudaEnvironment();  // as in a daemon, whose streams the checks represent
  std::string json, driver = "libcuda.so.1";
  std::vector<std::string> names;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if ((argument == "--json" || argument == "--driver") && i + 1 < argc) {
      (argument == "--json" ? json : driver) = argv[++i];
    } else if (argument.starts_with("-")) {
      std::fprintf(stderr, "cuda_probe [--json FILE] [--driver LIBRARY] [NAME...]\n");
      return 2;
    } else {
      names.push_back(argument);
    }
  }
  const Result machine = RunApart({ProbeCheck::kMust, "", "", Describe}, driver);
  if (machine.state != "pass") {
    std::fprintf(stderr, "cuda_probe: %s\n", machine.text.c_str());
    return 2;
  }
  std::printf("%s\n\n%-5s %-5s %-28s %s\n", machine.text.c_str(), "kind", "is", "check", "what");
  const KeptOpen open(driver);
  std::string rows;
  if (!json.empty() && !WriteJson(json, machine.text, rows)) return 2;
  std::string failed;
  for (const ProbeCheck& check : AllChecks()) {
    if (!names.empty() && std::find(names.begin(), names.end(), check.name) == names.end()) {
      continue;
    }
    const Result result = RunApart(check, driver);
    if (check.kind == ProbeCheck::kMust && result.state == "fail") {
      failed += std::string(failed.empty() ? "" : ", ") + check.name;
    }
    std::printf("%-5s %-5s %-28s %s%s%s\n", kKinds[check.kind], result.state.c_str(), check.name,
                check.what, result.text.empty() ? "" : ": ", result.text.c_str());
    rows += std::string(rows.empty() ? "" : ",") + "\n    {\"kind\": \"" + kKinds[check.kind] +
            "\", \"name\": " + Quoted(check.name) + ", \"is\": " + Quoted(result.state) +
            ", \"what\": " + Quoted(check.what) + ", \"text\": " + Quoted(result.text) + "}";
    // After every check, because a time limit may end the program.
    if (!json.empty() && !WriteJson(json, machine.text, rows)) return 2;
  }
  std::printf("\n%s%s\n",
              failed.empty() ? "every must holds" : "these musts do not hold: ", failed.c_str());
  return failed.empty() ? 0 : 1;
}
