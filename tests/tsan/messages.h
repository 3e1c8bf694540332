// The order that messages establish. A daemon writes a tensor's bytes and reports this over UCX,
// the sequencer answers the client, and the client's next job reaches the daemon's devices over
// gRPC. The sanitizer sees one process, so it cannot know that the job follows from the report.
// Therefore everything before the sending of any message happens before everything after the
// receipt of any message. The sanitizer treats sockets alike: all of them are one object to it.
#pragma once

#include <sanitizer/tsan_interface.h>

inline char messages;

// Called before a message is sent.
inline void Sending() { __tsan_release(&messages); }
// Called before a received message is used.
inline void Received() { __tsan_acquire(&messages); }
