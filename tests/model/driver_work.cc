// The driver's entry points for streams, events, copies and kernels.
#include <cuda.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "tests/model/call.h"

using namespace model;

namespace {

// The part of [0, count) that is piece `piece` of `pieces`.
std::pair<int64_t, int64_t> Part(int64_t count, int piece, int pieces) {
  return {count * piece / pieces, count * (piece + 1) / pieces};
}

int Pieces(int64_t count) {
  return static_cast<int>(std::min<int64_t>(count, 1 + TheMachine().Random(4)));
}

// 0 is the default of streams.
constexpr int kLeastPriority = 0, kGreatestPriority = -5;

// One end of a copy.
struct End {
  Rectangle bytes;
  bool device = false;
};

CUresult Copy(const Call& call, CUstream handle, const End& to, const End& from) {
  Stream* stream = call.Find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const Memory& memory = TheMachine().memory;
  if (to.bytes.rows == 0 || to.bytes.row_bytes == 0) return CUDA_SUCCESS;
  for (const End& end : {to, from}) {
    if (end.bytes.rows > 1 && end.bytes.pitch_bytes < end.bytes.row_bytes) {
      return CUDA_ERROR_INVALID_VALUE;
    }
    const uint64_t address = end.bytes.address;
    const int64_t extent = end.bytes.extent_bytes();
    if (end.device && !memory.IsMapped(address, extent)) return CUDA_ERROR_INVALID_VALUE;
    if (!end.device && !memory.IsPinned(address, extent)) {
      Fail(call.name + ": pageable host memory, which the driver copies at once; pin it");
    }
  }
  if (Overlap(to.bytes, from.bytes)) Fail(call.name + ": the source overlaps the destination");

  const Rectangle a = to.bytes, b = from.bytes;
  // A copy of one word moves at once: kernels may poll it (Compute::Begin).
  const bool word = IsWord(a);
  const int pieces = word ? 1 : Pieces(a.rows > 1 ? a.rows : a.row_bytes);
  const auto run = [=](int piece) {
    const Memory& memory = TheMachine().memory;
    char* into = memory.Engine(a.address);
    const char* out_of = memory.Engine(b.address);
    if (a.rows == 1) {
      const auto [begin, end] = Part(a.row_bytes, piece, pieces);
      std::memcpy(into + begin, out_of + begin, end - begin);
      return;
    }
    const auto [begin, end] = Part(a.rows, piece, pieces);
    for (int64_t row = begin; row < end; ++row) {
      std::memcpy(into + row * a.pitch_bytes, out_of + row * b.pitch_bytes, a.row_bytes);
    }
  };
  return TheMachine().Submit(*stream, {.name = call.name,
                                       .accesses = {{b, false}, {a, true}},
                                       .pieces = pieces,
                                       .run = run,
                                       .copies = true});
}

Rectangle Line(uint64_t address, size_t bytes) {
  return {address, 1, static_cast<int64_t>(bytes), static_cast<int64_t>(bytes)};
}

uint64_t Address(const void* host) { return reinterpret_cast<uint64_t>(host); }

// Returns the result of a query or a synchronisation; a success orders.
CUresult Saw(const Point& point, std::shared_ptr<const Captured> captured, const Known& known) {
  if (!TheMachine().Reached(point)) return CUDA_ERROR_NOT_READY;
  TheMachine().history.HostSaw(std::move(captured));
  TheMachine().compute.HostSaw(known);
  return CUDA_SUCCESS;
}

}  // namespace

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned int flags, int priority) {
  MODEL_CONTEXT_CALL(cuStreamCreateWithPriority);
  call.RefuseUnless(flags == CU_STREAM_NON_BLOCKING, "a stream that the null stream blocks");
  call.Block();
  const uint64_t handle = TheMachine().NewHandle();
  TheMachine().AddStream(handle, gpu).priority =
      std::clamp(priority, kGreatestPriority, kLeastPriority);
  *stream = reinterpret_cast<CUstream>(handle);
  return CUDA_SUCCESS;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  MODEL_CONTEXT_CALL(cuCtxGetStreamPriorityRange);
  if (least) *least = kLeastPriority;
  if (greatest) *greatest = kGreatestPriority;
  return CUDA_SUCCESS;
}

