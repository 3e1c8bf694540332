// Streams, channels and events.
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <thread>

#include "tests/model/model_fixture.h"

namespace {

class StreamTest : public ModelTest {
 protected:
  // Makes `stream` write `value` to the pinned byte `to`, from its own byte of device memory.
  void Send(char* to, char value, CUstream stream, int gpu = 0) {
    const CUdeviceptr source = Device(1, gpu);
    On(gpu, [&] {
      EXPECT_CU(cu.cuMemsetD8Async(source, value, 1, stream));
      EXPECT_CU(cu.cuMemcpyDtoHAsync(to, source, 1, stream));
    });
  }
};

TEST_F(StreamTest, HasTheNearestAvailablePriority) {
  Start();
  int least = 1, greatest = 1;
  EXPECT_CU(cu.cuCtxGetStreamPriorityRange(&least, &greatest));
  EXPECT_EQ(least, 0);
  EXPECT_EQ(greatest, -5);
  for (const auto& [asked, given] : {std::pair(0, 0), {-5, -5}, {-6, -5}, {1, 0}}) {
    CUstream stream = nullptr;
    int priority = 1;
    EXPECT_CU(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, asked));
    EXPECT_CU(cu.cuStreamGetPriority(stream, &priority));
    EXPECT_EQ(priority, given);
    EXPECT_CU(cu.cuStreamDestroy(stream));
  }
}

TEST_F(StreamTest, RunsInOrder) {
  Start("order=random");
  const CUstream stream = Stream();
  char* host = Host(1);
  for (char i = 1; i < 20; ++i) Send(host, i, stream);
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  EXPECT_EQ(*host, 19);
}

TEST_F(StreamTest, LazyRunsNothingBeforeTheHostWaits) {
  Start("order=lazy");
  const CUstream stream = Stream();
  char* host = Host(1);
  Send(host, 1, stream);
  EXPECT_EQ(*host, 0);
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  EXPECT_EQ(*host, 1);
}

TEST_F(StreamTest, EagerRunsAtOnce) {
  Start("order=eager");
  const CUstream stream = Stream();
  char* host = Host(1);
  Send(host, 1, stream);
  EXPECT_EQ(*host, 1);
  EXPECT_CU(cu.cuStreamQuery(stream));
}

