// Questions about an order. Most are answered at once from a few gates; the others are answered
// together, because exact answers need passes over the whole schedule.
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "kernels/schedule/order.h"

namespace agmm {

enum class Known { kNo, kYes, kUnknown };

// `order` must outlive this.
class Questions {
 public:
  explicit Questions(const Order& order) : order_(order) {}

  // Returns kYes if `x` ends before `y` starts in every interleaving. After kUnknown, ask again
  // after Settle.
  Known Before(const Event& x, const Event& y);
  // Answers all unknown questions.
  void Settle();

 private:
  // Is the start of `x`, or its end, before the start of `y`?
  struct Question {
    Order::Node x, y;
    bool end = false;
    bool operator==(const Question&) const = default;
    template <typename H>
    friend H AbslHashValue(H h, const Question& q) {
      return H::combine(std::move(h), q.x.index, q.x.epoch, q.y.index, q.y.epoch, q.end);
    }
  };
  Known Ask(const Question& question);
  Known Look(const Question& question) const;

  const Order& order_;
  absl::flat_hash_map<Question, Known> asked_;  // questions that the gates did not answer
};

}  // namespace agmm
