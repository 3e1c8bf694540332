// The progress of a job in epochs. Pure.
#pragma once

#include <string>

#include "agmm/v1/job.pb.h"

namespace agmm {

// Epochs that are over on every rank that reported, of a job that runs or ran.
struct EpochCount {
  int done = 0, total = 0;
  bool partial = false;   // some ranks have not reported
  double epoch_us = 0;    // median of the last epochs on the slowest rank; 0: none is over
  double current_us = 0;  // time since the slowest rank's epoch in progress began
};
EpochCount CountEpochs(const v1::Job& job);

// "2 of 10 epochs done, 0.15/s, 53 s left", or "0 of 10 epochs done on the ranks that
// reported, the first one for 4.9 s".
std::string EpochsText(const v1::Job& job);

}  // namespace agmm
