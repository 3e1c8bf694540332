// One run of a schedule under one strategy; used only by interleave.cc. The arithmetic is in
// execution.cc.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <tuple>
#include <vector>

#include "kernels/schedule/index.h"
#include "tests/schedule/interleave.h"

namespace agmm::test {

inline constexpr uint32_t kPoison = 0x7fc0dead;  // a NaN

// Returns the priority of a task: higher ones act first; starved tasks have -1.
int64_t Priority(const Strategy& strategy, const TaskId& id);

// Returns a half of the range; the second half is empty if the range cannot be halved.
inline Range Half(Range range, int half) {
  const int64_t middle = range.begin + (range.size() + 1) / 2;
  return half == 0 ? Range{range.begin, middle} : Range{middle, range.end};
}

class Execution {
 public:
  Execution(const Interleaver& of, const Strategy& strategy)
      : of_(of),
        problem_(of.problem_),
        schedule_(of.schedule_),
        strategy_(strategy),
        random_(strategy.seed) {
    const std::vector<int> slots = SlotCounts(schedule_);
    ranks_.resize(schedule_.ranks.size());
    for (Rank rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
      RankState& state = ranks_[rank];
      for (int buffer = kWorkspace; buffer < static_cast<int>(problem_.tensors.size()); ++buffer) {
        const int64_t bytes = buffer == kWorkspace
                                  ? schedule_.workspace_bytes
                                  : ShardBytes(problem_.mesh, problem_.tensors[buffer]);
        state.memory[buffer].resize(bytes / sizeof(float));
        for (float& word : state.memory[buffer]) std::memcpy(&word, &kPoison, sizeof(word));
      }
      state.slots.resize(slots[rank], 0);
      Task environment;
      Rename(environment, {TaskKind::kEnvironment, rank, -1, 0, 1});
      environment.progress = kWriteInputs;  // before the first epoch it has no C to check
      tasks_.push_back(environment);
      state.lanes.resize(std::max(1, LaneCount(schedule_.ranks[rank])));
      for (int s = 0; s < static_cast<int>(schedule_.ranks[rank].size()); ++s) {
        state.lanes[schedule_.ranks[rank][s].lane].steps.push_back(s);
      }
      state.waits.resize(schedule_.ranks[rank].size());
      for (int s = 0; s < static_cast<int>(state.waits.size()); ++s) {
        const Step& step = schedule_.ranks[rank][s];
        const auto* transfer = std::get_if<Transfer>(&step.op);
        // A multiply that carries transfers starts with them.
        for (const int at : {s, transfer == nullptr ? -1 : transfer->carrier})
          if (at >= 0)
            state.waits[at].insert(state.waits[at].end(), step.waits.begin(), step.waits.end());
      }
      const std::vector<bool> relays = RelayLanes(schedule_.ranks[rank], rank);
      for (int lane = 0; lane < static_cast<int>(state.lanes.size()); ++lane) {
        if (state.lanes[lane].steps.empty()) continue;
        state.lanes[lane].relay = relays[lane];
        if (!relays[lane]) ++state.busy_lanes;
        Task task;
        task.lane = lane;
        Rename(task, {TaskKind::kStep, rank, state.lanes[lane].steps[0], 0, 1});
        tasks_.push_back(task);
      }
      state.lanes_left = state.busy_lanes;
    }
  }

  Outcome Run() {
    environments_left_ = static_cast<int>(ranks_.size());
    while (environments_left_ > 0) {
      const std::optional<size_t> chosen = strategy_.walk ? AnyTask() : FirstTask();
      if (!chosen) return Outcome::kHang;
      Act(*chosen);
      if (wrong_) return Outcome::kWrong;
      std::erase_if(tasks_, [](const Task& task) { return task.over; });
    }
    return Outcome::kExact;
  }

 private:
  // Returns any task that can act, or nothing.
  std::optional<size_t> AnyTask() {
    able_.clear();
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if (CanAct(tasks_[i])) able_.push_back(i);
    }
    if (able_.empty()) return std::nullopt;
    return able_[random_() % able_.size()];
  }
  // Returns the task of the highest priority that can act, or nothing.
  std::optional<size_t> FirstTask() const {
    std::optional<size_t> first;
    for (size_t i = 0; i < tasks_.size(); ++i) {
      if ((!first || tasks_[i].priority > tasks_[*first].priority) && CanAct(tasks_[i])) first = i;
    }
    return first;
  }

