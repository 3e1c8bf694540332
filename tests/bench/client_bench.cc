// The C++ half of python_client.py: puts, gets and small jobs by the library, at its command.
//
//   client_bench ENDPOINT BYTES
//
// Reads lines from stdin: put, get, or run COUNT. Prints the seconds of the transfer of BYTES, or
// of each of COUNT warm 64x64x64 jobs, as a list in JSON. Its tensors have names that begin with
// "cpp." and end with its session.
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "client/agmm.h"
#include "kernels/base/clock.h"

namespace agmm {
namespace {

constexpr int64_t kSize = 64, kCols = 1024;

class Calls {
 public:
  Calls(Client& client, int64_t bytes) : client_(client), data_(bytes / 4, 1.0f) {}

  Status Prepare() {
    const std::vector<float> ones(kSize * kSize, 1.0f);
    for (const auto& [name, sharding] :
         {std::pair{"cpp.A", "[M_x, K]"}, std::pair{"cpp.B", "[K, N_x]"}}) {
      const auto put = client_.Put(name, {.rows = kSize, .cols = kSize, .sharding = sharding},
                                   ones.data(), kSize * kSize * 4);
      if (!put.ok()) return put.status();
    }
    return Put();
  }

  // Does one call of `what`.
  Status Do(const std::string& what) {
    if (what == "put") return Put();
    if (what == "get") return client_.Get("cpp.X", data_.data(), data_.size() * 4).status();
    if (what == "run") return client_.Run(job_).status();
    return Status(StatusCode::kInvalidArgument, what + " is not put, get or run");
  }

 private:
  Status Put() {
    const int64_t rows = data_.size() / kCols;
    return client_
        .Put("cpp.X", {.rows = rows, .cols = kCols, .sharding = "[M_x, N]"}, data_.data(),
             data_.size() * 4)
        .status();
  }

  Client& client_;
  std::vector<float> data_;
  const JobRequest job_{
      .spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]", .a = "cpp.A", .b = "cpp.B", .c = "cpp.C"};
};

Status Run(const std::string& endpoint, int64_t bytes) {
  auto client = Client::Connect({.endpoint = endpoint, .session = true});
  if (!client.ok()) return client.status();
  Calls calls(**client, bytes);
  if (Status prepared = calls.Prepare(); !prepared.ok()) return prepared;
  std::string what;
  while (std::cin >> what) {
    int count = 1;
    if (what == "run") std::cin >> count;
    std::vector<double> seconds;
    for (int i = 0; i < count; ++i) {
      const int64_t begin_ns = MonotonicNanos();
      if (Status done = calls.Do(what); !done.ok()) return done;
      seconds.push_back((MonotonicNanos() - begin_ns) * 1e-9);
    }
    absl::PrintF("[%s]\n", absl::StrJoin(seconds, ", "));
    std::fflush(stdout);
  }
  return Status();
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  int64_t bytes = 0;
  if (argc != 3 || !absl::SimpleAtoi(argv[2], &bytes) || bytes < 4096 || bytes % 4096 != 0) {
    absl::FPrintF(stderr, "usage: client_bench ENDPOINT BYTES, a multiple of 4096\n");
    return 2;
  }
  const agmm::Status status = agmm::Run(argv[1], bytes);
  if (status.ok()) return 0;
  absl::FPrintF(stderr, "client_bench: %s\n", status.ToString());
  return 1;
}
