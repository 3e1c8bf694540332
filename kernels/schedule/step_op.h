// The operations of a step, and two walks over what they name: ForEachPlace and ForEachField.
#pragma once

#include <cstdint>
#include <optional>
#include <variant>
#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

// An operand (a resident shard), or the plan's workspace.
using Buffer = int;
inline constexpr Buffer kWorkspace = -1;

// The place of a block. Resident buffers get their base address at launch. Rows of a buffer begin
// at multiples of kRowAlignBytes, so pitch_bytes is such a multiple; a block begins at any element
// of a row.
struct Place {
  Rank rank = 0;
  Buffer buffer = kWorkspace;
  int64_t offset_bytes = 0, pitch_bytes = 0;
  DType dtype = DType::kF32;
  bool operator==(const Place&) const = default;
};

// Copies `block` from one place to others. signals[i] is set once to[i] holds the bytes. A `to` at
// another rank needs a signal at that rank, because only a step that has seen the signal finds the
// bytes complete. The step ends when `from` has been read and each `to` at its own rank is written;
// signals after the last `to` are then set. Once all `to` hold the bytes, `from` has been read: a
// step that has seen the signals of all of them may write over `from`. Verify relies on this rule,
// so every executor has to keep it.
struct Transfer {
  static constexpr char kName[] = "transfer";
  Block block;
  Place from;
  std::vector<Place> to;  // at least one
  // Index of the Multiply step of this rank whose tiles feed it, or -1. The transfers of a lane run
  // along with their multiplies, in the same order.
  int carrier = -1;
  bool operator==(const Transfer&) const = default;
};

// c (+)= a * b over the slice of K that a and b name, summed in f32.
//   accumulate: if false, the sum starts from zero; if true, from `acc`. Without `acc` it continues
//   that of the multiply just before in this lane, on the same c (one tile pass, the sum stays on
//   chip). finish: if true, converts the sum into `out`; if false, leaves it in `acc`, or on chip.
struct Multiply {
  static constexpr char kName[] = "multiply";
  Block a, b, c;
  Place a_place, b_place;
  std::optional<Place> acc;  // f32
  Place out;                 // unused unless finish
  bool accumulate = false, finish = true;
  bool operator==(const Multiply&) const = default;
};

// The most places of a Reduce, because a GPU's kernel takes them as parameters.
inline constexpr int kMostTerms = 32;

// Adds up partial sums of c in f32, in the order of `from`.
//   accumulate: if false, the sum starts from the first of `from`; if true, from `acc`. finish: if
//   true, converts the sum into `out`; if false, leaves it in `acc`.
struct Reduce {
  static constexpr char kName[] = "reduce";
  Block c;
  std::vector<Place> from;   // 1 to kMostTerms; may be narrower than f32, or at peers
  std::optional<Place> acc;  // f32; narrower only for a sum that leaves its rank rounded
  Place out;                 // unused unless finish
  bool accumulate = true, finish = false;
  bool operator==(const Reduce&) const = default;
};

// Moves nothing: the step only waits and signals.
struct Join {
  static constexpr char kName[] = "join";
  bool operator==(const Join&) const = default;
};

using StepOp = std::variant<Transfer, Multiply, Reduce, Join>;

inline const char* OpName(const StepOp& op) {
  return std::visit([](const auto& one) { return one.kName; }, op);
}

enum class Use {
  kRead,
  kWrite,  // at the step's own rank; the step may read the place first
  kPut,    // a write that may be at another rank
};

template <typename Visit>
void VisitPlaces(const Transfer& op, const Visit& visit) {
  visit(op.block, op.from, Use::kRead);
  for (const Place& to : op.to) visit(op.block, to, Use::kPut);
}
template <typename Visit>
void VisitPlaces(const Multiply& op, const Visit& visit) {
  visit(op.a, op.a_place, Use::kRead);
  visit(op.b, op.b_place, Use::kRead);
  if (op.acc) visit(op.c, *op.acc, op.finish ? Use::kRead : Use::kWrite);
  if (op.finish) visit(op.c, op.out, Use::kWrite);
}
template <typename Visit>
void VisitPlaces(const Reduce& op, const Visit& visit) {
  for (const Place& from : op.from) visit(op.c, from, Use::kRead);
  if (op.acc) visit(op.c, *op.acc, op.finish ? Use::kRead : Use::kWrite);
  if (op.finish) visit(op.c, op.out, Use::kWrite);
}
template <typename Visit>
void VisitPlaces(const Join&, const Visit&) {}
// Calls visit(block, place, use) for each place that the operation uses.
template <typename Visit>
void ForEachPlace(const StepOp& op, const Visit& visit) {
  std::visit([&](const auto& one) { VisitPlaces(one, visit); }, op);
}

// The bindings name every field, because they do not compile if one is missing.
template <typename Visit>
void VisitFields(const Transfer& op, const Visit& visit) {
  const auto& [block, from, to, carrier] = op;
  visit("block", block);
  visit("from", from);
  visit("to", to);
  visit("carrier", carrier);
}
template <typename Visit>
void VisitFields(const Multiply& op, const Visit& visit) {
  const auto& [a, b, c, a_place, b_place, acc, out, accumulate, finish] = op;
  visit("a", a);
  visit("b", b);
  visit("c", c);
  visit("a_place", a_place);
  visit("b_place", b_place);
  visit("acc", acc);
  visit("out", out);
  visit("accumulate", accumulate);
  visit("finish", finish);
}
template <typename Visit>
void VisitFields(const Reduce& op, const Visit& visit) {
  const auto& [c, from, acc, out, accumulate, finish] = op;
  visit("c", c);
  visit("from", from);
  visit("acc", acc);
  visit("out", out);
  visit("accumulate", accumulate);
  visit("finish", finish);
}
template <typename Visit>
void VisitFields(const Join&, const Visit&) {}
// Calls visit(name, field) for each field, in the order of the plan's hash and of its JSON.
template <typename Visit>
void ForEachField(const StepOp& op, const Visit& visit) {
  std::visit([&](const auto& one) { VisitFields(one, visit); }, op);
}

}  // namespace agmm
