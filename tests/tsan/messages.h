// The order that messages establish. Between two daemons and a client, messages drive the work: a
// daemon writes a tensor's bytes and reports this over UCX, the sequencer answers the client, whose
// next job reaches the daemon's devices over gRPC. The sanitizer sees one process, and not what
// comes back to it. As with its own sockets, which are one thing to it, whatever was done before
// any message was sent comes before what is done once any has been received.
#pragma once

#include <sanitizer/tsan_interface.h>

inline char messages;

// Before a message is sent.
inline void Sending() { __tsan_release(&messages); }
// Before what was received is used.
inline void Received() { __tsan_acquire(&messages); }