  // The environment's actions, two pieces each, in this order.
  enum { kCheckC = 0, kPoisonC = 2, kWriteInputs = 4 };
  int Launch() const { return kWriteInputs + 2 * static_cast<int>(inputs_.size()); }

  // A copy of a transfer to one destination, between its reading and its writing half.
  struct Copy {
    std::vector<float> values;
    int read = 0, written = 0;  // pieces
  };
  struct Task {
    TaskId id;
    int64_t priority = 0;
    int lane = 0;
    bool running = false;  // a step: has started
    int progress = 0;      // actions done
    std::shared_ptr<Copy> copy;
    std::vector<std::shared_ptr<Copy>> copies;  // a step's own
    std::vector<float> a, b, sum;               // operands that a multiply or reduction has read
    Slot slot;                                  // of a signal
    bool over = false;
  };
  struct Lane {
    std::vector<int> steps;
    int next = 0;
    bool relay = false;
    std::vector<float> on_chip;
  };
  struct RankState {
    std::map<Buffer, std::vector<float>> memory;
    std::vector<int> slots;
    std::vector<Lane> lanes;
    std::vector<std::vector<Wait>> waits;  // that the start of a step needs, by step
    int launched = 0;                      // epochs
    int busy_lanes = 0, lanes_left = 0;    // without relay lanes
  };
  static constexpr int kPieces = 2, kRelayEpochsAhead = 3;

  // Gives `task` the priority of its new id.
  void Rename(Task& task, const TaskId& id) {
    task.id = id;
    task.priority = Priority(strategy_, id);
  }

  const Step& StepOf(const TaskId& id) const { return schedule_.ranks[id.rank][id.step]; }

  bool Remote(const TaskId& id) const {
    return std::get<Transfer>(StepOf(id).op).to[id.part].rank != id.rank;
  }

  float& At(const Block& block, const Place& place, int64_t row, int64_t col) {
    const int64_t byte = place.offset_bytes + (row - block.rows.begin) * place.pitch_bytes +
                         (col - block.cols.begin) * static_cast<int64_t>(sizeof(float));
    return ranks_[place.rank].memory.at(place.buffer).at(byte / sizeof(float));
  }

  // Writes an element and, after the last one of a row, garbage into the padding that the block
  // owns.
  void Put(const Block& block, const Place& place, int64_t row, int64_t col, float value) {
    At(block, place, row, col) = value;
    if (col + 1 < block.cols.end || !OwnsPadding(problem_, block, place)) return;
    constexpr int64_t kWords = kRowAlignBytes / sizeof(float);
    std::vector<float>& memory = ranks_[place.rank].memory.at(place.buffer);
    float* const end = &At(block, place, row, col) + 1;
    for (size_t word = end - memory.data(); word % kWords != 0 && word < memory.size(); ++word)
      std::memcpy(&memory[word], &kPoison, sizeof(kPoison));
  }

  bool CanAct(const Task& task) const {
    const RankState& rank = ranks_[task.id.rank];
    switch (task.id.kind) {
      case TaskKind::kSignal: return true;
      case TaskKind::kRead: return task.copy->read < kPieces;
      case TaskKind::kWrite:
        return task.copy->written < task.copy->read ||
               (task.copy->written == kPieces && Remote(task.id));
      case TaskKind::kEnvironment: return task.id.epoch == 1 || rank.lanes_left == 0;
      case TaskKind::kStep: break;
    }
    if (!task.running) {
      // A device may run several epochs at once, and a relay lane need not wait for its rank's
      // epoch.
      const int ahead = rank.lanes[task.lane].relay ? kRelayEpochsAhead : 0;
      if (rank.launched + ahead < task.id.epoch) return false;
      const std::vector<Wait>& waits = rank.waits[task.id.step];
      return std::all_of(waits.begin(), waits.end(), [&](const Wait& wait) {
        return ranks_[wait.slot.rank].slots[wait.slot.index] >= task.id.epoch - wait.lag;
      });
    }
    for (int i = 0; i < static_cast<int>(task.copies.size()); ++i) {
      const bool remote = std::get<Transfer>(StepOf(task.id).op).to[i].rank != task.id.rank;
      if (task.copies[i]->read < kPieces) return false;
      if (!remote && task.copies[i]->written < kPieces) return false;
    }
    return true;
  }

