// Messages of one size between two transports of this process over loopback, one way and both ways
// at once, for several settings of the transport. The lower bound to compare with is what plain TCP
// does on the machine.
//   transport_bench [message bytes, default 1 MiB] [messages, default 2000] [--json]
// --json prints the default settings only: {"one_way": {"mb_s_each_way", "cpu_ns_a_byte"},
// "both_ways": {...}}. A byte counts once, although it is sent and received.
#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "daemon/transport/ucx_transport.h"
#include "tests/support/transport_port.h"

namespace agmm {
namespace {

constexpr int kWindow = 8;
// Messages pass through this much memory at each end: more than the caches hold, like an operand.
constexpr int64_t kBufferBytes = 64 << 20;

struct End : Receiver, BulkStore {
  explicit End(int64_t bytes)
      : size(bytes),
        places(std::max<int64_t>(1, kBufferBytes / bytes)),
        in(places * bytes),
        out(places * bytes) {}
  Verdict Accept(int, const Message& message, int64_t bytes, Arrival* arrival) override {
    arrival->to = {in.data() + message.step % places * size, 1, bytes, bytes};
    return Verdict::kReceive;
  }
  void Lost(int, const Message&, const absl::Status&) override {}  // nothing is parked
  void Arrived(int, const Message&, const Arrival&, const absl::Status& status) override {
    if (!status.ok()) std::fprintf(stderr, "%s\n", status.ToString().c_str());
    absl::MutexLock lock(&mutex);
    ++arrived;
  }
  absl::StatusOr<Rows> Resolve(int, const BulkBlock&, bool) override {
    return absl::NotFoundError("no tensors");
  }
  // Keeps kWindow messages in flight until `count` are sent.
  void SendOn(int to, int count) {
    const int i = sent++;
    if (i >= count) return;
    transport->Send(to, {1, 1, 0, i, 0}, {out.data() + i % places * size, 1, size, size},
                    [this, to, count](absl::Status status) {
                      if (status.ok()) SendOn(to, count);
                    });
  }

  const int64_t size, places;
  std::vector<std::byte> in, out;
  std::unique_ptr<UcxTransport> transport;
  std::atomic<int> sent{0};
  absl::Mutex mutex;
  int arrived = 0;  // with `mutex`
};

double CpuSeconds() {
  rusage use;
  getrusage(RUSAGE_SELF, &use);
  return use.ru_utime.tv_sec + use.ru_stime.tv_sec +
         (use.ru_utime.tv_usec + use.ru_stime.tv_usec) * 1e-6;
}

void Measure(const char* name, const TransportOptions& options, int64_t bytes, int count,
             bool json) {
  for (const bool both : {false, true}) {
    End ends[2] = {End(bytes), End(bytes)};
    for (End& end : ends) end.transport = UcxTransport::Create(options, &end, &end).value();
    const TransportPort ports[2] = {Renewed(*ends[0].transport), Renewed(*ends[1].transport)};
    for (int i : {0, 1}) ends[i].transport->SetWorld(1, i, {});
    for (int i : {0, 1}) {
      if (!ends[i].transport->Connect(1 - i, ports[1 - i].address).ok()) std::abort();
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
    const double speed = static_cast<double>(bytes) * count / seconds / 1e6;
    const double cost = (CpuSeconds() - cpu) / moved * 1e9;
    if (json) {
      std::printf("%s{\"mb_s_each_way\": %.1f, \"cpu_ns_a_byte\": %.4f}%s",
                  both ? ", \"both_ways\": " : "{\"one_way\": ", speed, cost, both ? "}\n" : "");
    } else {
      std::printf("%-34s %-10s %8.0f MB/s each way  %6.3f ns of CPU a byte\n", name,
                  both ? "both ways" : "one way", speed, cost);
    }
    for (End& end : ends) end.transport.reset();
  }
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  const int64_t bytes = argc > 1 ? std::atoll(argv[1]) : 1 << 20;
  const int count = argc > 2 ? std::atoi(argv[2]) : 2000;
  const bool json = argc > 3 && std::string(argv[3]) == "--json";
  agmm::TransportOptions base;
  agmm::Measure("tcp (default)", base, bytes, count, json);
  if (json) return 0;
  agmm::TransportOptions get = base;
  get.other_settings = {{"RNDV_SCHEME", "get_zcopy"}};
  agmm::Measure("tcp, get_zcopy", get, bytes, count, json);
  agmm::TransportOptions put = base;
  put.other_settings = {{"TCP_PUT_ENABLE", "y"}};
  agmm::Measure("tcp, put", put, bytes, count, json);
  agmm::TransportOptions eager = base;
  eager.other_settings = {{"RNDV_THRESH", std::to_string(int64_t{1} << 40)}};
  agmm::Measure("tcp, eager", eager, bytes, count, json);
  agmm::TransportOptions shared = base;
  shared.other_settings = {
      {"TLS", "tcp,self,sysv,posix"}, {"POSIX_ERROR_HANDLING", "y"}, {"SYSV_ERROR_HANDLING", "y"}};
  agmm::Measure("tcp and shared memory", shared, bytes, count, json);
}
