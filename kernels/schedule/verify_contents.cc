#include <algorithm>
#include <map>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/index.h"
#include "kernels/schedule/regions.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm::verify {
namespace {

class Contents {
 public:
  Contents(const Problem& problem, const Schedule& schedule)
      : problem_(problem), schedule_(schedule), all_terms_(AllTerms(problem)) {}

  absl::Status Check(const Order& order) {
    // Only inputs are known at first, because no read may find contents of the previous epoch.
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (Operand operand : problem_.Inputs()) {
        if (IsOpen(operand)) {
          return absl::FailedPreconditionError(
              absl::StrFormat("the sum of %s is open, and no step closes it",
                              ToString(problem_.mesh, problem_.tensors[operand])));
        }
        const Block shard = ShardBlock(problem_, operand, rank);
        if (shard.empty()) continue;
        const Place place = ResidentPlace(problem_, shard, rank);
        Overwrite({shard, place});
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
  // Returns true if ranks hold parts of the sum of this operand, and none of them all of it.
  bool IsOpen(Operand operand) const { return !problem_.tensors[operand].sharding.open.empty(); }

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
      if (piece.finished || piece.terms != pieces[0].terms) {
        return Fail("reads %s as one sum, but finds %s", PlacedName(problem_, block, place),
                    Name(piece));
      }
    }
    terms = pieces[0].terms;
    return absl::OkStatus();
  }

  std::string Name(const Region& region) const {
    return absl::StrCat(PlacedName(problem_, region.block, region.place),
                        region.finished ? ", finished" : "",
                        region.terms.empty() ? "" : ", summed over K ", region.terms.ToString());
  }

  absl::Status Write(const Region& region) {
    if (problem_.Writes(region.place.buffer)) {
      if (!region.finished) {
        return Fail("writes a sum over K %s to %s, where finished elements belong",
                    region.terms.ToString(), PlacedName(problem_, region.block, region.place));
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
    if (IsOpen(c.operand)) return Write({c, out, terms, true});
    if (terms != all_terms_) {
      return Fail("finishes %s with K %s of %s only", BlockName(problem_, c), terms.ToString(),
                  all_terms_.ToString());
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

  absl::Status Run(const Multiply& m) {
    std::vector<Region> pieces;
    AGMM_RETURN_IF_ERROR(Read(m.a, m.a_place, pieces));
    AGMM_RETURN_IF_ERROR(Read(m.b, m.b_place, pieces));
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
    Terms from, into;
    AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, reduce.from, from));
    AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, reduce.into, into));
    if (!into.Add(from)) {
      return Fail("adds a sum over K %s to a sum over K %s; each slice counts once",
                  from.ToString(), into.ToString());
    }
    AGMM_RETURN_IF_ERROR(Write({reduce.c, reduce.into, into}));
    return reduce.finish ? Finish(reduce.c, into, reduce.out) : absl::OkStatus();
  }

  static absl::Status Run(const Join&) { return absl::OkStatus(); }

  absl::Status CheckComplete() {
    const Operand c = TheProduct(problem_).c;
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
                "rank %d ends with K %s in %s, and the ranks before it with K %s; each term counts "
                "once",
                rank, part.terms.ToString(), BlockName(problem_, piece.block),
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
            "the parts of the open sum %s have K %s of %s only", BlockName(problem_, piece.block),
            piece.terms.ToString(), all_terms_.ToString()));
      }
    }
    return absl::OkStatus();
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Terms all_terms_;
  Rank rank_ = 0;  // of the current step
  int step_ = 0;
  std::map<std::pair<Rank, Buffer>, Regions> buffers_;
  std::map<std::pair<Rank, int>, Terms> on_chip_;  // by lane
};

}  // namespace

absl::Status CheckContents(const Problem& problem, const Schedule& schedule, const Order& order) {
  return Contents(problem, schedule).Check(order);
}

}  // namespace agmm::verify
