// Figures that the documents of the field publish, beside ours: the scaling book ("How to Scale
// Your Model", part 3) with its quizzes and problems, and the guide "Collective matrix
// multiplication" of Pallas:MGPU.
#pragma once

#include <array>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/machine.h"

namespace agmm {

struct SeedRow {
  std::string source;    // "scaling book, question 2"
  std::string question;  // with the sizes that we chose where the source leaves them open
  std::string unit;
  double seed = 0;   // NaN: not given
  double digit = 0;  // the value of 1 in the last digit that the source prints; 0: seed is NaN
  double ours = 0;
  std::string why;  // one line, if they differ by more than the rounding of the source; else empty
};

// Returns true if our figure rounds to the source's, or if it has none.
bool Agrees(const SeedRow& row);

// The machines of the questions: the presets tpu-v4p, tpu-v5e, tpu-v5p and h100-nvlink.
struct SeedMachines {
  Machine tpu_v4p, tpu_v5e, tpu_v5p, h100;
};

// The elements that cross one link in its busier direction.
struct LinkElements {
  double gather_one_way = 0, all_to_all_one_way = 0, gather_both_ways = 0, all_to_all_both_ways = 0;
};
// Question 10: of an N x N matrix on a ring of D devices.
inline constexpr int kQuestion10Rows = 1024;   // N
inline constexpr int kQuestion10Devices = 16;  // D
inline constexpr int kPallasDevices[] = {2, 4, 8};

// Figures of simulated schedules.
struct SimulatedFigures {
  LinkElements elements;  // question 10: counted from the transfers of `ring`, `bidirectional_ring`
  // M 1024, K 4096, N 4096 in f16 on each of kPallasDevices H100s, algorithm `ring`, carried.
  std::array<double, 3> pallas_ring_us = {};
};
// Plans and simulates them. Errors: those of Plan and Simulate.
absl::StatusOr<SimulatedFigures> SimulateFigures(const SeedMachines& machines);
// The closed forms for the same: exact::GatherLinkBytes, exact::AllToAllLinkBytes,
// RingProductBoundNs.
SimulatedFigures FiguresOfForms();

// All rows, in the order of the sources.
std::vector<SeedRow> SeedRows(const SeedMachines& machines, const SimulatedFigures& simulated);

}  // namespace agmm
