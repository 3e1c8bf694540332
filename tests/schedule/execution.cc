// Multiplies and reductions, one action at a time.
#include "tests/schedule/execution.h"

namespace agmm::test {

bool Execution::ActMultiply(Task& task, const Multiply& m) {
  const int tile = task.progress / 4, action = task.progress % 4;
  if (tile == 4) return true;
  const Range rows = Half(m.c.rows, tile / 2), cols = Half(m.c.cols, tile % 2), k = m.a.cols;
  Lane& lane = ranks_[task.id.rank].lanes[task.lane];
  if (task.progress == 0) {
    const size_t size = m.c.rows.size() * m.c.cols.size();
    if (m.acc || !m.accumulate) lane.on_chip.assign(size, 0);
    lane.on_chip.resize(size, std::numeric_limits<float>::quiet_NaN());
  }
  auto sum = [&](int64_t row, int64_t col) -> float& {
    return lane.on_chip.at((row - m.c.rows.begin) * m.c.cols.size() + col - m.c.cols.begin);
  };
  if (action == 0) {
    task.a.clear();
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t l = k.begin; l < k.end; ++l) task.a.push_back(At(m.a, m.a_place, i, l));
    }
  } else if (action == 1) {
    task.b.clear();
    for (int64_t l = k.begin; l < k.end; ++l) {
      for (int64_t j = cols.begin; j < cols.end; ++j) task.b.push_back(At(m.b, m.b_place, l, j));
    }
  } else {
    for (int64_t i = rows.begin; i < rows.end; ++i) {
      for (int64_t j = cols.begin; j < cols.end; ++j) {
        if (action == 2) {
          if (m.acc && m.accumulate) sum(i, j) = At(m.c, *m.acc, i, j);
          for (int64_t l = 0; l < k.size(); ++l) {
            sum(i, j) +=
                task.a[(i - rows.begin) * k.size() + l] * task.b[l * cols.size() + j - cols.begin];
          }
        } else if (m.finish) {
          Put(m.c, m.out, i, j, sum(i, j));
        } else if (m.acc) {
          Put(m.c, *m.acc, i, j, sum(i, j));
        }
      }
    }
  }
  return ++task.progress == 16;
}

bool Execution::ActReduce(Task& task, const Reduce& reduce) {
  const int reads = static_cast<int>(reduce.from.size()) + 1;  // of `acc`, and of each addend
  const int piece = task.progress / (reads + 1), action = task.progress % (reads + 1);
  if (task.progress == 0) task.sum.assign(reduce.c.rows.size() * reduce.c.cols.size(), 0);
  ForPiece(reduce.c, piece, [&](int64_t row, int64_t col, int64_t i) {
    if (action == 0) {
      if (reduce.accumulate) task.sum[i] = At(reduce.c, *reduce.acc, row, col);
    } else if (action < reads) {
      task.sum[i] += At(reduce.c, reduce.from[action - 1], row, col);
    } else {
      Put(reduce.c, reduce.finish ? reduce.out : *reduce.acc, row, col, task.sum[i]);
    }
  });
  return ++task.progress == 2 * (reads + 1);
}

}  // namespace agmm::test
