// The rules of each operation in the proof: what its step may name (StepCheck), and what it does to
// the contents of buffers (Contents).
#include <algorithm>
#include <map>
#include <type_traits>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/regions.h"
#include "kernels/schedule/text.h"
#include "kernels/schedule/verify.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm {
namespace {

constexpr int kMaxSlots = 1 << 20;                    // of one rank
constexpr int64_t kMaxPitchBytes = int64_t{1} << 32;  // keeps row * pitch inside 63 bits

bool Contains(const Block& outer, const Block& inner) {
  return outer.operand == inner.operand && outer.rows.begin <= inner.rows.begin &&
         inner.rows.end <= outer.rows.end && outer.cols.begin <= inner.cols.begin &&
         inner.cols.end <= outer.cols.end;
}

// Checks one step.
class StepCheck {
 public:
  StepCheck(const Problem& problem, const Topology& topology, const Schedule& schedule, Rank rank,
            int index, int max_lanes)
      : problem_(problem),
        topology_(topology),
        schedule_(schedule),
        rank_(rank),
        steps_(schedule.ranks[rank]),
        index_(index),
        max_lanes_(max_lanes) {}

  absl::Status Check() const {
    if (step().lane < 0 || step().lane >= max_lanes_)
      return Fail("lanes are 0 to %d", max_lanes_ - 1);
    AGMM_RETURN_IF_ERROR(CheckSlots());
    AGMM_RETURN_IF_ERROR(CheckBlocks());
    return std::visit([this](const auto& op) { return CheckOp(op); }, step().op);
  }

 private:
  const Step& step() const { return steps_[index_]; }
  bool IsRank(Rank rank) const {
    return rank >= 0 && rank < static_cast<int>(schedule_.ranks.size());
  }
  // Returns true for the result and for inputs with an open sum.
  bool IsSum(Operand operand) const {
    return problem_.Writes(operand) || OpenParts(problem_.mesh, problem_.tensors[operand]) > 1;
  }

  // An error that begins with the step's name.
  template <typename... Args>
  absl::Status Fail(const absl::FormatSpec<Args...>& format, const Args&... args) const {
    return absl::InvalidArgumentError(
        absl::StrCat(StepName(schedule_, rank_, index_), ": ", absl::StrFormat(format, args...)));
  }

  absl::Status CheckBlocks() const {
    absl::Status status;
    ForEachField(step().op, [&](const char*, const auto& field) {
      if constexpr (std::is_same_v<decltype(field), const Block&>) status.Update(CheckBlock(field));
    });
    return status;
  }

  absl::Status CheckPlaces() const {
    absl::Status status;
    ForEachPlace(step().op, [&](const Block& block, const Place& place, Use use) {
      if (status.ok()) status = CheckPlace(block, place, use);
    });
    return status;
  }

  absl::Status CheckBlock(const Block& block) const {
    if (block.operand < 0 || block.operand >= static_cast<int>(problem_.tensors.size())) {
      return Fail("block of operand %d; the problem has operands 0 to %d", block.operand,
                  problem_.tensors.size() - 1);
    }
    const Tensor& tensor = problem_.tensors[block.operand];
    if (block.empty()) {
      return Fail("the block %s is empty; leave the step out", BlockName(problem_, block));
    }
    if (block.rows.begin < 0 || block.rows.end > tensor.rows || block.cols.begin < 0 ||
        block.cols.end > tensor.cols) {
      return Fail("the block %s is outside of the operand's %d x %d", BlockName(problem_, block),
                  tensor.rows, tensor.cols);
    }
    return absl::OkStatus();
  }