  void Act(size_t index) {
    Task& task = tasks_[index];
    switch (task.id.kind) {
      case TaskKind::kSignal:
        Set(task.slot, task.id.epoch);
        task.over = true;
        break;
      case TaskKind::kRead: ReadPiece(task); break;
      case TaskKind::kWrite: WritePiece(task); break;
      case TaskKind::kEnvironment: ActEnvironment(task); break;
      case TaskKind::kStep: ActStep(index); break;
    }
  }

  void Set(const Slot& slot, int epoch) {
    int& value = ranks_[slot.rank].slots[slot.index];
    value = std::max(value, epoch);
  }

  // Calls use(row, col, i) for the elements of one piece of a block.
  template <typename Use>
  void ForPiece(const Block& block, int piece, Use use) {
    const int64_t cols = block.cols.size();
    const Range part = Half({0, block.rows.size() * cols}, piece);
    for (int64_t i = part.begin; i < part.end; ++i) {
      use(block.rows.begin + i / cols, block.cols.begin + i % cols, i);
    }
  }

  void ReadPiece(Task& task) {
    const Transfer& transfer = std::get<Transfer>(StepOf(task.id).op);
    task.copy->values.resize(transfer.block.rows.size() * transfer.block.cols.size());
    ForPiece(transfer.block, task.copy->read, [&](int64_t row, int64_t col, int64_t i) {
      task.copy->values[i] = At(transfer.block, transfer.from, row, col);
    });
    task.over = ++task.copy->read == kPieces;
  }

  void WritePiece(Task& task) {
    const Step& step = StepOf(task.id);
    const Transfer& transfer = std::get<Transfer>(step.op);
    if (task.copy->written == kPieces) {  // everything has arrived: the arrival's own signal
      if (task.id.part < static_cast<int>(step.signals.size())) {
        Set(step.signals[task.id.part], task.id.epoch);
      }
      task.over = true;
      return;
    }
    ForPiece(transfer.block, task.copy->written, [&](int64_t row, int64_t col, int64_t i) {
      Put(transfer.block, transfer.to[task.id.part], row, col, task.copy->values[i]);
    });
    if (++task.copy->written == kPieces) task.over = !Remote(task.id);
  }

  void ActEnvironment(Task& task) {
    RankState& rank = ranks_[task.id.rank];
    const int piece = task.progress % 2;
    if (task.progress < kWriteInputs) {
      const Block block = ShardBlock(problem_, ResultOf(problem_), task.id.rank);
      if (task.progress < kPoisonC) {
        CheckResult(block, task.id, piece);
      } else {
        const Place place = Resident(block, task.id.rank);
        ForPiece(block, piece, [&](int64_t row, int64_t col, int64_t) {
          std::memcpy(&At(block, place, row, col), &kPoison, sizeof(kPoison));
        });
      }
    } else if (task.progress < Launch()) {
      const Operand operand = inputs_[(task.progress - kWriteInputs) / 2];
      const Block block = ShardBlock(problem_, operand, task.id.rank);
      const Place place = Resident(block, task.id.rank);
      const std::vector<int>& open = problem_.tensors[operand].sharding.open;
      const std::vector<float>& values = of_.values_[task.id.epoch - 1].inputs.at(
          operand)[PositionAlong(problem_.mesh, open, task.id.rank).part];
      ForPiece(block, piece, [&](int64_t row, int64_t col, int64_t) {
        At(block, place, row, col) = values[row * problem_.tensors[operand].cols + col];
      });
    } else if (task.id.epoch > of_.epochs_) {
      --environments_left_;
      task.over = true;
    } else {
      TaskId next = task.id;
      rank.launched = next.epoch++;
      Rename(task, next);
      rank.lanes_left = rank.busy_lanes;
      task.progress = kCheckC;
      return;
    }
    ++task.progress;
  }

