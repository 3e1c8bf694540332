// Functions that only the model has. Tests find them by name in libcuda.so.1.
#pragma once

extern "C" {
// A place in a stream: after its operation number `operation` that touches memory, of the
// `operations` submitted between agmmModelRecord and agmmModelWaits. For earlier operations: 0 or
// less.
struct agmmModelPlace {
  int stream;
  long long operation, operations;
};
// An event wait: the place that waits, and the place it waits for.
struct agmmModelWait {
  struct agmmModelPlace waits, awaited;
};

// Records all operations from now on. Until the end, nothing runs before a call waits for it or the
// host has not submitted anything for a while: work runs as late as possible, so that the host
// knows little. Then any work may run, but work of `slow_gpu` only when no other GPU has any.
void agmmModelRecord(int slow_gpu);
// Ends the recording. Returns its event waits, valid until the next agmmModelRecord.
const struct agmmModelWait* agmmModelWaits(int* count);
// Returns the loss without waits[wait]: nothing if every operation still has the same operations
// before it, an order if some operation has fewer before it but none races, a race if two
// operations race.
enum agmmModelLoss { kLosesNothing, kLosesOrder, kLosesToARace };
enum agmmModelLoss agmmModelWithout(int wait);
}
