// cuda_probe: streams and events.
#include "tests/gpu/probe.h"

namespace {

// Enqueues some milliseconds of work, so that the end of the stream is not reached soon.
void Busy(Probe& probe, CUstream stream, CUdeviceptr memory, size_t bytes) {
  for (int i = 0; i < 100; ++i) {
    probe.Check("cuMemsetD8Async",
                probe.cu.cuMemsetD8Async(memory, static_cast<unsigned char>(i), bytes, stream));
  }
}

constexpr size_t kBusyBytes = 64 << 10;

void NeverRecorded(Probe& probe) {
  const CUevent event = probe.Event();
  const CUstream stream = probe.Stream();
  probe.Expect(probe.cu.cuEventQuery(event), CUDA_SUCCESS, "cuEventQuery");
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(event));
  probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(stream, event, 0));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
}

// Checks that a second stream always sees the first one's writes before the record.
void WaitOrders(Probe& probe, int first_gpu, int second_gpu) {
  const size_t bytes = 4 * Probe::kMiB;
  const CUdeviceptr memory = probe.Map(bytes, second_gpu, {first_gpu, second_gpu});
  const CUstream first = probe.Stream(first_gpu), second = probe.Stream(second_gpu);
  const CUevent forth = probe.Event(first_gpu), back = probe.Event(second_gpu);
  char* host = probe.Host(1);
  for (int round = 1; round < 20; ++round) {
    probe.On(first_gpu, [&] {
      probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(first, back, 0));
      probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(
                                         memory, static_cast<unsigned char>(round), bytes, first));
      probe.Check("cuEventRecord", probe.cu.cuEventRecord(forth, first));
    });
    probe.On(second_gpu, [&] {
      probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(second, forth, 0));
      probe.Check("cuMemcpyDtoHAsync",
                  probe.cu.cuMemcpyDtoHAsync(host, memory + bytes - 1, 1, second));
      probe.Check("cuEventRecord", probe.cu.cuEventRecord(back, second));
      probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(back));
    });
    probe.Expect(*host == round,
                 "a byte of round " + std::to_string(*host) + " in round " + std::to_string(round));
  }
}

void WaitOrdersOneGpu(Probe& probe) { WaitOrders(probe, 0, 0); }

void WaitOrdersTwoGpus(Probe& probe) {
  int peers = 0;
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  probe.Check("cuDeviceCanAccessPeer", probe.cu.cuDeviceCanAccessPeer(&peers, 0, 1));
  if (!peers) return probe.Skip("no peer access");
  WaitOrders(probe, 0, 1);
}

void WaitKeepsItsRecord(Probe& probe) {
  const CUdeviceptr memory = probe.Device(kBusyBytes);
  const CUstream first = probe.Stream(), second = probe.Stream();
  const CUevent event = probe.Event();
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(event, first));
  probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(second, event, 0));
  Busy(probe, first, memory, kBusyBytes);
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(event, first));
  // Returns although `first` may be busy.
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(second));
  probe.text = probe.cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY
                   ? "seen: the later record was pending"
                   : "not seen: the later record was over already";
}

void RecordTakesTheTail(Probe& probe) {
  const CUdeviceptr memory = probe.Device(kBusyBytes);
  const CUstream stream = probe.Stream();
  const CUevent early = probe.Event(), late = probe.Event();
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(early, stream));
  Busy(probe, stream, memory, kBusyBytes);
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(late, stream));
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(early));
  const bool pending = probe.cu.cuEventQuery(late) == CUDA_ERROR_NOT_READY;
  probe.text = pending ? "seen: later work was pending" : "not seen: all was over already";
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(late));
  probe.Expect(probe.cu.cuEventQuery(late), CUDA_SUCCESS, "cuEventQuery");
}

void RecordElsewhere(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  const CUevent event = probe.Event(0);
  const CUstream stream = probe.Stream(1);
  probe.On(1, [&] {
    probe.Expect(probe.cu.cuEventRecord(event, stream), CUDA_ERROR_INVALID_HANDLE, "cuEventRecord");
  });
}

void DestroyedEvent(Probe& probe) {
  const CUdeviceptr memory = probe.Device(kBusyBytes);
  const CUstream first = probe.Stream(), second = probe.Stream();
  char* host = probe.Host(1);
  CUevent event = nullptr;
  probe.Check("cuEventCreate", probe.cu.cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  Busy(probe, first, memory, kBusyBytes);
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(event, first));
  probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(second, event, 0));
  probe.Check("cuEventDestroy", probe.cu.cuEventDestroy(event));
  probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(host, memory, 1, second));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(second));
  probe.Expect(*host == 99, "the wait did not hold after its event was destroyed");
}

