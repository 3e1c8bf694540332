// Advice on shardings for people and for programs: what `agmmctl advise` prints. Pure.
#pragma once

#include <string>

#include "client/ctl/json.h"
#include "kernels/predict/advise.h"

namespace agmm {

// A table of the ranked shardings, and the reason for the first place. Of several products, each
// has a row below the one of their sums.
std::string AdviceText(const AdviceRequest& request, const Platform& platform,
                       const AdviceAnswer& answer);

// {"schema": "agmm.advice.v1", "machine": {"name", "version"}, "mesh": "x=4,y=4",
//  "memory_bytes": the limit, or null, "candidates", "too_large", "simulated", "least_bytes",
//  "why", "ranked": [{"place", "is_shared", "time_ns", "gemm_ns", "received_bytes",
//    "memory_bytes", "products": [{"spec", "split", "algorithm", "chunks", "k_chunks",
//      "workspace_shards", "workspace_bytes", "time_ns", "gemm_ns", "received_bytes",
//      "moves": [{"collective": "all-gather", "operand": "A", "axes": ["x"], "bytes"}]}]}]}
Json AdviceJson(const AdviceRequest& request, const Platform& platform, const AdviceAnswer& answer);

// RESOURCE_EXHAUSTED: no candidate fits the memory. Names the smallest need.
absl::Status NothingFits(const AdviceRequest& request, const AdviceAnswer& answer);

}  // namespace agmm
