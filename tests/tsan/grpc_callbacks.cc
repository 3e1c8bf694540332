// Tells the thread sanitizer that everything before the start of a call's batch happens before the
// batch's callback. gRPC passes the batch on with atomics that the sanitizer does not see.
// absl_locks.cc explains how these functions replace gRPC's.
#include <dlfcn.h>
#include <grpc/grpc.h>
#include <link.h>
#include <sanitizer/tsan_interface.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "tests/tsan/messages.h"

namespace {

// Replaces gRPC++'s functor of one batch, and calls it.
struct Callback : grpc_completion_queue_functor {
  grpc_completion_queue_functor* theirs = nullptr;
  bool receives = false;
};

void Run(grpc_completion_queue_functor* functor, int ok) {
  auto* const callback = static_cast<Callback*>(functor);
  __tsan_acquire(callback);
  if (callback->receives) Received();
  grpc_completion_queue_functor* const theirs = callback->theirs;
  delete callback;
  theirs->functor_run(theirs, ok);
}

int AddCode(dl_phdr_info* object, size_t, void* ranges) {
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& part = object->dlpi_phdr[i];
    if (part.p_type != PT_LOAD || (part.p_flags & PF_X) == 0) continue;
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    static_cast<std::vector<std::pair<uintptr_t, uintptr_t>>*>(ranges)->emplace_back(
        begin, begin + part.p_memsz);
  }
  return 0;
}

// If the queue of a batch makes callbacks, the batch's tag is a functor, whose first member is a
// function's address. Otherwise the tag is an object, which begins with the address of its virtual
// table, and that is not code.
bool IsFunctor(const void* tag) {
  static const auto* const code = [] {
    auto* const ranges = new std::vector<std::pair<uintptr_t, uintptr_t>>;
    dl_iterate_phdr(AddCode, ranges);
    return ranges;
  }();
  const uintptr_t first = *static_cast<const uintptr_t*>(tag);
  for (const auto& [begin, end] : *code)
    if (first >= begin && first < end) return true;
  return false;
}

}  // namespace

extern "C" grpc_call_error grpc_call_start_batch(grpc_call* call, const grpc_op* ops, size_t nops,
                                                 void* tag, void* reserved) {
  const auto has = [&](auto wanted) { return std::any_of(ops, ops + nops, wanted); };
  if (has([](const grpc_op& op) { return op.op <= GRPC_OP_SEND_STATUS_FROM_SERVER; })) Sending();
  static const auto theirs =
      reinterpret_cast<decltype(&grpc_call_start_batch)>(dlsym(RTLD_NEXT, "grpc_call_start_batch"));
  if (theirs == nullptr) std::abort();
  if (tag == nullptr || !IsFunctor(tag)) return theirs(call, ops, nops, tag, reserved);
  auto* const callback = new Callback;
  callback->functor_run = Run;
  callback->theirs = static_cast<grpc_completion_queue_functor*>(tag);
  callback->inlineable = callback->theirs->inlineable;
  callback->receives =
      has([](const grpc_op& op) { return op.op >= GRPC_OP_RECV_INITIAL_METADATA; });
  __tsan_release(callback);
  const grpc_call_error error = theirs(call, ops, nops, callback, reserved);
  if (error != GRPC_CALL_OK) delete callback;
  return error;
}