  absl::Status CheckResident(const Block& block, const Place& place, Use use) const {
    if (!problem_.Writes(place.buffer) && use != Use::kRead) {
      return Fail("writes %s; operands are only read",
                  BufferName(problem_, place.rank, place.buffer));
    }
    if (!HoldsOperand(problem_, place.buffer, block.operand)) {
      return Fail("%s: a shard holds its own operand only", PlacedName(problem_, block, place));
    }
    const Block held = {place.buffer, block.rows, block.cols};
    const Place resident = ResidentPlace(problem_, held, place.rank);
    if (place.dtype != resident.dtype) {
      return Fail("%s is %s; the tensor is %s", PlacedName(problem_, block, place),
                  Name(place.dtype), Name(resident.dtype));
    }
    const Block shard = ShardBlock(problem_, place.buffer, place.rank);
    if (!Contains(shard, held)) {
      return Fail("%s: the shard is only %s", PlacedName(problem_, block, place),
                  BlockName(problem_, shard));
    }
    if (place != resident) {
      return Fail("%s with rows %d bytes apart; in the shard it lies at byte %d, %d apart",
                  PlacedName(problem_, block, place), place.pitch_bytes, resident.offset_bytes,
                  resident.pitch_bytes);
    }
    return absl::OkStatus();
  }

  absl::Status CheckPlace(const Block& block, const Place& place, Use use) const {
    if (!IsRank(place.rank)) {
      return Fail("a place is at rank %d; ranks are 0 to %d", place.rank,
                  schedule_.ranks.size() - 1);
    }
    if (place.rank != rank_ && use == Use::kWrite) {
      return Fail("writes %s; only a transfer writes at another rank",
                  BufferName(problem_, place.rank, place.buffer));
    }
    if (use == Use::kRead && !topology_.CanLoad(place.rank, rank_)) {
      return Fail("reads %s, which is on another %s; transfer it",
                  BufferName(problem_, place.rank, place.buffer),
                  topology_.SameNode(place.rank, rank_) ? "island of its node" : "node");
    }
    if (place.dtype != DType::kF32 && place.dtype != DType::kBF16 && place.dtype != DType::kF16) {
      return Fail("a place has unknown dtype %d", static_cast<int>(place.dtype));
    }
    if (place.buffer != kWorkspace &&
        (place.buffer < 0 || place.buffer >= static_cast<int>(problem_.tensors.size()))) {
      return Fail("a place is in buffer %d; buffers are %d (workspace) and 0 to %d", place.buffer,
                  kWorkspace, problem_.tensors.size() - 1);
    }
    const int64_t element = SizeOf(place.dtype);
    if (place.offset_bytes < 0 || place.offset_bytes % element != 0) {
      return Fail("a place of %s is at byte %d; offsets are multiples of %d from 0",
                  Name(place.dtype), place.offset_bytes, element);
    }
    if (place.pitch_bytes < 0 || place.pitch_bytes % kRowAlignBytes != 0 ||
        place.pitch_bytes > kMaxPitchBytes) {
      return Fail("a place has rows %d bytes apart; pitches are multiples of %d up to %d",
                  place.pitch_bytes, kRowAlignBytes, kMaxPitchBytes);
    }
    const Footprint footprint = PaddedFootprintOf(problem_, block, place);
    if (footprint.rows > 1 && footprint.pitch < footprint.width) {
      return Fail("%s has rows of %d bytes, %d apart; they overlap",
                  PlacedName(problem_, block, place), footprint.width, footprint.pitch);
    }
    if (place.buffer == kWorkspace) {
      if (footprint.end() > schedule_.workspace_bytes) {
        return Fail("%s ends at byte %d; the workspace has %d", PlacedName(problem_, block, place),
                    footprint.end(), schedule_.workspace_bytes);
      }
      // Only a sum may have another dtype, because its partial sums are kept here.
      const DType dtype = problem_.tensors[block.operand].dtype;
      if (place.dtype != dtype && !IsSum(block.operand)) {
        return Fail("%s is %s; the operand is %s", PlacedName(problem_, block, place),
                    Name(place.dtype), Name(dtype));
      }
      return absl::OkStatus();
    }
    return CheckResident(block, place, use);
  }

