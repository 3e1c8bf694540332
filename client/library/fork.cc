#include "client/library/fork.h"

#include <grpc/grpc.h>
#include <unistd.h>

#include <atomic>

#include "absl/strings/str_format.h"

namespace agmm {
namespace {

std::atomic<pid_t> starter = 0;  // the process that has started gRPC; 0 if none has

}  // namespace

void StartGrpc() {
  // Never shut down, because gRPC's shutdown may wait 10 s for one of its own threads.
  if (starter.exchange(getpid()) == 0) grpc_init();
}

bool Forked() {
  const pid_t process = starter;
  return process != 0 && process != getpid();
}

Status ForkedError() {
  return Status(StatusCode::kFailedPrecondition,
                absl::StrFormat("process %d was forked from process %d, and a connection does not "
                                "survive a fork; fork before the first Client::Connect, or exec a "
                                "program that connects",
                                getpid(), starter.load()));
}

}  // namespace agmm
