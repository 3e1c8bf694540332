// GPUs, streams, channels and events, and the engine that runs their work.
#pragma once

#include <cuda.h>

#include <chrono>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "tests/model/compute.h"
#include "tests/model/history.h"
#include "tests/model/memory.h"
#include "tests/model/options.h"
#include "tests/model/pinned_reads.h"

namespace model {

struct Channel;

// A place in a channel, which is reached once the channel has done this number of operations.
struct Point {
  Channel* channel = nullptr;
  uint64_t count = 0;
};

// One recording of an event.
struct Record {
  Point point;
  std::shared_ptr<const Captured> captured;
  Known known;                                 // once it is reached; see Compute
  bool alone = false;                          // its stream has never waited for another one
  std::chrono::steady_clock::time_point time;  // once it is reached
};

// Work (`run` or `compute`), a recording (`sets`) or a wait (`awaits`).
struct Operation {
  std::string name;  // for people; Submit adds its number, stream and GPU
  std::vector<Access> accesses;
  int pieces = 1;  // run once each, in an order by the seed
  std::function<void(int piece)> run;
  std::shared_ptr<Record> sets, awaits;
  std::shared_ptr<ComputeLaunch> compute;  // of a kernel that runs as PTX, in place of `run`

  uint64_t number = 0;  // in the order of submission
  int stream = 0;
  bool copies = false;    // between places of memory
  Known host_knew;        // when it was submitted
  std::vector<int> left;  // the pieces that have not run, once it has begun
  bool begun = false;
  bool hangs = false;  // once it has begun
};

struct Gpu;

// Runs its operations one after the other.
struct Channel {
  Gpu* gpu = nullptr;
  int index = 0;
  std::deque<Operation> queue;
  uint64_t done = 0;  // operations so far

  Point end() { return {this, done + queue.size()}; }
};

// A GPU and its primary context. The context's handle is the address of this.
struct Gpu {
  int index = 0;
  int retained = 0;
  CUresult error = CUDA_SUCCESS;  // the sticky one
  std::deque<Channel> channels;
  int streams = 0;    // created so far
  int64_t begun = 0;  // copies, memsets and kernels
};

struct Stream {
  int number = 0;
  Gpu* gpu = nullptr;
  Channel* channel = nullptr;
  Point last;
  int priority = 0;
  bool alone = true;  // has never waited for another stream
};

struct Event {
  Gpu* gpu = nullptr;
  bool timing = false;
  std::shared_ptr<Record> record;  // null: never recorded
};

// All of the model's state. Used under `mutex`.
class Machine {
 public:
  Machine();

  std::mutex mutex;
  Memory memory;
  History history;
  Compute compute{memory};
  PinnedReads pinned_reads{memory};
  std::deque<Gpu> gpus;
  // By handle; handles are never reused.
  std::map<uint64_t, Stream> streams;
  std::map<uint64_t, Event> events;
  std::set<uint64_t> libraries;
  std::map<uint64_t, std::string> others;  // cuBLASLt's objects, by address
  std::map<std::string, int64_t> calls;
  bool initialized = false;
  std::thread::id locked_by;  // with calls=lock: the thread whose call waits for all work
  int slow_gpu = -1;          // while a history is recorded: runs last

  // Returns a handle that has not been used before.
  uint64_t NewHandle() { return last_handle_ += 16; }
  Stream& AddStream(uint64_t handle, Gpu& gpu);
  // Removes an existing stream; its work continues.
  void RemoveStream(uint64_t handle);

  // Appends `operation` to its stream; blocks while the channel is full.
  CUresult Submit(Stream& stream, Operation operation);
  // Makes later work in `stream` wait for the recording.
  CUresult SubmitWait(Stream& stream, const std::shared_ptr<Record>& record);
  bool Reached(const Point& point) const;
  // Runs some work, as time passes between two queries. `alone`: the point is in a stream that has
  // never waited for another one, so that its end tells the host about no other stream.
  void Poll(const Point& point, bool alone);
  // Runs until `point` is reached. Returns the error of its GPU; ends the test if it cannot be
  // reached.
  CUresult Wait(const Point& point, const std::string& caller);
  // Waits for all work that was submitted to GPUs without an error.
  void WaitForAll(const std::string& caller);
  // The GPU's context returns `error` from now on.
  void Lose(Gpu& gpu, CUresult error, const std::string& why);
  // Releases everything that a context still holds, which is a finding unless the context has an
  // error.
  void EndContext(Gpu& gpu);
  // Ends the test if the host frees bytes that an operation may still use.
  void CheckUnused(const std::string& call, uint64_t address, int64_t bytes);
  // Called at exit: writes counts into the report, and fails if resources are still held.
  void Finish();

  // Returns a number in [0, n), drawn by the seed.
  int Random(int n) { return static_cast<int>(random_() % n); }

 private:
  bool MayRun(const Channel& channel) const;
  bool Holds(const Record& record) const;
  // Returns true if its head has begun, or may begin, and never ends.
  bool NeverEnds(const Channel& channel) const;
  // Returns the channel that runs next, or null; with order=lazy, a channel that `target` needs.
  Channel* Next(const Point& target);
  void Run(Channel& channel);
  // Ends the test if the host has changed what a pending operation reads.
  void CheckUnchanged(const Operation& operation) const;
  // The operation begins: some tests lose the GPU here, or let it hang. Returns false then.
  bool Begin(Operation& head, Gpu& gpu);
  void RunSome(const Point& target, int steps);
  [[noreturn]] void Deadlock();

  std::mt19937_64 random_;
  uint64_t last_handle_ = 0x1000;
  uint64_t submitted_ = 0;
  std::chrono::steady_clock::time_point submitted_at_;  // the last
  int64_t waits_ = 0, full_ = 0;
  // Numbers of destroyed streams; used again once the host has seen all of them, so that clocks
  // stay short.
  std::set<int> free_numbers_;
  std::vector<Gpu*> gpu_of_stream_;     // by number
  std::multiset<std::string> blocked_;  // callers
};

Machine& TheMachine();

}  // namespace model