  absl::Status CheckSlots() const {
    for (const Wait& wait : step().waits) {
      if (wait.slot.rank != rank_) {
        return Fail("waits for slot %d:%d of another rank; a slot belongs to its waiter",
                    wait.slot.rank, wait.slot.index);
      }
      if (wait.lag != 0 && wait.lag != 1) {
        return Fail("waits for slot %d:%d with lag %d; a lag is 0 or 1", wait.slot.rank,
                    wait.slot.index, wait.lag);
      }
      AGMM_RETURN_IF_ERROR(CheckSlot(wait.slot));
    }
    for (const Slot& slot : step().signals) AGMM_RETURN_IF_ERROR(CheckSlot(slot));
    return absl::OkStatus();
  }

  absl::Status CheckSlot(const Slot& slot) const {
    if (!IsRank(slot.rank)) {
      return Fail("slot %d:%d is at no rank; ranks are 0 to %d", slot.rank, slot.index,
                  schedule_.ranks.size() - 1);
    }
    if (slot.index < 0 || slot.index >= kMaxSlots) {
      return Fail("slot %d:%d is out of range; a rank has slots 0 to %d", slot.rank, slot.index,
                  kMaxSlots - 1);
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Transfer& transfer) const {
    if (transfer.to.empty()) return Fail("copies to no place; a step that only waits is a join");
    AGMM_RETURN_IF_ERROR(CheckPlaces());
    for (int i = 0; i < static_cast<int>(transfer.to.size()); ++i) {
      const Place& to = transfer.to[i];
      if (to.dtype != transfer.from.dtype) {
        return Fail("copies %s to %s; a transfer converts nothing", Name(transfer.from.dtype),
                    Name(to.dtype));
      }
      if (to.rank == rank_) continue;
      if (i >= static_cast<int>(step().signals.size())) {
        return Fail("destination %d is at rank %d and has no signal, so no rank learns of it", i,
                    to.rank);
      }
      if (step().signals[i].rank != to.rank) {
        return Fail("destination %d is at rank %d, its signal %d:%d is not", i, to.rank,
                    step().signals[i].rank, step().signals[i].index);
      }
    }
    return CheckCarrier(transfer);
  }

  absl::Status CheckCarrier(const Transfer& transfer) const {
    if (transfer.carrier == -1) return absl::OkStatus();
    const Multiply* carrier = nullptr;
    if (transfer.carrier >= 0 && transfer.carrier < static_cast<int>(steps_.size())) {
      carrier = std::get_if<Multiply>(&steps_[transfer.carrier].op);
    }
    if (carrier == nullptr) {
      return Fail("its carrier, step %d, is not a multiply of this rank", transfer.carrier);
    }
    for (const auto& [block, place] :
         {std::pair{&carrier->a, &carrier->a_place}, std::pair{&carrier->b, &carrier->b_place}}) {
      if (!Contains(*block, transfer.block)) continue;
      Place inside = PlaceWithin(*block, *place, transfer.block);
      if (block->rows.size() == 1) inside.pitch_bytes = transfer.from.pitch_bytes;
      if (inside == transfer.from) return absl::OkStatus();
    }
    return Fail("%s is not part of what its carrier, step %d, multiplies",
                PlacedName(problem_, transfer.block, transfer.from), transfer.carrier);
  }

  absl::Status CheckSum(const Place& place, absl::string_view what) const {
    if (place.dtype != DType::kF32) {
      return Fail("%s is %s; sums are f32", what, Name(place.dtype));
    }
    if (place.buffer != kWorkspace) {
      return Fail("%s is in %s; sums are kept in the workspace", what,
                  BufferName(problem_, place.rank, place.buffer));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOut(const Block& c, const Place& out) const {
    if (out.dtype != problem_.tensors[c.operand].dtype) {
      return Fail("finishes %s as %s; the operand is %s", BlockName(problem_, c), Name(out.dtype),
                  Name(problem_.tensors[c.operand].dtype));
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Multiply& m) const {
    if (!HasProduct(problem_)) return Fail("multiplies, but %s has no product", SpecText(problem_));
    const Product made = {m.a.operand, m.b.operand, m.c.operand}, &asked = TheProduct(problem_);
    if (made != asked) {
      return Fail("multiplies operands %d and %d into %d; it must be %d and %d into %d", made.a,
                  made.b, made.c, asked.a, asked.b, asked.c);
    }
    if (m.a.rows != m.c.rows || m.b.cols != m.c.cols || m.a.cols != m.b.rows) {
      return Fail("%s * %s is not %s", BlockName(problem_, m.a), BlockName(problem_, m.b),
                  BlockName(problem_, m.c));
    }
    AGMM_RETURN_IF_ERROR(CheckPlaces());
    if (m.acc) {
      if (!m.accumulate && m.finish) return Fail("names an acc that it neither reads nor writes");
      AGMM_RETURN_IF_ERROR(CheckSum(*m.acc, "acc"));
    }
    if (m.finish) AGMM_RETURN_IF_ERROR(CheckOut(m.c, m.out));
    return CheckOnChip(m);
  }

  // Returns the multiply next to this one in its lane, if both belong to the same tile pass.
  const Multiply* Neighbour(const Multiply& m, int direction) const {
    int at = index_ + direction;
    while (at >= 0 && at < static_cast<int>(steps_.size()) && steps_[at].lane != step().lane) {
      at += direction;
    }
    if (at < 0 || at >= static_cast<int>(steps_.size())) return nullptr;
    const auto* other = std::get_if<Multiply>(&steps_[at].op);
    return other != nullptr && other->c == m.c && !other->acc ? other : nullptr;
  }

  absl::Status CheckOnChip(const Multiply& m) const {
    if (m.acc) return absl::OkStatus();
    if (m.accumulate) {
      const Multiply* before = Neighbour(m, -1);
      if (before == nullptr || before->finish) {
        return Fail("adds to a sum on chip, but the previous step in its lane leaves none of %s",
                    BlockName(problem_, m.c));
      }
    }
    if (!m.finish) {
      const Multiply* after = Neighbour(m, 1);
      if (after == nullptr || !after->accumulate) {
        return Fail("leaves a sum on chip, but the next step in its lane does not add to %s",
                    BlockName(problem_, m.c));
      }
    }
    return absl::OkStatus();
  }

  absl::Status CheckOp(const Reduce& reduce) const {
    if (!IsSum(reduce.c.operand)) {
      return Fail("reduces %s, but only %s and inputs with an open sum may be reduced",
                  BlockName(problem_, reduce.c), OperandText(problem_, ResultOf(problem_)));
    }
    if (reduce.from.empty() || reduce.from.size() > kMostTerms) {
      return Fail("adds up %d places; a reduction adds up 1 to %d", reduce.from.size(), kMostTerms);
    }
    AGMM_RETURN_IF_ERROR(CheckPlaces());
    const bool uses_acc = reduce.accumulate || !reduce.finish;
    if (uses_acc && !reduce.acc) return Fail("has no acc, in which it starts or leaves the sum");
    if (!uses_acc && reduce.acc) return Fail("names an acc that it neither reads nor writes");
    if (reduce.acc && (reduce.accumulate || reduce.acc->buffer != kWorkspace))
      AGMM_RETURN_IF_ERROR(CheckSum(*reduce.acc, "acc"));
    if (reduce.finish) AGMM_RETURN_IF_ERROR(CheckOut(reduce.c, reduce.out));
    return absl::OkStatus();
  }

  static absl::Status CheckOp(const Join&) { return absl::OkStatus(); }

  const Problem& problem_;
  const Topology& topology_;
  const Schedule& schedule_;
  const Rank rank_;
  const std::vector<Step>& steps_;
  const int index_;
  const int max_lanes_;
};

class Contents {
 public:
  Contents(const Problem& problem, const Schedule& schedule)
      : problem_(problem), schedule_(schedule), all_terms_(AllTerms(problem, ResultOf(problem))) {}

  absl::Status Check(const Order& order) {
    // Only inputs are known at first, because no read may find contents of the previous epoch.
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (Operand operand : problem_.Inputs()) {
        Block shard = ShardBlock(problem_, operand, rank);
        if (shard.empty()) continue;
        const Place place = ResidentPlace(problem_, shard, rank);
        if (HoldsOperand(problem_, operand, ResultOf(problem_))) shard.operand = ResultOf(problem_);
        Overwrite({shard, place, TermsAt(operand, rank)});
      }
    }
    for (const auto& [rank, step] : order.sequence()) {
      rank_ = rank;
      step_ = step;
      AGMM_RETURN_IF_ERROR(
          std::visit([this](const auto& op) { return Run(op); }, schedule_.ranks[rank][step].op));
    }
    return CheckComplete();
  }

 private:
  // The unit in which the terms of an operand are counted.
  const char* Unit(Operand operand) const {
    return HasProduct(problem_) && problem_.Writes(operand) ? "K" : "parts";
  }

  // Returns true if ranks hold only parts of the sum of this operand.
  bool IsOpen(Operand operand) const {
    return OpenParts(problem_.mesh, problem_.tensors[operand]) > 1;
  }

  // The terms that a rank holds of an input; none of one whose sum is closed.
  Terms TermsAt(Operand input, Rank rank) const {
    if (!IsOpen(input)) return {};
    const int part = PositionAlong(problem_.mesh, problem_.tensors[input].sharding.open, rank).part;
    return Terms({part, part + 1});
  }

  Regions& At(const Place& place) { return buffers_[{place.rank, place.buffer}]; }

  void Overwrite(const Region& region) {
    At(region.place).Write(region, PaddedFootprintOf(problem_, region.block, region.place));
  }

  template <typename... Args>
  absl::Status Fail(const absl::FormatSpec<Args...>& format, const Args&... args) const {
    return absl::FailedPreconditionError(
        absl::StrCat(StepName(schedule_, rank_, step_), ": ", absl::StrFormat(format, args...)));
  }

  // Finds all of `block` at `place`, in pieces.
  absl::Status Read(const Block& block, const Place& place, std::vector<Region>& pieces) {
    const Regions& regions = At(place);
    pieces = regions.Find(block, place);
    int64_t found = 0;
    for (const Region& piece : pieces) found += piece.block.rows.size() * piece.block.cols.size();
    if (found == block.rows.size() * block.cols.size()) return absl::OkStatus();
    const Region* other = regions.FindOther(block, place);
    return Fail("reads %s, but finds %s", PlacedName(problem_, block, place),
                other == nullptr ? "bytes not written in this epoch" : Name(*other));
  }

  // Reads a partial sum. All of it has the same terms.
  absl::Status ReadSum(const Block& block, const Place& place, Terms& terms) {
    std::vector<Region> pieces;
    AGMM_RETURN_IF_ERROR(Read(block, place, pieces));
    for (const Region& piece : pieces) {
      if (piece.finished || piece.terms.empty() || piece.terms != pieces[0].terms) {
        return Fail("reads %s as one sum, but finds %s", PlacedName(problem_, block, place),
                    Name(piece));
      }
    }
    terms = pieces[0].terms;
    return absl::OkStatus();
  }

  std::string Name(const Region& region) const {
    return absl::StrCat(
        PlacedName(problem_, region.block, region.place), region.finished ? ", finished" : "",
        region.terms.empty() ? "" : absl::StrCat(", summed over ", Unit(region.block.operand), " "),
        region.terms.ToString());
  }

  absl::Status Write(Region region) {
    if (problem_.Writes(region.place.buffer)) {
      // Elements of a closed source need no step that finishes them.
      region.finished |=
          IsOpen(region.place.buffer) || (!HasProduct(problem_) && region.terms.empty());
      if (!region.finished) {
        return Fail("writes a sum over %s %s to %s, where finished elements belong",
                    Unit(region.block.operand), region.terms.ToString(),
                    PlacedName(problem_, region.block, region.place));
      }
      if (const Region* other = At(region.place).FindOther(region.block, region.place, true)) {
        return Fail("writes %s, which is already there (%s)",
                    PlacedName(problem_, region.block, region.place), Name(*other));
      }
    }
    Overwrite(region);
    return absl::OkStatus();
  }

  absl::Status Finish(const Block& c, const Terms& terms, const Place& out) {
    if (problem_.Writes(c.operand) && IsOpen(c.operand)) return Write({c, out, terms, true});
    if (const Terms all = AllTerms(problem_, c.operand); terms != all) {
      return Fail("finishes %s with %s %s of %s only", BlockName(problem_, c), Unit(c.operand),
                  terms.ToString(), all.ToString());
    }
    return Write({c, out, {}, true});
  }

  absl::Status Run(const Transfer& transfer) {
    std::vector<Region> pieces;
    AGMM_RETURN_IF_ERROR(Read(transfer.block, transfer.from, pieces));
    for (const Place& to : transfer.to) {
      for (Region piece : pieces) {
        piece.place = PlaceWithin(transfer.block, to, piece.block);
        AGMM_RETURN_IF_ERROR(Write(piece));
      }
    }
    return absl::OkStatus();
  }

  // Reads an input of a product: elements whose sum is closed.
  absl::Status ReadClosed(const Block& block, const Place& place) {
    std::vector<Region> pieces;
    AGMM_RETURN_IF_ERROR(Read(block, place, pieces));
    const auto open =
        absl::c_find_if(pieces, [](const Region& piece) { return !piece.terms.empty(); });
    if (open == pieces.end()) return absl::OkStatus();
    return Fail("multiplies %s, but finds %s; close the sum first",
                PlacedName(problem_, block, place), Name(*open));
  }

  absl::Status Run(const Multiply& m) {
    AGMM_RETURN_IF_ERROR(ReadClosed(m.a, m.a_place));
    AGMM_RETURN_IF_ERROR(ReadClosed(m.b, m.b_place));
    Terms& on_chip = on_chip_[{rank_, schedule_.ranks[rank_][step_].lane}];
    Terms terms;
    if (m.accumulate) {
      if (m.acc) {
        AGMM_RETURN_IF_ERROR(ReadSum(m.c, *m.acc, terms));
      } else {
        terms = on_chip;
      }
    }
    const Terms more(Along(problem_, m.a.operand, m.a, Dim::kK));
    if (!terms.Add(more)) {
      return Fail("adds K %s to a sum over K %s; each slice counts once", more.ToString(),
                  terms.ToString());
    }
    if (m.finish) return Finish(m.c, terms, m.out);
    if (m.acc) return Write({m.c, *m.acc, terms});
    on_chip = terms;
    return absl::OkStatus();
  }

  absl::Status Run(const Reduce& reduce) {
    Terms sum;
    if (reduce.accumulate) AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, *reduce.acc, sum));
    for (const Place& from : reduce.from) {
      Terms more;
      AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, from, more));
      if (!sum.Add(more)) {
        const char* const unit = Unit(reduce.c.operand);
        return Fail("adds a sum over %s %s to a sum over %s %s; each slice counts once", unit,
                    more.ToString(), unit, sum.ToString());
      }
    }
    return reduce.finish ? Finish(reduce.c, sum, reduce.out) : Write({reduce.c, *reduce.acc, sum});
  }

