#include "kernels/schedule/questions.h"

#include <utility>
#include <vector>

#include "kernels/schedule/reach.h"

namespace agmm {

Known Questions::Before(const Event& x, const Event& y) {
  const Order::Node from = order_.NodeOf(x), to = order_.NodeOf(y);
  if (x.to < 0) return Ask({from, to, true});
  // The successors of an arrival are the steps that wait for it, and everything after their starts.
  Known known = Known::kNo;
  for (const Order::Waiter& waiter : order_.WaitersOf(order_.ArrivalOf(x))) {
    const Order::Node step = {waiter.index, x.epoch + waiter.lag};
    if (step.epoch > 1) continue;
    const Known one = step == to ? Known::kYes : Ask({step, to, false});
    if (one == Known::kYes) return one;
    if (one == Known::kUnknown) known = one;
  }
  return known;
}

Known Questions::Ask(const Question& question) {
  const Known known = Look(question);
  return known == Known::kUnknown ? asked_.try_emplace(question, known).first->second : known;
}

// Walks back from `y` over a few gates. They are enough for most plans: a reader itself waits for
// its writer, and a writer itself waits for a credit from the previous reader.
Known Questions::Look(const Question& question) const {
  const auto& [x, y, end] = question;
  constexpr int kNodes = 24;
  if (x.epoch > y.epoch) return Known::kNo;
  if (x.epoch == y.epoch && order_.PlaceOf(x.index) >= order_.PlaceOf(y.index)) return Known::kNo;
  const Rank rank = order_.RankOf(x.index);
  // A rank's environment is between its epochs, and before all steps outside relay lanes.
  const bool environment = order_.IsEnvironment(x.index), relay = order_.IsRelay(x.index);
  const auto launched_behind = [&](const Order::Node& node) {
    return order_.RankOf(node.index) == rank && (node.epoch > x.epoch || environment) && !relay &&
           !order_.IsRelay(node.index);
  };
  if (launched_behind(y)) return Known::kYes;
  const int chain = order_.ChainOf(x.index), position = order_.StartOf(x) + (end ? 1 : 0);
  Order::Node queue[kNodes] = {y};
  int count = 1;
  bool complete = true;
  for (int i = 0; i < count; ++i) {
    for (const Order::Gate& gate : order_.GatesOf(queue[i].index)) {
      const Order::Node node = {gate.index, queue[i].epoch - gate.lag};
      if (node.epoch < x.epoch) continue;
      if (order_.ChainOf(node.index) == chain &&
          order_.StartOf(node) + (gate.arrival < 0 ? 2 : 1) > position) {
        return Known::kYes;
      }
      if (node.epoch == x.epoch && order_.PlaceOf(node.index) <= order_.PlaceOf(x.index)) continue;
      if (launched_behind(node)) return Known::kYes;
      if (count < kNodes) {
        queue[count++] = node;
      } else {
        complete = false;
      }
    }
  }
  return complete ? Known::kNo : Known::kUnknown;
}

void Questions::Settle() {
  std::vector<std::pair<Reach::Point, Order::Node>> unknown;
  for (const auto& [question, known] : asked_)
    if (known == Known::kUnknown) unknown.push_back({{question.x, question.end}, question.y});
  if (unknown.empty()) return;
  // The beginning of an epoch is a crossing itself.
  const auto begins = [&](const Reach::Point& x, const Order::Node& y) {
    return order_.IsEnvironment(x.node.index) && x.node.epoch == y.epoch;
  };
  const auto rank_of = [&](const Reach::Point& x) { return order_.RankOf(x.node.index); };
  std::vector<bool> is_before(unknown.size(), false);
  Reach reach(order_);
  for (int block = 0; block < reach.blocks(); ++block) {
    reach.Compute(block);
    for (size_t i = 0; i < unknown.size(); ++i) {
      const auto& [x, y] = unknown[i];
      if (is_before[i]) continue;
      is_before[i] = x.node.epoch < y.epoch ? reach.Crosses(x, y)
                                            : begins(x, y) && reach.HasBegun(rank_of(x), y);
    }
  }
  for (size_t i = 0; i < unknown.size(); ++i) {
    const auto& [x, y] = unknown[i];
    const bool yes = is_before[i] || (!begins(x, y) && reach.Before(x, absl::MakeConstSpan(&y, 1)));
    asked_[{x.node, y, x.end}] = yes ? Known::kYes : Known::kNo;
  }
}

}  // namespace agmm