  // Compares a piece of the result with the right one. Of an open sum, the ranks that hold its
  // parts add them up, and the last one compares the sum.
  void CheckResult(const Block& block, const TaskId& id, int piece) {
    const std::vector<int>& open = problem_.tensors[block.operand].sharding.open;
    std::vector<int> others;
    for (int axis = 0; axis < static_cast<int>(problem_.mesh.axes.size()); ++axis)
      if (std::find(open.begin(), open.end(), axis) == open.end()) others.push_back(axis);
    OpenSum& sum =
        open_sums_[{id.epoch, piece, PositionAlong(problem_.mesh, others, id.rank).part}];
    sum.values.resize(block.rows.size() * block.cols.size(), 0);
    const bool last = ++sum.parts == OpenParts(problem_.mesh, problem_.tensors[block.operand]);
    const std::vector<float>& expected = of_.values_[id.epoch - 2].result;
    const Place place = Resident(block, id.rank);
    ForPiece(block, piece, [&](int64_t row, int64_t col, int64_t i) {
      sum.values[i] += At(block, place, row, col);
      // Sums of integers are never -0, and a sum that contains poison is not a number.
      if (last && !(sum.values[i] == expected[row * ShapeOf(problem_).n + col])) wrong_ = true;
    });
  }

  Place Resident(const Block& block, Rank rank) const {
    return {rank, block.operand, 0, ShardPitchBytes(problem_.mesh, problem_.tensors[block.operand]),
            DType::kF32};
  }

  void ActStep(size_t index) {
    const Step& step = StepOf(tasks_[index].id);
    if (!tasks_[index].running) {
      tasks_[index].running = true;
      tasks_[index].progress = 0;
      if (const auto* transfer = std::get_if<Transfer>(&step.op)) {
        for (int i = 0; i < static_cast<int>(transfer->to.size()); ++i) {
          auto copy = std::make_shared<Copy>();
          tasks_[index].copies.push_back(copy);
          for (TaskKind half : {TaskKind::kRead, TaskKind::kWrite}) {
            Task task;
            const TaskId& step = tasks_[index].id;
            Rename(task, {half, step.rank, step.step, i, step.epoch});
            task.copy = copy;
            tasks_.push_back(task);
          }
        }
      }
      return;
    }
    Task& task = tasks_[index];
    if (const auto* multiply = std::get_if<Multiply>(&step.op)) {
      if (!ActMultiply(task, *multiply)) return;
    } else if (const auto* reduce = std::get_if<Reduce>(&step.op)) {
      if (!ActReduce(task, *reduce)) return;
    }
    End(index);
  }

  void End(size_t index) {
    Task next = tasks_[index];
    const Step& step = StepOf(next.id);
    for (int i = 0; i < static_cast<int>(step.signals.size()); ++i) {
      const auto* transfer = std::get_if<Transfer>(&step.op);
      if (transfer != nullptr && i < static_cast<int>(transfer->to.size()) &&
          transfer->to[i].rank != next.id.rank) {
        continue;  // the arrival's
      }
      Task signal;
      Rename(signal, {TaskKind::kSignal, next.id.rank, next.id.step, i, next.id.epoch});
      signal.slot = step.signals[i];
      tasks_.push_back(signal);
    }
    RankState& rank = ranks_[next.id.rank];
    Lane& lane = rank.lanes[next.lane];
    if (++lane.next == static_cast<int>(lane.steps.size())) {
      lane.next = 0;
      ++next.id.epoch;
      if (!lane.relay) --rank.lanes_left;
    }
    next.id.step = lane.steps[lane.next];
    Rename(next, next.id);
    next.running = false;
    next.copies.clear();
    tasks_[index] = next;
  }

  // Four tiles; for each: read a, read b, read the sum, write. Returns true once all tiles are
  // done.
  bool ActMultiply(Task& task, const Multiply& m);
  // Two pieces; for each: read `acc`, read each addend, write the sum. Returns true once all pieces
  // are done.
  bool ActReduce(Task& task, const Reduce& reduce);

  const Interleaver& of_;
  const Problem& problem_;
  const Schedule& schedule_;
  const Strategy& strategy_;
  std::mt19937_64 random_;
  std::vector<RankState> ranks_;
  std::vector<Task> tasks_;
  std::vector<size_t> able_;  // of AnyTask, kept for its memory
  const std::vector<Operand> inputs_ = problem_.Inputs();
  struct OpenSum {
    std::vector<float> values;
    int parts = 0;  // that have been added
  };
  std::map<std::tuple<int, int, int>, OpenSum> open_sums_;  // by epoch, piece and group
  int environments_left_ = 0;
  bool wrong_ = false;
};

}  // namespace agmm::test
