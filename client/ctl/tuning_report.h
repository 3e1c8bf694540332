// The results of agmmctl tune, and the world's table of tuned plans, as text and JSON. Pure.
#pragma once

#include <string>
#include <vector>

#include "agmm/v1/tuning.pb.h"
#include "client/ctl/json.h"
#include "client/ctl/tuning_run.h"

namespace agmm {

// "8192x11008x4096: ring, 4 chunks a shard: 12.300 ms, auto 13.100 ms".
std::string TunedLine(const TunedShape& one);
// A row for each shape.
std::string TunedText(const std::vector<TunedShape>& shapes);
// {"schema": "agmm.tune_result.v1", "name", "spec", "m", "n", "k", "dtypes", "mesh": "x=4",
//  "ranks": [world rank], "skipped": null or why, "not_stored": null or why, OPTIONS, "time_ms",
//  "spread", "predicted_ms", "auto_ms", "serial_ms", "is_auto": the stored plan is the choice of
//  auto, "hardware", "date",
//  "plans": [{OPTIONS, "predicted_ms", "time_ms", "spread", "epochs", "rounds", "dropped",
//  "refused": null or why}]}
// OPTIONS are "algorithm" and the fields of OptionsJson.
// A value that is not known is null.
Json ToJson(const TunedShape& one);

// The links between the nodes of the world as it is now.
struct LinksNow {
  int nodes = 0;
  double between_gb_per_s = 0;  // of the slowest link; 0: not measured
};
// The stored plans, the shipped ones, and the entries that cannot be used. Plans that were measured
// on links of another rate than those between all nodes are marked: they do not apply.
std::string TuningStatusText(const v1::TuningStatus& status, const LinksNow& now = {});

}  // namespace agmm
