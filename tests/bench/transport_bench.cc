// Messages of one size between two transports of this process over loopback, one way and both ways
// at once, for several settings of the transport. The lower bound to compare with is what plain TCP
// does on the machine.
//   transport_bench [message bytes, default 1 MiB] [messages, default 2000]
#include <sys/resource.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/transport/ucx_transport.h"

namespace agmm {
namespace {

constexpr int kWindow = 8;

struct End : Receiver, BulkStore {
  explicit End(int64_t bytes) : in(bytes), out(bytes) {}
  Verdict Accept(int, const Message&, int64_t bytes, Rows* to) override {
    *to = {in.data(), 1, bytes, bytes};
    return Verdict::kReceive;
  }
  void Lost(int, const Message&, const absl::Status&) override {}  // nothing is parked
  void Arrived(int, const Message&, const absl::Status& status) override {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    absl::MutexLock lock(&mutex);
    ++arrived;
  }
  absl::StatusOr<Rows> Resolve(int, const BulkBlock&, bool) override {
    return absl::NotFoundError("no tensors");
  }
  // Keeps kWindow messages under way until `count` are sent.
  void SendOn(int to, int count) {
    const int i = sent++;
    if (i >= count) return;
    const auto size = static_cast<int64_t>(out.size());
    transport->Send(to, {1, 1, 0, i, 0}, {out.data(), 1, size, size},
                    [this, to, count](absl::Status status) {
                      if (status.ok()) SendOn(to, count);
                    });
  }

  std::vector<std::byte> in, out;
  std::unique_ptr<UcxTransport> transport;
  std::atomic<int> sent{0};
  absl::Mutex mutex;
  int arrived ABSL_GUARDED_BY(mutex) = 0;
};

double CpuSeconds() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  return use.ru_utime.tv_sec + use.ru_stime.tv_sec +
         (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

void Measure(const char* name, const TransportOptions& options, int64_t bytes, int count) {
  for (const bool both : {false, true}) {
    End ends[2] = {End(bytes), End(bytes)};
    for (End& end : ends) end.transport = UcxTransport::Create(options, &end, &end).value();
    for (int i : {0, 1}) {
      if (!ends[i].transport->Connect(1 - i, ends[1 - i].transport->address(), 1).ok())
        std::abort();
      ends[i].transport->SetWorld(1, i, {});
    }
    const absl::Time start = absl::Now();
    const double cpu = CpuSeconds();
    for (int i = 0; i < kWindow; ++i) {
      ends[0].SendOn(1, count);
      if (both) ends[1].SendOn(0, count);
    }
    for (int i : {0, 1}) {
      if (i == 0 && !both) continue;
      const auto all = [&] { return ends[i].arrived == count; };
      ends[i].mutex.LockWhen(absl::Condition(&all));
      ends[i].mutex.Unlock();
    }
    const double seconds = absl::ToDoubleSeconds(absl::Now() - start);
    const double moved = static_cast<double>(bytes) * count * (both ? 2 : 1);
    std::printf("%-34s %-10s %8.0f MB/s each way  %6.3f ns of CPU a byte\n", name,
                both ? "both ways" : "one way", static_cast<double>(bytes) * count / seconds / 1e6,
                (CpuSeconds() - cpu) / moved * 1e9);
    for (End& end : ends) end.transport.reset();
  }
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  const int64_t bytes = argc > 1 ? std::atoll(argv[1]) : 1 << 20;
  const int count = argc > 2 ? std::atoi(argv[2]) : 2000;
  agmm::TransportOptions base;
  agmm::Measure("tcp (default)", base, bytes, count);
  agmm::TransportOptions get = base;
  get.rndv_scheme = "get_zcopy";
  agmm::Measure("tcp, get_zcopy", get, bytes, count);
  agmm::TransportOptions put = base;
  put.tcp_put = true;
  agmm::Measure("tcp, put", put, bytes, count);
  agmm::TransportOptions eager = base;
  eager.rndv_threshold_bytes = int64_t{1} << 40;
  agmm::Measure("tcp, eager", eager, bytes, count);
  agmm::TransportOptions shared = base;
  shared.force_tcp = false;
  agmm::Measure("tcp and shared memory", shared, bytes, count);
}
