// The choices that a schedule is built by, besides its movements.
#pragma once

#include "kernels/schedule/algorithm.h"

namespace agmm {

struct BuildOptions {
  Arrivals arrivals = Arrivals::kPlaces;
  // The number of arrivals for which a rank has places, unless they need more; 0: all. If it is not
  // 0, either only one input may travel, and its chunks must be used in the order of their arrival,
  // or only terms and sums of the result may travel.
  int places = 0;
  bool carried = false;  // sends name the multiply that reads the same tiles
};

}  // namespace agmm
