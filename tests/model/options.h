// The options in AGMM_MODEL, and the functions with which the model ends a test.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace model {

enum class Peers { kAll, kPairs, kNone };
enum class Calls { kFree, kBlock, kLock };
// The three behaviours of a wait for an event of a lost GPU; README.md describes them.
enum class Orphans { kReleased, kStuck, kRefused };
// The time at which work runs, and the choice of the next operation; README.md describes them.
enum class Order { kEager, kLazy, kRandom, kOldest, kNewest };

struct Options {
  int gpus = 2;                // 1 to 16
  int64_t memory = 1LL << 30;  // bytes a GPU
  Peers peers = Peers::kAll;
  int channels = 8;  // in-order hardware channels a GPU, 1 to 32
  int depth = 1024;  // operations that a channel holds before a caller blocks
  Order order = Order::kEager;
  // Allocations, frees and the like wait for all work (block), and all other calls wait for them
  // meanwhile (lock).
  Calls calls = Calls::kFree;
  Orphans orphans = Orphans::kReleased;
  uint64_t seed = 1;
  int driver = 13000;  // the driver's version; 0 is a stub
  int arch = 90;       // the GPUs' compute capability, 10 times
  // The number of the machine to which the GPUs belong: processes with the same number share them.
  uint32_t machine = 0;  // set to the process's id unless given
  std::string report;    // a file that gets counts at exit, and each finding

  struct Failure {  // the call-th call of `name` returns `code`
    std::string name;
    int64_t call = 0;
    int code = 0;  // 0: out of memory for allocations, else CUDA_ERROR_UNKNOWN
  };
  std::vector<Failure> failures;
  struct Loss {  // GPU `gpu` is lost when it begins its operation-th copy, memset or kernel
    int gpu = 0;
    int64_t operation = 0;
    int code = 0;  // 0: CUDA_ERROR_LAUNCH_FAILED
  };
  std::vector<Loss> losses;
  struct Hang {  // GPU `gpu` never ends its operation-th copy, memset or kernel
    int gpu = 0;
    int64_t operation = 0;
  };
  std::vector<Hang> hangs;
};

// The options of this process, from AGMM_MODEL at the first call.
const Options& TheOptions();

// Ends the process: `finding` in one line on stderr and in the report, with AGMM_MODEL.
[[noreturn]] void Fail(const std::string& finding);
// Appends a line to the report, where there is one.
void Report(const std::string& line);

// printf into a string.
[[gnu::format(printf, 1, 2)]] std::string Format(const char* format, ...);

}  // namespace model