  static absl::Status Run(const Join&) { return absl::OkStatus(); }

  absl::Status CheckComplete() {
    const Operand c = ResultOf(problem_);
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      const Block shard = ShardBlock(problem_, c, rank);
      if (shard.empty()) continue;
      const int64_t missing = At(ResidentPlace(problem_, shard, rank)).Missing(shard);
      if (missing == 0) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d ends with %d of the %d elements of %s unfinished; let a step "
          "finish them",
          rank, missing, shard.rows.size() * shard.cols.size(), BlockName(problem_, shard)));
    }
    return IsOpen(c) ? CheckOpenSums(c) : absl::OkStatus();
  }

  // Ranks that differ only along the open axes hold parts of one sum: each of its terms must be at
  // exactly one of them.
  absl::Status CheckOpenSums(Operand c) {
    const Mesh& mesh = problem_.mesh;
    const std::vector<int>& open = problem_.tensors[c].sharding.open;
    std::map<std::vector<int>, std::vector<Region>> sums;  // by coordinates along the other axes
    for (Rank rank = 0; rank < mesh.size(); ++rank) {
      const Block shard = ShardBlock(problem_, c, rank);
      if (shard.empty()) continue;
      std::vector<int> coordinates;
      for (int axis = 0; axis < static_cast<int>(mesh.axes.size()); ++axis) {
        if (!absl::c_linear_search(open, axis)) coordinates.push_back(mesh.Coordinate(rank, axis));
      }
      const Place place = ResidentPlace(problem_, shard, rank);
      const auto [sum, first] = sums.try_emplace(coordinates, 1, Region{shard, place});
      std::vector<Region> added;
      for (const Region& part : At(place).Find(shard, place)) {
        for (Region piece : sum->second) {
          piece.block = Intersect(piece.block, part.block);
          if (piece.block.empty()) continue;
          if (!piece.terms.Add(part.terms)) {
            return absl::FailedPreconditionError(absl::StrFormat(
                "rank %d ends with %s %s in %s, and the ranks before it with %s %s; each term "
                "counts once",
                rank, Unit(c), part.terms.ToString(), BlockName(problem_, piece.block), Unit(c),
                piece.terms.ToString()));
          }
          added.push_back(piece);
        }
      }
      sum->second = std::move(added);
    }
    for (const auto& [coordinates, sum] : sums) {
      for (const Region& piece : sum) {
        if (piece.terms == all_terms_) continue;
        return absl::FailedPreconditionError(absl::StrFormat(
            "the parts of the open sum %s have %s %s of %s only", BlockName(problem_, piece.block),
            Unit(c), piece.terms.ToString(), all_terms_.ToString()));
      }
    }
    return absl::OkStatus();
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Terms all_terms_;  // of the result
  Rank rank_ = 0;          // of the current step
  int step_ = 0;
  std::map<std::pair<Rank, Buffer>, Regions> buffers_;
  std::map<std::pair<Rank, int>, Terms> on_chip_;  // by rank and lane
};

}  // namespace

absl::Status VerifySteps(const Problem& problem, const Topology& topology, const Schedule& schedule,
                         Rank rank, int max_lanes) {
  const int ranks = problem.mesh.size();
  if (static_cast<int>(schedule.ranks.size()) != ranks || topology.rank_count() != ranks) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "the schedule has %d ranks and the topology %d; mesh %s has %d", schedule.ranks.size(),
        topology.rank_count(), problem.mesh.ToString(), ranks));
  }
  AGMM_RETURN_IF_ERROR(CheckIslands(topology));
  if (schedule.workspace_bytes < 0 || schedule.workspace_bytes > kMaxWorkspaceBytes) {
    return absl::InvalidArgumentError(
        absl::StrFormat("the workspace has %d bytes; it must have 0 to %d",
                        schedule.workspace_bytes, kMaxWorkspaceBytes));
  }
  for (int s = 0; s < static_cast<int>(schedule.ranks[rank].size()); ++s)
    AGMM_RETURN_IF_ERROR(StepCheck(problem, topology, schedule, rank, s, max_lanes).Check());
  return absl::OkStatus();
}

absl::Status CheckContents(const Problem& problem, const Schedule& schedule, const Order& order) {
  return Contents(problem, schedule).Check(order);
}

}  // namespace agmm