void ElapsedTime(Probe& probe) {
  const CUdeviceptr memory = probe.Device(kBusyBytes);
  const CUstream stream = probe.Stream();
  const CUevent untimed = probe.Event(0, CU_EVENT_DISABLE_TIMING);
  const CUevent marks[3] = {probe.Event(), probe.Event(), probe.Event()};
  float ms = 0;
  probe.Expect(probe.cu.cuEventElapsedTime(&ms, marks[0], marks[1]), CUDA_ERROR_INVALID_HANDLE,
               "cuEventElapsedTime before a record");
  for (CUevent mark : marks) {
    probe.Check("cuEventRecord", probe.cu.cuEventRecord(mark, stream));
    Busy(probe, stream, memory, kBusyBytes);
  }
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(untimed, stream));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
  float first = 0, both = 0;
  probe.Check("cuEventElapsedTime", probe.cu.cuEventElapsedTime(&first, marks[0], marks[1]));
  probe.Check("cuEventElapsedTime", probe.cu.cuEventElapsedTime(&both, marks[0], marks[2]));
  probe.Expect(0 <= first && first <= both, "times run backwards");
  probe.Expect(probe.cu.cuEventElapsedTime(&ms, marks[0], untimed), CUDA_ERROR_INVALID_HANDLE,
               "cuEventElapsedTime without timing");
}

void DeepQueue(Probe& probe) {
  const CUdeviceptr memory = probe.Device(1);
  const CUstream stream = probe.Stream();
  char* host = probe.Host(1);
  for (int i = 0; i < 5000; ++i) {
    probe.Check("cuMemsetD8Async",
                probe.cu.cuMemsetD8Async(memory, static_cast<unsigned char>(i), 1, stream));
  }
  probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(host, memory, 1, stream));
  probe.Check("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
  probe.Expect(static_cast<unsigned char>(*host) == 4999 % 256,
               "the last of 5000 did not run last");
}

void DestroyedStream(Probe& probe) {
  const CUdeviceptr memory = probe.Device(kBusyBytes);
  const CUevent event = probe.Event();
  char* host = probe.Host(1);
  CUstream stream = nullptr;
  probe.Check("cuStreamCreateWithPriority",
              probe.cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  Busy(probe, stream, memory, kBusyBytes);
  probe.Check("cuMemcpyDtoHAsync", probe.cu.cuMemcpyDtoHAsync(host, memory, 1, stream));
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(event, stream));
  probe.Check("cuStreamDestroy", probe.cu.cuStreamDestroy(stream));
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(event));
  probe.Expect(*host == 99, "work of a destroyed stream did not run");
}

void Priorities(Probe& probe) {
  int least = 0, greatest = 0;
  probe.Check("cuCtxGetStreamPriorityRange",
              probe.cu.cuCtxGetStreamPriorityRange(nullptr, &greatest));
  probe.Check("cuCtxGetStreamPriorityRange", probe.cu.cuCtxGetStreamPriorityRange(&least, nullptr));
  probe.Expect(greatest < 0 && least == 0, "the range is " + std::to_string(least) + " to " +
                                               std::to_string(greatest) + ", not 0 to less");
  for (const auto& [asked, wanted] : {std::pair(0, 0), {greatest, greatest}, {-1000, greatest}}) {
    CUstream stream = nullptr;
    int given = 1;
    probe.Check("cuStreamCreateWithPriority",
                probe.cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
    probe.streams.emplace_back(stream, 0);
    probe.Check("cuStreamGetPriority", probe.cu.cuStreamGetPriority(stream, &given));
    probe.Expect(given == wanted,
                 "asked for priority " + std::to_string(asked) + ", got " + std::to_string(given));
  }
}

}  // namespace

std::vector<ProbeCheck> EventChecks() {
  constexpr auto kMust = ProbeCheck::kMust;
  return {
      {kMust, "event.never_recorded", "is complete, and a wait for it waits for nothing",
       NeverRecorded},
      {kMust, "event.wait_orders", "a wait orders streams of one GPU", WaitOrdersOneGpu},
      {kMust, "event.wait_orders_gpus", "a wait orders streams of two GPUs", WaitOrdersTwoGpus},
      {kMust, "event.wait_keeps_record", "recording again does not move an earlier wait",
       WaitKeepsItsRecord},
      {kMust, "event.record_takes_tail", "an event does not wait for what follows its record",
       RecordTakesTheTail},
      {kMust, "event.record_elsewhere", "a stream of another context is INVALID_HANDLE",
       RecordElsewhere},
      {kMust, "event.destroyed", "destroyed while pending, it still orders", DestroyedEvent},
      {kMust, "event.elapsed", "needs records and timing, and never runs backwards", ElapsedTime},
      {kMust, "stream.deep", "5000 operations end, whatever the depth of a queue", DeepQueue},
      {kMust, "stream.priorities", "0 unless asked for, and the greatest is below it", Priorities},
      {kMust, "stream.destroyed", "a destroyed stream finishes its work", DestroyedStream},
  };
}
