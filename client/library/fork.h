// gRPC in this process, and in forked children, which it does not survive: its threads run in the
// parent alone, and its sockets belong to both.
#pragma once

#include "client/agmm.h"

namespace agmm {

// Starts gRPC, for the life of the process. Not in a forked child of a process that has.
void StartGrpc();
// True in such a child. It touches no call, no connection and no mutex of the parent's, not even to
// destroy it; what it would destroy stays in its memory.
bool Forked();
// FAILED_PRECONDITION, for every call in such a child.
Status ForkedError();

}  // namespace agmm
