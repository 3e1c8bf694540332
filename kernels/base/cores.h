#pragma once

namespace agmm {

// How many cores this process may use: taskset, cpusets and Slurm give fewer than the machine has.
int UsableCores();

}  // namespace agmm
