// Tells the thread sanitizer what UCX's active messages order; see messages.h. absl_locks.cc
// explains how these functions replace UCX's.
#include <ucp/api/ucp.h>
#include <ucs/sys/sock.h>

#include "tests/tsan/messages.h"
#include "tests/tsan/next.h"

extern "C" void __tsan_read_range(void* begin, unsigned long bytes);

namespace {

// Replaces one handler of the program, and calls it. Never freed.
struct Handler {
  ucp_am_recv_callback_t theirs;
  void* arg;
};

ucs_status_t Run(void* arg, const void* header, size_t header_length, void* data, size_t length,
                 const ucp_am_recv_param_t* param) {
  Received();
  const auto* const handler = static_cast<const Handler*>(arg);
  return handler->theirs(handler->arg, header, header_length, data, length, param);
}

}  // namespace

extern "C" ucs_status_t ucp_worker_set_am_recv_handler(ucp_worker_h worker,
                                                       const ucp_am_handler_param_t* param) {
  static const auto theirs = Next(&ucp_worker_set_am_recv_handler);
  ucp_am_handler_param_t with_ours = *param;
  with_ours.arg = new Handler{param->cb, param->arg};
  with_ours.cb = Run;
  return theirs(worker, &with_ours);
}

extern "C" ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void* header,
                                            size_t header_length, const void* buffer, size_t count,
                                            const ucp_request_param_t* param) {
  static const auto theirs = Next(&ucp_am_send_nbx);
  Sending();
  return theirs(ep, id, header, header_length, buffer, count, param);
}

// Bytes that are sent directly from a tensor are read before the peer can have answered. The
// sanitizer's own sendmsg would record the read after the call, so it is disabled
// (intercept_send=0, tests/CMakeLists.txt).
extern "C" ucs_status_t ucs_socket_send_nb(int fd, const void* data, size_t* bytes) {
  static const auto theirs = Next(&ucs_socket_send_nb);
  __tsan_read_range(const_cast<void*>(data), *bytes);
  Sending();
  return theirs(fd, data, bytes);
}

extern "C" ucs_status_t ucs_socket_sendv_nb(int fd, struct iovec* parts, size_t count,
                                            size_t* bytes) {
  static const auto theirs = Next(&ucs_socket_sendv_nb);
  for (size_t i = 0; i < count; ++i) __tsan_read_range(parts[i].iov_base, parts[i].iov_len);
  Sending();
  return theirs(fd, parts, count, bytes);
}
