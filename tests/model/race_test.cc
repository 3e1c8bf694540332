// The race check, and its results for each wait.
#include <dlfcn.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/model/history_calls.h"
#include "tests/model/model_fixture.h"

namespace {

class RaceTest : public ModelTest {
 protected:
  void Begin(const std::string& options = "order=lazy") {
    Start(options);
    first = Stream();
    second = Stream();
    event = Event();
    memory = Device(kMiB);
  }

  CUDA_MEMCPY2D Rows(CUdeviceptr to, CUdeviceptr from, size_t pitch, size_t width, size_t height) {
    CUDA_MEMCPY2D copy = {};
    copy.dstMemoryType = copy.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    copy.dstDevice = to;
    copy.srcDevice = from;
    copy.dstPitch = copy.srcPitch = pitch;
    copy.WidthInBytes = width;
    copy.Height = height;
    return copy;
  }

  CUstream first = nullptr, second = nullptr;
  CUevent event = nullptr;
  CUdeviceptr memory = 0;
};
using RaceDeathTest = RaceTest;

TEST_F(RaceDeathTest, AMissingWaitIsReportedWithBothOperations) {
  for (const char* order : {"eager", "lazy", "random"}) {
    const auto run = [&] {
      Begin(std::string("order=") + order);
      cu.cuMemsetD8Async(memory, 1, 100, first);
      cu.cuMemcpyDtoHAsync(Host(1), memory + 99, 1, second);
    };
    EXPECT_DEATH(
        run(),
        "race: cuMemcpyDtoHAsync #2 on stream 1 of GPU 0 reads .* and cuMemsetD8Async #1 on stream "
        "0 of GPU 0 writes");
  }
}

TEST_F(RaceTest, NeighboursDoNotRace) {
  Begin();
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, first));
  EXPECT_CU(cu.cuMemsetD8Async(memory + 100, 2, 100, second));
}

TEST_F(RaceTest, ReadsDoNotRace) {
  Begin();
  EXPECT_CU(cu.cuMemcpyDtoHAsync(Host(8), memory, 8, first));
  EXPECT_CU(cu.cuMemcpyDtoHAsync(Host(8), memory, 8, second));
}

TEST_F(RaceTest, AnEventOrders) {
  Begin();
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, first));
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  EXPECT_CU(cu.cuMemsetD8Async(memory, 2, 100, second));
}

TEST_F(RaceTest, EventsOrderThroughAThirdStream) {
  Begin();
  const CUstream third = Stream();
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, first));
  EXPECT_CU(cu.cuEventRecord(event, first));
  EXPECT_CU(cu.cuStreamWaitEvent(second, event, 0));
  EXPECT_CU(cu.cuEventRecord(event, second));
  EXPECT_CU(cu.cuStreamWaitEvent(third, event, 0));
  EXPECT_CU(cu.cuMemsetD8Async(memory, 2, 100, third));
  EXPECT_CU(cu.cuStreamSynchronize(third));
}

TEST_F(RaceTest, ASynchronisationOfTheHostOrders) {
  Begin();
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  EXPECT_CU(cu.cuMemsetD8Async(memory, 2, 100, second));
}

TEST_F(RaceTest, ASuccessfulQueryOrders) {
  Begin();
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, first));
  EXPECT_CU(cu.cuEventRecord(event, first));
  while (cu.cuEventQuery(event) != CUDA_SUCCESS) {
  }
  EXPECT_CU(cu.cuMemsetD8Async(memory, 2, 100, second));
}