TEST_F(StreamTest, QueriesBecomeReadyInEveryOrder) {
  for (const char* order : {"eager", "lazy", "random", "oldest", "newest"}) {
    SCOPED_TRACE(order);
    const pid_t child = fork();
    if (child == 0) {
      Start(std::string("order=") + order);
      const CUstream stream = Stream();
      const CUevent event = Event();
      Send(Host(1), 1, stream);
      EXPECT_CU(cu.cuEventRecord(event, stream));
      while (cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      }
      EXPECT_CU(cu.cuEventQuery(event));
      _exit(HasFailure());
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
}

TEST_F(StreamTest, OneChannelRunsItsStreamsInOrder) {
  Start("order=lazy,channels=1");
  const CUstream first = Stream(), second = Stream();
  char* host = Host(2);
  Send(&host[0], 1, first);
  Send(&host[1], 1, second);
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(host[0], 1);
}

TEST_F(StreamTest, TwoChannelsRunApart) {
  Start("order=lazy,channels=2");
  const CUstream first = Stream(), second = Stream();
  char* host = Host(2);
  Send(&host[0], 1, first);
  Send(&host[1], 1, second);
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(host[0], 0);
}

TEST_F(StreamTest, AFullChannelBlocksTheCallerUntilThereIsRoom) {
  Start("order=lazy,channels=1,depth=4");
  const CUstream stream = Stream();
  char* host = Host(2);
  Send(&host[0], 1, stream);
  Send(&host[1], 1, stream);
  EXPECT_EQ(host[0], 0);
  const CUdeviceptr memory = Device(1);
  EXPECT_CU(cu.cuMemsetD8Async(memory, 0, 1, stream));  // in the place of the first memset
  EXPECT_EQ(host[0], 0);
  EXPECT_CU(cu.cuMemsetD8Async(memory, 0, 1, stream));  // in the place of the first copy
  EXPECT_EQ(host[0], 1);
  EXPECT_EQ(host[1], 0);
}

TEST_F(StreamTest, AnUnfinishedCopyLeavesAMixOfBytes) {
  Start("order=lazy,channels=32");
  constexpr size_t kBytes = 1 << 16;
  const CUdeviceptr ones = Device(kBytes);
  const CUstream stream = Stream();
  EXPECT_CU(cu.cuMemsetD8Async(ones, 1, kBytes, stream));
  EXPECT_CU(cu.cuStreamSynchronize(stream));
  int mixed = 0;
  for (int i = 0; i < 16; ++i) {
    char* host = Host(kBytes);
    const CUstream copies = Stream();
    EXPECT_CU(cu.cuMemcpyDtoHAsync(host, ones, kBytes, copies));
    cu.cuStreamQuery(copies);  // one step
    const auto sent = std::count(host, host + kBytes, 1);
    mixed += sent > 0 && sent < static_cast<int64_t>(kBytes);
  }
  EXPECT_GT(mixed, 0);
}

TEST_F(StreamTest, ASeedReproducesARun) {
  // Bytes that show the order of a run with this seed.
  const auto trace = [&](int seed) {
    int ends[2];
    EXPECT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    if (child == 0) {
      Start("order=random,seed=" + std::to_string(seed));
      char* host = Host(8);
      std::string seen;
      for (int i = 0; i < 64; ++i) {
        Send(&host[i % 8], i, streams.size() < 8 ? Stream() : streams[i % 8].first);
        seen.append(host, 8);
      }
      _exit(write(ends[1], seen.data(), seen.size()) != static_cast<ssize_t>(seen.size()));
    }
    close(ends[1]);
    std::string seen(8 * 64, '\0');
    size_t bytes = 0;
    for (ssize_t got; (got = read(ends[0], &seen[bytes], seen.size() - bytes)) > 0;) bytes += got;
    close(ends[0]);
    EXPECT_EQ(bytes, seen.size());
    EXPECT_EQ(waitpid(child, nullptr, 0), child);
    return seen;
  };
  EXPECT_EQ(trace(7), trace(7));
  EXPECT_NE(trace(7), trace(8));
}

TEST_F(StreamTest, CallsMayBlockUntilAllWorkIsDone) {
  Start("order=lazy,calls=block");
  char* host = Host(1);
  const CUstream stream = Stream();
  const CUdeviceptr memory = Device(1);
  EXPECT_CU(cu.cuMemcpyHtoDAsync(memory, Host(1), 1, stream));
  Send(host, 1, stream);
  EXPECT_EQ(*host, 0);
  Device(1);
  EXPECT_EQ(*host, 1);
}

TEST_F(StreamTest, ADestroyedStreamFinishesItsWork) {
  Start("order=lazy,channels=1");
  CUstream stream = nullptr;
  EXPECT_CU(cu.cuStreamCreateWithPriority(&stream, CU_STREAM_NON_BLOCKING, 0));
  char* host = Host(2);
  Send(&host[0], 1, stream);
  const CUevent event = Event();
  EXPECT_CU(cu.cuEventRecord(event, stream));
  EXPECT_CU(cu.cuStreamDestroy(stream));
  EXPECT_EQ(cu.cuStreamQuery(stream), CUDA_ERROR_INVALID_HANDLE);
  const CUstream other = Stream();
  Send(&host[1], 1, other);
  EXPECT_CU(cu.cuStreamSynchronize(other));
  EXPECT_EQ(host[0], 1);
  // Only the event orders this: the two streams are not ordered.
  EXPECT_CU(cu.cuEventSynchronize(event));
}

TEST_F(StreamTest, ManyHostThreadsSubmitAtOnce) {
  Start("gpus=4,order=random,depth=8,channels=2");
  std::vector<std::thread> threads;
  for (int gpu = 0; gpu < 4; ++gpu) {
    const CUstream stream = Stream(gpu);
    const CUevent event = Event(gpu);
    char* host = Host(1);
    const CUdeviceptr memory = Device(1, gpu);
    threads.emplace_back([this, gpu, stream, event, host, memory] {
      EXPECT_CU(cu.cuCtxPushCurrent(contexts[gpu]));
      for (char i = 1; i < 50; ++i) {
        EXPECT_CU(cu.cuMemsetD8Async(memory, i, 1, stream));
        EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory, 1, stream));
        EXPECT_CU(cu.cuEventRecord(event, stream));
        if (i % 2) {
          EXPECT_CU(cu.cuEventSynchronize(event));
        }
        while (cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY) std::this_thread::yield();
        EXPECT_EQ(*host, i);
      }
      EXPECT_CU(cu.cuCtxPopCurrent(nullptr));
    });
  }
  for (std::thread& thread : threads) thread.join();
}

using EventTest = StreamTest;

