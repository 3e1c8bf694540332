// Tells the thread sanitizer what a server's callbacks of one call order. libgrpc++ counts them,
// and the last one calls OnCancel or OnDone; the sanitizer does not see all of this counting.
// absl_locks.cc explains how these functions replace gRPC's.
#include <grpc/grpc.h>
#include <grpcpp/server.h>
#include <grpcpp/support/server_callback.h>
#include <sanitizer/tsan_interface.h>

#include "tests/tsan/messages.h"
#include "tests/tsan/next.h"

namespace grpc {
namespace internal {
namespace {

// Replaces a reactor while its OnCancel runs, because libgrpc++ counts OnCancel after its return.
class Cancelled final : public ServerReactor {
 public:
  Cancelled(ServerReactor* theirs, void* count) : theirs_(theirs), count_(count) {}

  void OnCancel() override {
    theirs_->OnCancel();
    __tsan_release(count_);
    delete this;
  }
  void OnDone() override { std::abort(); }  // is called on the reactor itself
  bool InternalInlineable() override { return theirs_->InternalInlineable(); }

 private:
  ServerReactor* const theirs_;
  void* const count_;
};

}  // namespace

void ServerCallbackCall::CallOnCancel(ServerReactor* reactor) {
  static const auto theirs = Next(&ServerCallbackCall::CallOnCancel);
  __tsan_acquire(&on_cancel_conditions_remaining_);
  (this->*theirs)(new Cancelled(reactor, &callbacks_outstanding_));
}

void ServerCallbackCall::ScheduleOnDone(bool inline_ondone) {
  static const auto theirs = Next(&ServerCallbackCall::ScheduleOnDone);
  __tsan_acquire(&callbacks_outstanding_);
  (this->*theirs)(inline_ondone);
}

}  // namespace internal

// A server keeps an object for its next call, which the thread that accepted the previous call has
// created (see grpc_metadata_array_init). The next call's thread uses the object when the call
// arrives. It may be older than the server, because gRPC's threads serve the whole process.
void ServerContextBase::BindDeadlineAndMetadata(gpr_timespec deadline,
                                                grpc_metadata_array* metadata) {
  static const auto theirs = Next(&ServerContextBase::BindDeadlineAndMetadata);
  __tsan_acquire(metadata);
  Received();
  (this->*theirs)(deadline, metadata);
}

// A call releases its server after its OnDone; Shutdown waits for the last call.
void Server::UnrefWithPossibleNotify() {
  static const auto theirs = Next(&Server::UnrefWithPossibleNotify);
  __tsan_release(&shutdown_refs_outstanding_);
  (this->*theirs)();
}

void Server::UnrefAndWaitLocked() {
  static const auto theirs = Next(&Server::UnrefAndWaitLocked);
  (this->*theirs)();
  __tsan_acquire(&shutdown_refs_outstanding_);
}

}  // namespace grpc

extern "C" void grpc_metadata_array_init(grpc_metadata_array* array) {
  static const auto theirs = Next(&grpc_metadata_array_init);
  theirs(array);
  __tsan_release(array);
}

extern "C" void grpc_server_start(grpc_server* server) {
  static const auto theirs = Next(&grpc_server_start);
  Sending();
  theirs(server);
}