CUresult cuStreamGetPriority(CUstream handle, int* priority) {
  MODEL_CONTEXT_CALL(cuStreamGetPriority);
  const Stream* stream = call.Find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  *priority = stream->priority;
  return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream handle) {
  MODEL_RELEASE_CALL(cuStreamDestroy);
  if (!call.Find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  TheMachine().RemoveStream(reinterpret_cast<uint64_t>(handle));
  return gpu.error;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned int flags) {
  MODEL_CONTEXT_CALL(cuStreamWaitEvent);
  call.RefuseUnless(flags == CU_EVENT_WAIT_DEFAULT, "a flag");
  Stream* stream = call.Find(handle);
  const Event* event = call.Find(event_handle);
  if (!stream || !event) return CUDA_ERROR_INVALID_HANDLE;
  // Never recorded: there is nothing to wait for.
  if (!event->record) return CUDA_SUCCESS;
  if (TheOptions().orphans == Orphans::kRefused && event->gpu->error != CUDA_SUCCESS) {
    return event->gpu->error;
  }
  return TheMachine().SubmitWait(*stream, event->record);
}

CUresult cuStreamQuery(CUstream handle) {
  MODEL_CONTEXT_CALL(cuStreamQuery);
  Stream* stream = call.Find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (!TheMachine().Reached(stream->last)) TheMachine().Poll(stream->last, stream->alone);
  return stream->gpu->error != CUDA_SUCCESS
             ? stream->gpu->error
             : Saw(stream->last, TheMachine().history.Capture(stream->number, call.name),
                   TheMachine().compute.OfStream(stream->number));
}

CUresult cuStreamSynchronize(CUstream handle) {
  MODEL_CONTEXT_CALL(cuStreamSynchronize);
  Stream* stream = call.Find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  const Gpu& owner = *stream->gpu;
  if (owner.error != CUDA_SUCCESS) return owner.error;
  // Captured before the wait, because other threads may submit work.
  const Point last = stream->last;
  const int number = stream->number;
  const auto captured = TheMachine().history.Capture(stream->number, call.name);
  const CUresult waited = TheMachine().Wait(last, "cuStreamSynchronize");
  return waited != CUDA_SUCCESS ? waited
                                : Saw(last, captured, TheMachine().compute.OfStream(number));
}

CUresult cuEventCreate(CUevent* event, unsigned int flags) {
  MODEL_CONTEXT_CALL(cuEventCreate);
  call.RefuseUnless(!(flags & ~(CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING)), "a flag");
  const uint64_t handle = TheMachine().NewHandle();
  TheMachine().events[handle] = {.gpu = &gpu, .timing = !(flags & CU_EVENT_DISABLE_TIMING)};
  *event = reinterpret_cast<CUevent>(handle);
  return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent handle) {
  MODEL_RELEASE_CALL(cuEventDestroy);
  if (!call.Find(handle)) return CUDA_ERROR_INVALID_HANDLE;
  TheMachine().events.erase(reinterpret_cast<uint64_t>(handle));
  return gpu.error;
}

CUresult cuEventRecord(CUevent handle, CUstream stream_handle) {
  MODEL_CONTEXT_CALL(cuEventRecord);
  Stream* stream = call.Find(stream_handle);
  Event* event = call.Find(handle);
  if (!stream || !event || stream->gpu != event->gpu) return CUDA_ERROR_INVALID_HANDLE;
  const auto record = std::make_shared<Record>();
  const CUresult submitted = TheMachine().Submit(*stream, {.name = call.name, .sets = record});
  // Looked up again, because a full channel lets other threads run.
  if (submitted == CUDA_SUCCESS && (event = call.Find(handle))) event->record = record;
  return submitted;
}

CUresult cuEventQuery(CUevent handle) {
  MODEL_CONTEXT_CALL(cuEventQuery);
  const Event* event = call.Find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->record && !TheMachine().Reached(event->record->point)) {
    TheMachine().Poll(event->record->point, event->record->alone);
  }
  if (event->gpu->error != CUDA_SUCCESS) return event->gpu->error;
  return event->record ? Saw(event->record->point, event->record->captured, event->record->known)
                       : CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent handle) {
  MODEL_CONTEXT_CALL(cuEventSynchronize);
  const Event* event = call.Find(handle);
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->gpu->error != CUDA_SUCCESS) return event->gpu->error;
  const std::shared_ptr<Record> record = event->record;
  if (!record) return CUDA_SUCCESS;
  const CUresult waited = TheMachine().Wait(record->point, call.name);
  return waited != CUDA_SUCCESS ? waited : Saw(record->point, record->captured, record->known);
}

