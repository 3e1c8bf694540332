// Functions of the model that no driver has. Tests find them by name in libcuda.so.1.
#pragma once

extern "C" {
// Writes down what happens from now on. Until the end nothing runs before a call waits for it, or
// the host has not submitted anything for a while: as late as can be, so that the host knows little.
// Then anything may run, but of `slow_gpu` only if nothing else can.
void agmmModelRecord(int slow_gpu);
// Ends that. A line for each event wait since then that adds an order, valid until the next call:
//   needed|spare stream S operation I of N, stream S operation I of N
// first who waits, behind its I-th operation, then who is awaited, up to its I-th operation; of the
// N since agmmModelRecord. Operations that touch no memory are not counted. Needed: without the
// wait two operations race.
const char* agmmModelVerdicts();
}
