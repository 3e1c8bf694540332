#include "kernels/schedule/plan_hash.h"

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "kernels/base/checksum.h"

namespace agmm {
namespace {

// The numbers of a schedule. Each list follows its length, so that no two schedules have the same
// numbers.
class Numbers {
 public:
  void Add(int64_t number) { numbers_.push_back(number); }
  void Add(const Range& range) {
    Add(range.begin);
    Add(range.end);
  }
  void Add(const Block& block) {
    Add(block.operand);
    Add(block.rows);
    Add(block.cols);
  }
  void Add(const Place& place) {
    Add(place.rank);
    Add(place.buffer);
    Add(place.offset_bytes);
    Add(place.pitch_bytes);
    Add(static_cast<int64_t>(place.dtype));
  }
  void Add(const Slot& slot) {
    Add(slot.rank);
    Add(slot.index);
  }
  void Add(const Wait& wait) {
    Add(wait.slot);
    Add(wait.lag);
  }
  void Add(const Step& step) {
    // Hashes a join as a transfer to no place, as it once was, because logs and reports name plans
    // by their hashes. No other step has these numbers: Verify refuses such a transfer.
    const StepOp& op = std::holds_alternative<Join>(step.op) ? to_nowhere_ : step.op;
    Add(static_cast<int64_t>(op.index()));
    ForEachField(op, [this](const char*, const auto& field) { Add(field); });
    Add(step.lane);
    Add(step.waits);
    Add(step.signals);
  }
  template <typename Item>
  void Add(const std::vector<Item>& items) {
    Add(static_cast<int64_t>(items.size()));
    for (const Item& item : items) Add(item);
  }

  template <typename Item>
  void Add(const std::optional<Item>& item) {
    Add(item.has_value());
    if (item) Add(*item);
  }

  // Adds the numbers to `sum`, and clears them.
  void MoveTo(Checksum& sum) {
    sum.Add(absl::string_view(reinterpret_cast<const char*>(numbers_.data()),
                              numbers_.size() * sizeof(int64_t)));
    numbers_.clear();
  }

 private:
  const StepOp to_nowhere_ = Transfer();
  std::vector<int64_t> numbers_;
};

}  // namespace

uint64_t PlanHash(const Problem& problem, const Schedule& schedule) {
  // Axes are hashed by number, because "xy" may name one axis or two. World ranks are not hashed,
  // so that a plan is the same on any ranks.
  std::string header = ToString(problem);
  for (const Tensor& tensor : problem.tensors) {
    absl::StrAppend(&header, "\n", tensor.name, " ", tensor.rows, "x", tensor.cols, " ",
                    Name(tensor.dtype), " ", absl::StrJoin(tensor.sharding.rows, "."), "/",
                    absl::StrJoin(tensor.sharding.cols, "."));
    if (!tensor.sharding.open.empty())
      absl::StrAppend(&header, "/", absl::StrJoin(tensor.sharding.open, "."));
  }
  Checksum sum;
  Numbers numbers;
  for (const std::string* text : {&std::as_const(header), &schedule.algorithm}) {
    numbers.Add(static_cast<int64_t>(text->size()));
    numbers.MoveTo(sum);
    sum.Add(*text);
  }
  numbers.Add(schedule.workspace_bytes);
  numbers.Add(static_cast<int64_t>(schedule.ranks.size()));
  for (const std::vector<Step>& steps : schedule.ranks) {
    numbers.Add(steps);
    numbers.MoveTo(sum);
  }
  return sum.value();
}

}  // namespace agmm
