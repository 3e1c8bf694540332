// Use of gRPC in this process. gRPC does not work in forked children: its threads run in the parent
// alone, and its sockets belong to both.
#pragma once

#include "client/agmm.h"

namespace agmm {

// Starts gRPC, for the life of the process. Must not be called in a forked child of a process that
// has started it.
void StartGrpc();
// Returns true in such a child. A child must not touch any call, connection or mutex of the parent,
// not even to destroy it; objects that it would destroy stay in its memory.
bool Forked();
// FAILED_PRECONDITION, for every call in such a child.
Status ForkedError();

}  // namespace agmm
