// Functions of the model that no driver has. Tests find them by name in libcuda.so.1.
#pragma once

extern "C" {
// A place in a stream: behind its `operation`-th operation that touches memory, of the `operations`
// that it was given from agmmModelRecord to agmmModelWaits. Of an earlier one: 0 or less.
struct agmmModelPlace {
  int stream;
  long long operation, operations;
};
// An event wait: the stream that waits, and the one that it waits for, up to there.
struct agmmModelWait {
  struct agmmModelPlace waits, awaited;
};

// Writes down what happens from now on. Until the end nothing runs before a call waits for it, or
// the host has not submitted anything for a while: as late as can be, so that the host knows
// little. Then anything may run, but work of `slow_gpu` only when no other GPU has any.
void agmmModelRecord(int slow_gpu);
// Ends that. The event waits since then, valid until the next agmmModelRecord.
const struct agmmModelWait* agmmModelWaits(int* count);
// The loss without waits[wait]: nothing if every operation still has the same operations before it,
// an order if some operation has fewer before it but none races, a race if two operations race.
enum agmmModelLoss { kLosesNothing, kLosesOrder, kLosesToARace };
enum agmmModelLoss agmmModelWithout(int wait);
}
