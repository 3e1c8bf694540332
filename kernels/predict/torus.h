// A torus of devices, and the place of each rank of a mesh in it.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/predict/machine.h"
#include "kernels/schedule/problem.h"

namespace agmm {

struct TorusAxis {
  std::string name;
  int size = 1;
  // Its two ends are neighbours; else it is a line. False for sizes of 1 and 2: two devices have
  // one link, with both directions, and no second one that wraps.
  bool wraps = false;
  bool operator==(const TorusAxis&) const = default;
};

struct Torus {
  std::vector<TorusAxis> axes;
  // By rank of the mesh: the coordinate along each axis.
  std::vector<std::vector<int>> coordinates;
  bool operator==(const Torus&) const = default;
};

// The physical layout of a mesh, as text: empty parts are chosen.
struct TorusText {
  std::string physical;  // "a=4,b=4,c=4"; empty: one axis for each axis of the mesh
  std::string wrap;      // "a,b" or "none"; empty: by Machine::wrap_multiple
  std::string map;       // "x=ab,y=c", major first; empty: mesh axes take physical axes in order
};

// Places a mesh on the torus of `machine`. Axes of size 1 may be left out of `map`. Errors:
// INVALID_ARGUMENT for an unknown axis, an axis that is named twice or left out, and for a mesh
// axis whose size is not that of its physical axes.
absl::StatusOr<Torus> MakeTorus(const Mesh& mesh, const Machine& machine, const TorusText& text);

}  // namespace agmm
