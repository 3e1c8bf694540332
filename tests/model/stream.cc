#include "tests/model/stream.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <numeric>
#include <thread>
#include <utility>

namespace model {
namespace {

Machine* made = nullptr;

// While a history is recorded, work begins once nothing has been submitted for this time.
constexpr std::chrono::milliseconds kQuiet(1);
// While kernels poll and nothing else can run, a blocked caller waits this often and this long for
// other threads.
constexpr int kMostIdle = 300;
constexpr std::chrono::milliseconds kIdle(3);

// Runs after the destructors of the program, because this library was loaded by it.
[[gnu::destructor]] void AtExit() {
  if (made) made->Finish();
}

}  // namespace

Machine& TheMachine() {
  static Machine& machine = *(made = new Machine);
  return machine;
}

Machine::Machine() : random_(TheOptions().seed) {
  for (int i = 0; i < TheOptions().gpus; ++i) {
    Gpu& gpu = gpus.emplace_back();
    gpu.index = i;
    for (int j = 0; j < TheOptions().channels; ++j) {
      gpu.channels.push_back({.gpu = &gpu, .index = j});
    }
  }
}

Stream& Machine::AddStream(uint64_t handle, Gpu& gpu) {
  const int channels = TheOptions().channels;
  const int channel =
      TheOptions().order == Order::kRandom ? Random(channels) : gpu.streams % channels;
  ++gpu.streams;
  Stream& stream = streams[handle];
  const auto seen = std::find_if(free_numbers_.begin(), free_numbers_.end(),
                                 [&](int free) { return history.now().HostHasSeenAll(free); });
  if (seen != free_numbers_.end()) {
    stream.number = *seen;
    free_numbers_.erase(seen);
  } else {
    stream.number = static_cast<int>(gpu_of_stream_.size());
    gpu_of_stream_.emplace_back();
  }
  stream.gpu = &gpu;
  stream.channel = &gpu.channels[channel];
  gpu_of_stream_[stream.number] = &gpu;
  history.BeginStream(stream.number);
  compute.BeginStream(stream.number);
  return stream;
}

void Machine::RemoveStream(uint64_t handle) {
  const auto found = streams.find(handle);
  // Kernels that run as PTX do not count among the operations that the host has seen.
  if (!compute.active()) free_numbers_.insert(found->second.number);
  streams.erase(found);
}

CUresult Machine::Submit(Stream& stream, Operation operation) {
  std::erase_if(operation.accesses, [](const Access& access) {
    return access.bytes.rows <= 0 || access.bytes.row_bytes <= 0;
  });
  Channel& channel = *stream.channel;
  const auto depth = static_cast<size_t>(TheOptions().depth);
  while (channel.queue.size() >= depth && stream.gpu->error == CUDA_SUCCESS) {
    ++full_;
    Wait({&channel, channel.done + 1}, operation.name + ", whose channel is full,");
  }
  if (stream.gpu->error != CUDA_SUCCESS) return stream.gpu->error;

  operation.number = ++submitted_;
  operation.stream = stream.number;
  operation.host_knew = compute.active() ? compute.host() : nullptr;
  operation.name += Format(" #%llu on stream %d of GPU %d", (unsigned long long)operation.number,
                           stream.number, stream.gpu->index);
  std::vector<Access> touched;
  for (const Access& access : operation.accesses) {
    // Bytes that are not mapped now cause a fault when it runs.
    if (memory.IsDevice(access.bytes.address) &&
        !memory.IsMapped(access.bytes.address, access.bytes.extent_bytes())) {
      continue;
    }
    const std::vector<Access> physical = memory.Physical(access);
    touched.insert(touched.end(), physical.begin(), physical.end());
  }
  const std::string race = history.Add(stream.number, operation.name, touched,
                                       operation.awaits ? operation.awaits->captured : nullptr);
  if (!race.empty() && !compute.has_run()) Fail(race);
  pinned_reads.Add(operation.number, operation.accesses);

  stream.last = {&channel, channel.done + channel.queue.size() + 1};
  if (operation.sets) {
    operation.sets->point = stream.last;
    operation.sets->captured = history.Capture(stream.number, operation.name);
    operation.sets->alone = stream.alone;
  }
  channel.queue.push_back(std::move(operation));
  submitted_at_ = std::chrono::steady_clock::now();
  if (history.recording()) return CUDA_SUCCESS;
  switch (TheOptions().order) {
    case Order::kEager: RunSome({}, -1); break;
    case Order::kLazy: break;
    default: RunSome({}, Random(4));
  }
  return CUDA_SUCCESS;
}

CUresult Machine::SubmitWait(Stream& stream, const std::shared_ptr<Record>& record) {
  ++waits_;
  stream.alone = false;
  return Submit(stream, {.name = "cuStreamWaitEvent", .awaits = record});
}

bool Machine::Reached(const Point& point) const {
  return !point.channel || point.channel->done >= point.count;
}

bool Machine::Holds(const Record& record) const {
  return Reached(record.point) || (record.point.channel->gpu->error != CUDA_SUCCESS &&
                                   TheOptions().orphans != Orphans::kStuck);
}

bool Machine::MayRun(const Channel& channel) const {
  if (channel.queue.empty() || channel.gpu->error != CUDA_SUCCESS) return false;
  const Operation& head = channel.queue.front();
  // A kernel whose warps all wait goes on once something else has happened.
  if (head.compute && compute.IsStuck(*head.compute)) return false;
  return !head.hangs && (!head.awaits || Holds(*head.awaits));
}

bool Machine::NeverEnds(const Channel& channel) const {
  if (channel.queue.empty() || channel.gpu->error != CUDA_SUCCESS) return false;
  const Operation& head = channel.queue.front();
  return head.hangs || (head.awaits && !Holds(*head.awaits) &&
                        head.awaits->point.channel->gpu->error != CUDA_SUCCESS);
}

Channel* Machine::Next(const Point& target) {
  if ((TheOptions().order == Order::kLazy || history.recording()) && target.channel) {
    // Finds the first operation that the target needs: the head of its channel, or the operation
    // that this waits for, and so on. This ends, because each step leads to work that was submitted
    // earlier.
    Channel* channel = target.channel;
    while (!MayRun(*channel)) {
      if (channel->queue.empty() || NeverEnds(*channel) || channel->gpu->error != CUDA_SUCCESS) {
        return nullptr;
      }
      if (channel->queue.front().compute) break;  // it waits for other work, of any channel
      channel = channel->queue.front().awaits->point.channel;
    }
    if (MayRun(*channel)) return channel;
  }
  std::vector<Channel*> ready;
  for (Gpu& gpu : gpus) {
    for (Channel& channel : gpu.channels) {
      if (MayRun(channel)) ready.push_back(&channel);
    }
  }
  if (ready.empty()) return nullptr;
  if (history.recording()) {
    const auto slow = std::partition(ready.begin(), ready.end(), [&](const Channel* channel) {
      return channel->gpu->index != slow_gpu;
    });
    if (slow != ready.begin()) ready.erase(slow, ready.end());
    return ready[Random(static_cast<int>(ready.size()))];
  }
  if (TheOptions().order == Order::kRandom) return ready[Random(static_cast<int>(ready.size()))];
  const auto [oldest, newest] =
      std::minmax_element(ready.begin(), ready.end(), [](const Channel* a, const Channel* b) {
        return a->queue.front().number < b->queue.front().number;
      });
  return TheOptions().order == Order::kNewest ? *newest : *oldest;
}

bool Machine::Begin(Operation& head, Gpu& gpu) {
  head.begun = true;
  ++gpu.begun;
  for (const Options::Loss& loss : TheOptions().losses) {
    if (loss.gpu == gpu.index && loss.operation == gpu.begun) {
      const int code = loss.code ? loss.code : CUDA_ERROR_LAUNCH_FAILED;
      Lose(gpu, static_cast<CUresult>(code), "lost at " + head.name);
      return false;
    }
  }
  for (const Options::Hang& hang : TheOptions().hangs) {
    if (hang.gpu == gpu.index && hang.operation == gpu.begun) {
      std::fprintf(stderr, "model: GPU %d: %s never ends\n", gpu.index, head.name.c_str());
      head.hangs = true;
      return false;
    }
  }
  head.left.resize(head.pieces);
  std::iota(head.left.begin(), head.left.end(), 0);
  std::shuffle(head.left.begin(), head.left.end(), random_);
  return true;
}

void Machine::CheckUnchanged(const Operation& operation) const {
  if (pinned_reads.AreWhole(operation.number)) return;
  Fail("the host has written to pinned memory that " + operation.name +
       " reads; wait for it first");
}

void Machine::Run(Channel& channel) {
  Operation& head = channel.queue.front();
  Gpu& gpu = *channel.gpu;
  const bool works = head.run || head.compute;
  const bool begins = works && !head.begun;
  if (begins && !Begin(head, gpu)) return;
  for (const auto& [bytes, writes] : head.accesses) {
    if (memory.IsDevice(bytes.address)
            ? memory.IsMapped(bytes.address, bytes.extent_bytes(), gpu.index)
            : memory.IsPinned(bytes.address, bytes.extent_bytes())) {
      continue;
    }
    return Lose(gpu, CUDA_ERROR_ILLEGAL_ADDRESS,
                Format("%s %s %#llx without a mapping or without access", head.name.c_str(),
                       writes ? "writes" : "reads", (unsigned long long)bytes.address));
  }
  if (begins || !works) compute.Begin(head.stream, head, gpu.index);
  if (begins) CheckUnchanged(head);
  if (head.compute) {
    pinned_reads.WrittenAnywhere();
    if (begins) head.compute->launch.known = *compute.OfStream(head.stream);
    if (!compute.Step(*head.compute)) return;
  } else if (head.run) {
    head.run(head.left.back());
    head.left.pop_back();
    for (const auto& [bytes, writes] : head.accesses) {
      if (writes && !memory.IsDevice(bytes.address)) pinned_reads.Written(bytes);
    }
    if (!head.left.empty()) return;
    CheckUnchanged(head);
    pinned_reads.Remove(head.number);
  }
  compute.End(head.stream, head);
  if (head.sets) {
    head.sets->time = std::chrono::steady_clock::now();
    head.sets->known = compute.OfStream(head.stream);
  }
  channel.queue.pop_front();
  ++channel.done;
}

void Machine::RunSome(const Point& target, int steps) {
  for (; steps != 0; --steps) {
    Channel* channel = Next(target);
    if (!channel) return;
    Run(*channel);
  }
}

void Machine::Poll(const Point& point, bool alone) {
  compute.HostActed();
  if (history.recording()) {
    while (alone && !Reached(point)) {
      Channel* channel = Next(point);
      if (!channel) return;
      Run(*channel);
    }
    if (std::chrono::steady_clock::now() - submitted_at_ > kQuiet) RunSome({}, 1 + Random(4));
    return;
  }
  switch (TheOptions().order) {
    case Order::kEager: return RunSome(point, -1);
    case Order::kLazy: return RunSome(point, 1);
    default: return RunSome(point, 1 + Random(4));
  }
}

CUresult Machine::Wait(const Point& point, const std::string& caller) {
  const auto blocked = blocked_.insert(caller);
  int idle = 0;
  while (!Reached(point) && point.channel->gpu->error == CUDA_SUCCESS) {
    Channel* channel = Next(point);
    if (!channel) {
      if (!compute.has_kernels() || ++idle > kMostIdle) Deadlock();
      // Another thread of the host may be about to raise a word that a kernel polls.
      mutex.unlock();
      std::this_thread::sleep_for(kIdle);
      mutex.lock();
      compute.HostActed();
      continue;
    }
    Run(*channel);
    // Lets other host threads continue.
    mutex.unlock();
    mutex.lock();
  }
  blocked_.erase(blocked);
  return Reached(point) ? CUDA_SUCCESS : point.channel->gpu->error;
}

void Machine::WaitForAll(const std::string& caller) {
  for (Gpu& gpu : gpus) {
    for (Channel& channel : gpu.channels) {
      if (gpu.error == CUDA_SUCCESS) Wait(channel.end(), caller);
    }
  }
}

void Machine::Lose(Gpu& gpu, CUresult error, const std::string& why) {
  gpu.error = error;
  compute.Lose(gpu.index);
  for (size_t i = 0; i < gpu_of_stream_.size(); ++i) {
    if (gpu_of_stream_[i] == &gpu) history.ForgetStream(static_cast<int>(i));
  }
  std::fprintf(stderr, "model: GPU %d: error %d: %s\n", gpu.index, error, why.c_str());
}

void Machine::EndContext(Gpu& gpu) {
  const auto of = [&](const auto& thing) { return thing.second.gpu == &gpu; };
  const size_t ended =
      std::erase_if(streams, of) + std::erase_if(events, of) + memory.FreeHostOf(gpu.index);
  if (ended && gpu.error == CUDA_SUCCESS) {
    Fail(
        Format("cuDevicePrimaryCtxRelease: GPU %d's context ends with %zu streams, events and "
               "pinned buffers; destroy them first",
               gpu.index, ended));
  }
}

void Machine::CheckUnused(const std::string& call, uint64_t address, int64_t bytes) {
  // Callers have checked that it is the start of a mapping or of pinned memory.
  const Access whole = {{address, 1, bytes, bytes}, true};
  for (const Access& access : memory.Physical(whole)) {
    const std::string user = history.now().Unseen(access.bytes);
    if (!user.empty()) {
      Fail(Format("%s of %#llx while %s may still use it; wait for it first", call.c_str(),
                  (unsigned long long)address, user.c_str()));
    }
    history.Forget(access.bytes.address, access.bytes.row_bytes);
  }
  compute.Release(address, bytes);
}

void Machine::Deadlock() {
  std::string text = "deadlock: nothing that was submitted can run;" + compute.Waiters();
  for (const std::string& caller : blocked_) text += " " + caller + " is blocked;";
  for (Gpu& gpu : gpus) {
    for (Channel& channel : gpu.channels) {
      if (channel.queue.empty()) continue;
      text += Format(" GPU %d channel %d (%zu operations) begins with %s", gpu.index, channel.index,
                     channel.queue.size(), channel.queue.front().name.c_str());
      if (gpu.error != CUDA_SUCCESS) text += Format(", lost with error %d", gpu.error);
      if (channel.queue.front().hangs) text += ", which never ends";
      text += ";";
    }
  }
  Fail(text);
}

void Machine::Finish() {
  Report(Format("waits=%lld ordering_waits=%lld operations=%llu full=%lld streams=%zu seed=%llu",
                (long long)waits_, (long long)history.now().ordering_waits(),
                (unsigned long long)submitted_, (long long)full_, gpu_of_stream_.size(),
                (unsigned long long)TheOptions().seed));
  std::vector<std::string> held = memory.Held();
  for (const auto& [handle, stream] : streams) {
    held.push_back(Format("stream %d of GPU %d", stream.number, stream.gpu->index));
  }
  for (const auto& [handle, event] : events) {
    held.push_back(Format("an event of GPU %d", event.gpu->index));
  }
  for (size_t i = 0; i < libraries.size(); ++i) held.push_back("a library");
  for (const auto& [address, what] : others) held.push_back(what);
  for (const Gpu& gpu : gpus) {
    if (gpu.retained) {
      held.push_back(Format("the context of GPU %d, %d times", gpu.index, gpu.retained));
    }
  }
  // A client must keep resources that endless work may use, so these are not leaks.
  for (const Gpu& gpu : gpus) {
    for (const Channel& channel : gpu.channels) {
      if (NeverEnds(channel)) return;
    }
  }
  if (held.empty()) return;
  for (const std::string& thing : held) {
    std::fprintf(stderr, "model: still held at exit: %s\n", thing.c_str());
    Report("held=" + thing);
  }
  std::fflush(nullptr);
  _exit(1);
}

}  // namespace model