CUresult cuEventElapsedTime(float* milliseconds, CUevent from, CUevent to) {
  MODEL_CONTEXT_CALL(cuEventElapsedTime);
  const Event *first = call.Find(from), *last = call.Find(to);
  if (!first || !last || !first->timing || !last->timing || !first->record || !last->record ||
      first->gpu != last->gpu) {
    return CUDA_ERROR_INVALID_HANDLE;
  }
  for (const Event* event : {first, last}) {
    if (!TheMachine().Reached(event->record->point)) return CUDA_ERROR_NOT_READY;
  }
  *milliseconds =
      std::chrono::duration<float, std::milli>(last->record->time - first->record->time).count();
  return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, size_t bytes, CUstream stream) {
  MODEL_CONTEXT_CALL(cuMemcpyHtoDAsync);
  return Copy(call, stream, {Line(to, bytes), true}, {Line(Address(from), bytes), false});
}

CUresult cuMemcpyDtoHAsync(void* to, CUdeviceptr from, size_t bytes, CUstream stream) {
  MODEL_CONTEXT_CALL(cuMemcpyDtoHAsync);
  return Copy(call, stream, {Line(Address(to), bytes), false}, {Line(from, bytes), true});
}

CUresult cuMemcpyDtoDAsync(CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream) {
  MODEL_CONTEXT_CALL(cuMemcpyDtoDAsync);
  return Copy(call, stream, {Line(to, bytes), true}, {Line(from, bytes), true});
}

CUresult cuMemcpy2DAsync(const CUDA_MEMCPY2D* copy, CUstream stream) {
  MODEL_CONTEXT_CALL(cuMemcpy2DAsync);
  const auto end = [&](CUmemorytype type, const void* host, CUdeviceptr device, size_t x, size_t y,
                       size_t pitch) -> End {
    call.RefuseUnless(type != CU_MEMORYTYPE_ARRAY, "an array");
    // With UNIFIED the address shows the place.
    const uint64_t base = type == CU_MEMORYTYPE_HOST ? Address(host) : device;
    const bool on_device = type == CU_MEMORYTYPE_UNIFIED ? TheMachine().memory.IsDevice(base)
                                                         : type == CU_MEMORYTYPE_DEVICE;
    return {{base + y * pitch + x, static_cast<int64_t>(copy->Height),
             static_cast<int64_t>(copy->WidthInBytes), static_cast<int64_t>(pitch)},
            on_device};
  };
  return Copy(call, stream,
              end(copy->dstMemoryType, copy->dstHost, copy->dstDevice, copy->dstXInBytes,
                  copy->dstY, copy->dstPitch),
              end(copy->srcMemoryType, copy->srcHost, copy->srcDevice, copy->srcXInBytes,
                  copy->srcY, copy->srcPitch));
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, size_t bytes, CUstream handle) {
  MODEL_CONTEXT_CALL(cuMemsetD8Async);
  Stream* stream = call.Find(handle);
  if (!stream) return CUDA_ERROR_INVALID_HANDLE;
  if (bytes == 0) return CUDA_SUCCESS;
  if (!TheMachine().memory.IsMapped(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
  const int pieces = Pieces(bytes);
  const auto run = [=](int piece) {
    const auto [begin, end] = Part(bytes, piece, pieces);
    std::memset(TheMachine().memory.Engine(to) + begin, value, end - begin);
  };
  return TheMachine().Submit(
      *stream,
      {.name = call.name, .accesses = {{Line(to, bytes), true}}, .pieces = pieces, .run = run});
}