TEST_F(EventTest, NeverRecordedWaitsForNothing) {
  Start("order=lazy");
  const CUstream stream = Stream();
  const CUevent event = Event();
  EXPECT_CU(cu.cuEventQuery(event));
  EXPECT_CU(cu.cuEventSynchronize(event));
  EXPECT_CU(cu.cuStreamWaitEvent(stream, event, 0));
  EXPECT_CU(cu.cuStreamQuery(stream));
}

TEST_F(EventTest, AWaitBeforeTheRecordWaitsForNothing) {
  Start("order=lazy");
  const CUstream first = Stream(), second = Stream();
  const CUevent event = Event();
  char* host = Host(2);
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  Send(&host[0], 1, first);
  EXPECT_CU(cu.cuEventRecord(event, first));
  Send(&host[1], 1, second);
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(host[0], 0);
  EXPECT_CU(cu.cuStreamSynchronize(first));
}

TEST_F(EventTest, ARecordCapturesTheTailAtTheCall) {
  Start("order=lazy");
  const CUstream stream = Stream();
  const CUevent event = Event();
  char* host = Host(2);
  Send(&host[0], 1, stream);
  EXPECT_CU(cu.cuEventRecord(event, stream));
  Send(&host[1], 1, stream);
  EXPECT_CU(cu.cuEventSynchronize(event));
  EXPECT_EQ(host[0], 1);
  EXPECT_EQ(host[1], 0);
  EXPECT_CU(cu.cuStreamSynchronize(stream));
}

TEST_F(EventTest, RecordingAgainDoesNotMoveEarlierWaits) {
  Start("order=lazy");
  const CUstream first = Stream(), second = Stream();
  const CUevent event = Event();
  char* host = Host(2);
  Send(&host[0], 1, first);
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  Send(&host[1], 1, first);
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(host[0], 1);
  EXPECT_EQ(host[1], 0);
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_NOT_READY);
  EXPECT_CU(cu.cuStreamSynchronize(first));
}

TEST_F(EventTest, AWaitCrossesGpus) {
  Start("gpus=2,order=lazy");
  const CUstream first = Stream(0), second = Stream(1);
  const CUevent event = Event(0);
  char* host = Host(1);
  Send(host, 1, first);
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(*host, 1);
}

TEST_F(EventTest, ARecordInAStreamOfAnotherContextIsRefused) {
  Start("gpus=2");
  EXPECT_EQ(cu.cuEventRecord(Event(0), Stream(1)), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(EventTest, DestroyedWhilePendingItStillOrders) {
  Start("order=lazy");
  const CUstream first = Stream(), second = Stream();
  char* host = Host(1);
  CUevent event = nullptr;
  EXPECT_CU(cu.cuEventCreate(&event, CU_EVENT_DEFAULT));
  Send(host, 1, first);
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  EXPECT_CU(cu.cuEventDestroy(event));
  EXPECT_EQ(cu.cuEventQuery(event), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU(cu.cuStreamSynchronize(second));
  EXPECT_EQ(*host, 1);
}

TEST_F(EventTest, ElapsedTimeNeedsTimingCompletionAndOneGpu) {
  Start("gpus=2,order=lazy");
  const CUstream stream = Stream(), elsewhere = Stream(1);
  const CUevent first = Event(), last = Event(), other = Event(1);
  CUevent untimed = nullptr;
  EXPECT_CU(cu.cuEventCreate(&untimed, CU_EVENT_DISABLE_TIMING));
  events.emplace_back(untimed, 0);
  float ms = -1;
  EXPECT_EQ(cu.cuEventElapsedTime(&ms, first, last), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_CU(cu.cuEventRecord(first, stream));
  EXPECT_CU(cu.cuEventRecord(untimed, stream));
  EXPECT_CU(cu.cuEventRecord(last, stream));
  On(1, [&] { EXPECT_CU(cu.cuEventRecord(other, elsewhere)); });
  EXPECT_EQ(cu.cuEventElapsedTime(&ms, first, last), CUDA_ERROR_NOT_READY);
  EXPECT_CU(cu.cuEventSynchronize(last));
  EXPECT_CU(cu.cuEventElapsedTime(&ms, first, last));
  EXPECT_GE(ms, 0);
  EXPECT_EQ(cu.cuEventElapsedTime(&ms, first, untimed), CUDA_ERROR_INVALID_HANDLE);
  EXPECT_EQ(cu.cuEventElapsedTime(&ms, first, other), CUDA_ERROR_INVALID_HANDLE);
}

}  // namespace
