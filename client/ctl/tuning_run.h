// The measurements of agmmctl tune.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "agmm/v1/tuning.pb.h"
#include "client/connect/connection.h"
#include "client/ctl/bench_shapes.h"
#include "client/ctl/tuning_race.h"
#include "kernels/base/dtype.h"
#include "kernels/schedule/problem.h"

namespace agmm {

struct TuneRequest {
  std::string spec, mesh;
  DType dtype = DType::kBF16;      // of the operands to which the spec gives none
  std::vector<BenchShape> shapes;  // of the spec
  bool suite = false;              // adds the suite, for the default spec also that of sums
  int scale = 0;                   // of the suite; 0: chosen by the kind of device
  absl::Duration budget;           // of all shapes together
  int rounds = 0;                  // of each shape, at most
  absl::Duration timeout;          // of each job
};

struct TunedShape {
  std::string name, spec;
  Problem problem;
  TuningRace race;
  Outcome outcome;       // of the race
  v1::TunedPlan stored;  // as the sequencer keeps it
  std::string skipped;   // the reason if it was not measured

  bool is_stored() const { return skipped.empty() && outcome.not_stored.empty(); }
};

// Receives a shape once its plan is stored, or it is known why none is. `shown`: a line on the
// terminal shows the progress.
using OnTuned = std::function<void(const TunedShape& one, bool shown)>;

// Measures the plans of each shape in turn and stores the best ones in the world, each shape's as
// soon as it is known. Measures the world first if it does not know its machine. The tensors belong
// to a session that ends with the connection. Errors: INVALID_ARGUMENT for a budget that is too
// short for one round, if that is known before anything runs, and DEADLINE_EXCEEDED if it is not;
// RESOURCE_EXHAUSTED if no shape fits, or with QUOTA_FULL or
// TRANSFERS_FULL if the daemons cannot take another call or job at present.
absl::Status Tune(Connection* connection, const TuneRequest& request, const OnTuned& on_done);

}  // namespace agmm
