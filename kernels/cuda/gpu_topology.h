// The access that the GPUs of a machine have to the memory of one another.
#pragma once

#include <string>
#include <vector>

namespace agmm {

// Pure. Immutable, so any thread may read it. GPUs are named by their numbers.
class GpuTopology {
 public:
  GpuTopology() = default;
  // access[one][other] is true if each of the two has access to the other's memory. Symmetric, and
  // true on the diagonal.
  explicit GpuTopology(std::vector<std::vector<bool>> access);

  // Returns true if each of the two loads and stores the other's memory.
  bool AreConnected(int one, int other) const { return access_[one][other]; }
  // Returns true if it is connected to every GPU.
  bool ReachesAll(int gpu) const;
  // The lowest number among the GPUs of this one's island: a set in which each pair is connected.
  int island(int gpu) const { return islands_[gpu]; }
  // "reaches GPUs 1 to 3, 5": the GPUs that this one is connected to, except for itself.
  std::string ReachText(int gpu) const;

 private:
  std::vector<std::vector<bool>> access_;
  std::vector<int> islands_;
};

}  // namespace agmm
