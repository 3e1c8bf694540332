// Functions of the model that no driver has. Tests find them by name in libcuda.so.1.
#pragma once

extern "C" {
// Writes down what happens from now on. Until the end nothing runs before a call waits for it, or
// the host has not submitted anything for a while: as late as can be, so that the host knows
// little. Then anything may run, but work of `slow_gpu` only when no other GPU has any.
void agmmModelRecord(int slow_gpu);
// Ends that. A line for each event wait since then that adds an order, valid until the next call:
//   needed|spare stream S operation I of N, stream S operation I of N
// First the stream that waits, behind its I-th operation, then the one that it waits for, up to its
// I-th operation; of the N operations since agmmModelRecord that touch memory. Needed: without the
// wait two operations race.
const char* agmmModelVerdicts();
}
