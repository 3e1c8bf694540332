// cuda_probe: the errors of a lost GPU, and the effect on streams that wait for it.
#include "tests/gpu/measure.h"

namespace {

void Trap(Probe& probe) {
  const CUstream stream = probe.Stream();
  const CUevent before = probe.Event(), behind = probe.Event();
  const CUdeviceptr memory = probe.Device(1);
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(before, stream));
  probe.Check("cuEventSynchronize", probe.cu.cuEventSynchronize(before));
  probe.Launch("probe_trap", 1, 1, stream, nullptr);
  probe.cu.cuEventRecord(behind, stream);  // may fail, because the trap may already have happened
  bool unknown = false;
  const auto say = [&](const std::string& call, CUresult result) {
    Append(probe.text, call + " " + probe.Name(result));
    unknown |= result == CUDA_ERROR_UNKNOWN;
  };
  CUdeviceptr more = 0;
  size_t free_bytes = 0, total_bytes = 0;
  say("cuStreamSynchronize", probe.cu.cuStreamSynchronize(stream));
  say("cuEventQuery before it", probe.cu.cuEventQuery(before));
  say("cuEventQuery behind it", probe.cu.cuEventQuery(behind));
  say("cuEventRecord", probe.cu.cuEventRecord(behind, stream));
  say("cuMemsetD8Async", probe.cu.cuMemsetD8Async(memory, 0, 1, stream));
  say("cuMemAlloc", probe.cu.cuMemAlloc(&more, 1));
  say("cuMemGetInfo", probe.cu.cuMemGetInfo(&free_bytes, &total_bytes));
  say("cuMemFree", probe.cu.cuMemFree(memory));
  Append(probe.text, unknown ? "UNKNOWN is among them" : "UNKNOWN is not among them");
  probe.abandoned = true;
}

// A stream of GPU 1 waits for an event behind a trap of GPU 0, which comes after the wait.
void WaitForALostGpu(Probe& probe) {
  if (!probe.two_gpus()) return probe.Skip("one GPU");
  constexpr double kPatienceUs = 5e6;
  const CUstream lost = probe.Stream(), waiting = probe.Stream(1), later = probe.Stream(1);
  const CUevent never = probe.Event(), seen = probe.Event(1);
  const CUdeviceptr memory = probe.Device(1, 1);
  probe.abandoned = true;
  Spin spin(probe);
  spin.Launch(lost, 1000);
  probe.Launch("probe_trap", 1, 1, lost, nullptr);
  probe.Check("cuEventRecord", probe.cu.cuEventRecord(never, lost));
  probe.On(1, [&] {
    probe.Check("cuStreamWaitEvent", probe.cu.cuStreamWaitEvent(waiting, never, 0));
    probe.Check("cuMemsetD8Async", probe.cu.cuMemsetD8Async(memory, 1, 1, waiting));
    probe.Check("cuEventRecord", probe.cu.cuEventRecord(seen, waiting));
  });
  spin.Release();
  const auto query = [&](const std::string& name, CUevent event) {
    const auto begin = Clock::now();
    CUresult result = CUDA_ERROR_NOT_READY;
    while (result == CUDA_ERROR_NOT_READY && Microseconds(begin) < kPatienceUs) {
      result = probe.cu.cuEventQuery(event);
    }
    Append(probe.text,
           name + " " + probe.Name(result) + " after " + Number(Microseconds(begin) / 1000, "ms"));
  };
  // Does not use On, which counts a failed push as a failure of the check.
  const auto push = [&](int gpu) {
    probe.cu.cuCtxPopCurrent(nullptr);
    const CUresult result = probe.cu.cuCtxPushCurrent(probe.contexts[gpu]);
    Append(probe.text, "a push of GPU " + std::to_string(gpu) + " " + probe.Name(result));
  };
  query("GPU 0's event", never);
  push(1);
  query("GPU 1's event behind it", seen);
  Append(probe.text, "a later wait " + probe.Name(probe.cu.cuStreamWaitEvent(later, never, 0)));
  probe.cu.cuEventRecord(seen, later);
  query("its event", seen);
  push(0);
}

}  // namespace

std::vector<ProbeCheck> LostChecks() {
  constexpr auto kFact = ProbeCheck::kFact;
  return {
      {kFact, "fact.trap", "what calls return after a kernel's trap", Trap},
      {kFact, "fact.wait_for_a_lost_gpu", "a wait of GPU 1 for an event behind GPU 0's trap",
       WaitForALostGpu},
  };
}