TEST_F(RaceDeathTest, AQueryThatIsNotReadyDoesNotOrder) {
  const auto run = [&] {
    Begin();
    cu.cuMemsetD8Async(memory, 1, 100, first);
    cu.cuEventRecord(event, first);
    if (cu.cuEventQuery(event) == CUDA_ERROR_NOT_READY) {
      cu.cuMemsetD8Async(memory, 2, 100, second);
    }
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceDeathTest, AWaitForAnEarlierRecordDoesNotOrderLaterWork) {
  const auto run = [&] {
    Begin();
    cu.cuEventRecord(event, first);
    cu.cuStreamWaitEvent(second, event, 0);
    cu.cuMemsetD8Async(memory, 1, 100, first);
    cu.cuEventRecord(event, first);
    cu.cuMemsetD8Async(memory, 2, 100, second);
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceTest, ColumnsSideBySideDoNotRace) {
  Begin();
  const CUdeviceptr source = Device(kMiB);
  const CUDA_MEMCPY2D left = Rows(memory, source, 64, 32, 100);
  const CUDA_MEMCPY2D right = Rows(memory + 32, source, 64, 32, 100);
  EXPECT_CU(cu.cuMemcpy2DAsync(&left, first));
  EXPECT_CU(cu.cuMemcpy2DAsync(&right, second));
}

TEST_F(RaceDeathTest, OneSharedByteOfARowRaces) {
  const auto run = [&] {
    Begin();
    const CUdeviceptr source = Device(kMiB);
    const CUDA_MEMCPY2D some = Rows(memory, source, 64, 32, 100);
    // The last byte of each row is the first one of the next row of the other copy.
    const CUDA_MEMCPY2D others = Rows(memory + 32, source, 64, 33, 100);
    cu.cuMemcpy2DAsync(&some, first);
    cu.cuMemcpy2DAsync(&others, second);
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceDeathTest, TwoMappingsOfOneMemoryRace) {
  const auto run = [&] {
    Begin();
    CUmemGenericAllocationHandle handle = 0;
    const CUmemAllocationProp prop = OnGpu(0);
    cu.cuMemCreate(&handle, 2 * kMiB, &prop, 0);
    CUdeviceptr at[2];
    const CUmemAccessDesc access = Access(0);
    for (CUdeviceptr& address : at) {
      cu.cuMemAddressReserve(&address, 2 * kMiB, 0, 0, 0);
      cu.cuMemMap(address, 2 * kMiB, 0, handle, 0);
      cu.cuMemSetAccess(address, 2 * kMiB, &access, 1);
    }
    cu.cuMemsetD8Async(at[0], 1, 100, first);
    cu.cuMemsetD8Async(at[1], 2, 100, second);
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceDeathTest, CopiesIntoOnePinnedBufferRace) {
  const auto run = [&] {
    Begin();
    char* host = Host(8);
    cu.cuMemcpyDtoHAsync(host, memory, 8, first);
    cu.cuMemcpyDtoHAsync(host, memory, 8, second);
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceDeathTest, TheHostMustNotChangeWhatAPendingCopyReads) {
  const auto run = [&](size_t at) {
    Begin();
    char* host = Host(8);
    cu.cuMemcpyHtoDAsync(memory, host + 2, 4, first);
    host[at] = 1;
    cu.cuStreamSynchronize(first);
  };
  for (size_t at : {2, 5}) {
    EXPECT_DEATH(run(at),
                 "the host has written to pinned memory that cuMemcpyHtoDAsync #1 on stream 0 of "
                 "GPU 0 reads; wait for it first");
  }
  for (size_t at : {1, 6}) {
    EXPECT_EXIT((run(at), TearDown(), exit(0)), testing::ExitedWithCode(0), "");
  }
}

TEST_F(RaceDeathTest, TheHostMustNotChangeARowOfAPendingCopy) {
  const auto run = [&](size_t at) {
    Begin();
    char* host = Host(24);
    CUDA_MEMCPY2D rows = Rows(memory, 0, 8, 4, 3);
    rows.srcMemoryType = CU_MEMORYTYPE_HOST;
    rows.srcHost = host;
    cu.cuMemcpy2DAsync(&rows, first);
    host[at] = 1;
    cu.cuStreamSynchronize(first);
  };
  EXPECT_DEATH(run(19), "the host has written to pinned memory that cuMemcpy2DAsync #1 ");
  EXPECT_EXIT((run(20), TearDown(), exit(0)), testing::ExitedWithCode(0), "");
}

TEST_F(RaceDeathTest, ACopyThatHasBegunIsStillPending) {
  const auto run = [&] {
    Begin();
    constexpr size_t kBytes = 1 << 16;
    // Most copies have several pieces, of which a query runs one.
    for (int i = 0; i < 16; ++i) {
      char* host = Host(kBytes);
      cu.cuMemcpyHtoDAsync(memory, host, kBytes, first);
      cu.cuStreamQuery(first);
      host[0] = host[kBytes - 1] = 1;
      cu.cuStreamSynchronize(first);
    }
  };
  EXPECT_DEATH(run(), "the host has written to pinned memory");
}

TEST_F(RaceTest, OperationsMayChangeWhatALaterCopyReads) {
  Begin();
  char* host = Host(8);
  EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 8, first));
  EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory, 8, first));
  EXPECT_CU(cu.cuMemcpyHtoDAsync(memory + 8, host, 8, first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  host[0] = 2;  // the copies have ended
  EXPECT_CU(cu.cuMemcpyDtoHAsync(host, memory + 8, 8, first));
  EXPECT_CU(cu.cuStreamSynchronize(first));
  EXPECT_EQ(host[0], 1);
}

TEST_F(RaceDeathTest, FreeingMemoryInUseIsReported) {
  const auto run = [&] {
    Begin("order=eager");
    const CUdeviceptr shortly = Device(8);
    cu.cuMemsetD8Async(shortly, 1, 8, first);
    cu.cuMemFree(shortly);
  };
  EXPECT_DEATH(run(),
               "cuMemFree of .* while cuMemsetD8Async #1 on stream 0 of GPU 0 may still use it");
}

TEST_F(RaceDeathTest, AStreamThatReplacesADestroyedOneIsNotOrderedAfterIt) {
  const auto run = [&] {
    Begin();
    CUstream shortly = nullptr;
    cu.cuStreamCreateWithPriority(&shortly, CU_STREAM_NON_BLOCKING, 0);
    cu.cuMemsetD8Async(memory, 1, 100, shortly);
    cu.cuStreamDestroy(shortly);
    cu.cuMemsetD8Async(memory, 1, 100, Stream());
  };
  EXPECT_DEATH(run(), "race");
}

TEST_F(RaceTest, AStreamThatReplacesAFinishedOneIsOrderedByTheHost) {
  Begin();
  for (int i = 0; i < 10; ++i) {
    CUstream shortly = nullptr;
    EXPECT_CU(cu.cuStreamCreateWithPriority(&shortly, CU_STREAM_NON_BLOCKING, 0));
    EXPECT_CU(cu.cuMemsetD8Async(memory, 1, 100, shortly));
    EXPECT_CU(cu.cuStreamSynchronize(shortly));
    EXPECT_CU(cu.cuStreamDestroy(shortly));
  }
}

TEST_F(RaceTest, AHistoryShowsTheNeededWaits) {
  Begin();
  void* const library = dlopen(AGMM_MODEL_FOLDER "/libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  ASSERT_NE(library, nullptr);
  const auto record =
      reinterpret_cast<decltype(&agmmModelRecord)>(dlsym(library, "agmmModelRecord"));
  const auto waits = reinterpret_cast<decltype(&agmmModelWaits)>(dlsym(library, "agmmModelWaits"));
  const auto without =
      reinterpret_cast<decltype(&agmmModelWithout)>(dlsym(library, "agmmModelWithout"));
  const CUdeviceptr other = Device(kMiB);
  cu.cuMemsetD8Async(memory, 1, 100, first);
  record(/*slow_gpu=*/0);
  cu.cuMemsetD8Async(memory, 2, 100, first);
  cu.cuEventRecord(event, first);
  cu.cuStreamWaitEvent(second, event, 0);
  cu.cuMemsetD8Async(memory, 3, 100, second);
  cu.cuStreamWaitEvent(second, event, 0);  // adds no order
  cu.cuMemsetD8Async(memory, 4, 100, second);
  cu.cuEventRecord(event, second);
  cu.cuStreamWaitEvent(first, event, 0);
  cu.cuMemsetD8Async(other, 5, 100, first);
  int count = 0;
  const agmmModelWait* const wait = waits(&count);
  const auto text = [&](int i) {
    const auto& [behind, awaited] = wait[i];
    std::ostringstream text;
    const agmmModelLoss loss = without(i);
    text << (loss == kLosesToARace ? "needed "
             : loss == kLosesOrder ? "spare "
                                   : "idle ")
         << behind.stream << ": " << behind.operation << " of " << behind.operations << ", "
         << awaited.stream << ": " << awaited.operation << " of " << awaited.operations;
    return text.str();
  };
  ASSERT_EQ(count, 3);
  EXPECT_EQ(text(0), "needed 1: 0 of 2, 0: 1 of 2");
  EXPECT_EQ(text(1), "idle 1: 1 of 2, 0: 1 of 2");
  EXPECT_EQ(text(2), "spare 0: 1 of 2, 1: 2 of 2");
  record(0);
  waits(&count);
  EXPECT_EQ(count, 0);
}

TEST_F(RaceTest, TheReportCountsWaitsThatAddAnOrder) {
  const std::string path = testing::TempDir() + "model_report." + std::to_string(getpid());
  const auto run = [&] {
    Begin("report=" + path);
    const CUevent early = Event();
    cu.cuEventRecord(early, first);
    cu.cuMemsetD8Async(memory, 1, 100, first);
    cu.cuEventRecord(event, first);
    cu.cuStreamWaitEvent(second, early, 0);
    cu.cuStreamWaitEvent(second, event, 0);  // orders more than the previous one
    cu.cuMemsetD8Async(memory, 2, 100, second);
    cu.cuStreamWaitEvent(second, early, 0);
    cu.cuMemsetD8Async(memory, 3, 100, second);
    TearDown();
    exit(0);
  };
  EXPECT_EXIT(run(), testing::ExitedWithCode(0), "");
  std::stringstream report;
  report << std::ifstream(path).rdbuf();
  unlink(path.c_str());
  EXPECT_NE(report.str().find("waits=3 ordering_waits=1 "), std::string::npos) << report.str();
}

}  // namespace
