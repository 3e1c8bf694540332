#include "kernels/cuda/gpu_topology.h"

#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace agmm {
namespace {

// Returns the island of each GPU. A GPU joins the first island whose GPUs are all connected to it.
std::vector<int> IslandsOf(const std::vector<std::vector<bool>>& access) {
  const int count = static_cast<int>(access.size());
  std::vector<int> islands;
  for (int gpu = 0; gpu < count; ++gpu) {
    int island = 0;
    const auto fits = [&] {
      for (int other = 0; other < gpu; ++other)
        if (islands[other] == island && !access[gpu][other]) return false;
      return true;
    };
    while (island < gpu && (islands[island] != island || !fits())) ++island;
    islands.push_back(island);
  }
  return islands;
}

}  // namespace

GpuTopology::GpuTopology(std::vector<std::vector<bool>> access)
    : access_(std::move(access)), islands_(IslandsOf(access_)) {}

bool GpuTopology::ReachesAll(int gpu) const {
  return absl::c_all_of(access_[gpu], [](bool reaches) { return reaches; });
}

std::string GpuTopology::ReachText(int gpu) const {
  const int count = static_cast<int>(access_.size());
  const auto reached = [&](int other) {
    return other < count && other != gpu && access_[gpu][other];
  };
  std::vector<std::string> ranges;
  int reached_count = 0;
  for (int first = 0, end; first < count; first = end + 1) {
    for (end = first; reached(end);) ++end;
    reached_count += end - first;
    if (end - first == 1) ranges.push_back(absl::StrCat(first));
    if (end - first > 1) ranges.push_back(absl::StrCat(first, " to ", end - 1));
  }
  if (ranges.empty()) return "reaches no other GPU";
  return absl::StrCat(reached_count == 1 ? "reaches GPU " : "reaches GPUs ",
                      absl::StrJoin(ranges, ", "));
}

}  // namespace agmm
