#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/status.h"
#include "kernels/schedule/access.h"
#include "kernels/schedule/regions.h"
#include "kernels/schedule/verify_checks.h"

namespace agmm::verify {
namespace {

// Adds `more` to the disjoint ranges `sum`, in order and merged. False if they share an element;
// then `sum` is unchanged.
bool Add(const std::vector<Range>& more, std::vector<Range>& sum) {
  std::vector<Range> all = sum, merged;
  all.insert(all.end(), more.begin(), more.end());
  std::sort(all.begin(), all.end(), [](Range a, Range b) { return a.begin < b.begin; });
  for (const Range& range : all) {
    if (!merged.empty() && range.begin < merged.back().end) return false;
    if (!merged.empty() && range.begin == merged.back().end) {
      merged.back().end = range.end;
    } else {
      merged.push_back(range);
    }
  }
  sum = std::move(merged);
  return true;
}

std::string RangesName(const std::vector<Range>& ranges) {
  return absl::StrJoin(ranges, "+", [](std::string* out, const Range& range) {
    absl::StrAppend(out, range.begin, ":", range.end);
  });
}

class Contents {
 public:
  Contents(const Problem& problem, const Schedule& schedule)
      : problem_(problem), schedule_(schedule), k_{0, problem.k()} {}

  absl::Status Check(const Order& order) {
    // Only inputs are known at first, because no read may find contents of the previous epoch.
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      for (Operand operand : {problem_.product.a, problem_.product.b}) {
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

  // Reads a partial sum; the same slices of K have to be in all of it.
  absl::Status ReadSum(const Block& block, const Place& place, std::vector<Range>& slices) {
    std::vector<Region> pieces;
    AGMM_RETURN_IF_ERROR(Read(block, place, pieces));
    for (const Region& piece : pieces) {
      if (piece.finished || piece.slices != pieces[0].slices) {
        return Fail("reads %s as one sum, but finds %s", PlacedName(problem_, block, place),
                    Name(piece));
      }
    }
    slices = pieces[0].slices;
    return absl::OkStatus();
  }

  std::string Name(const Region& region) const {
    return absl::StrCat(PlacedName(problem_, region.block, region.place),
                        region.finished ? ", finished" : "",
                        region.slices.empty() ? "" : ", summed over K ", RangesName(region.slices));
  }

  absl::Status Write(const Region& region) {
    if (region.place.buffer == problem_.product.c) {
      if (!region.finished) {
        return Fail("writes a sum over K %s to %s, where finished elements belong",
                    RangesName(region.slices), PlacedName(problem_, region.block, region.place));
      }
      if (const Region* other = At(region.place).FindOther(region.block, region.place, true)) {
        return Fail("writes %s, which is there already (%s)",
                    PlacedName(problem_, region.block, region.place), Name(*other));
      }
    }
    Overwrite(region);
    return absl::OkStatus();
  }

  absl::Status Finish(const Block& c, const std::vector<Range>& slices, const Place& out) {
    if (slices != std::vector<Range>{k_}) {
      return Fail("finishes %s with K %s of %s only", BlockName(problem_, c), RangesName(slices),
                  RangesName({k_}));
    }
    return Write({c, out, {}, true});
  }

  absl::Status Run(const Transfer& transfer) {
    if (transfer.to.empty()) return absl::OkStatus();
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
    std::vector<Range>& on_chip = on_chip_[{rank_, schedule_.ranks[rank_][step_].lane}];
    std::vector<Range> slices;
    if (m.accumulate) {
      if (m.acc) {
        AGMM_RETURN_IF_ERROR(ReadSum(m.c, *m.acc, slices));
      } else {
        slices = on_chip;
      }
    }
    if (!Add({m.a.cols}, slices)) {
      return Fail("adds K %s to a sum over K %s; each slice counts once", RangesName({m.a.cols}),
                  RangesName(slices));
    }
    if (m.finish) return Finish(m.c, slices, m.out);
    if (m.acc) return Write({m.c, *m.acc, slices});
    on_chip = slices;
    return absl::OkStatus();
  }

  absl::Status Run(const Reduce& reduce) {
    std::vector<Range> from, into;
    AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, reduce.from, from));
    AGMM_RETURN_IF_ERROR(ReadSum(reduce.c, reduce.into, into));
    if (!Add(from, into)) {
      return Fail("adds a sum over K %s to a sum over K %s; each slice counts once",
                  RangesName(from), RangesName(into));
    }
    AGMM_RETURN_IF_ERROR(Write({reduce.c, reduce.into, into}));
    return reduce.finish ? Finish(reduce.c, into, reduce.out) : absl::OkStatus();
  }

  absl::Status CheckComplete() {
    for (Rank rank = 0; rank < static_cast<int>(schedule_.ranks.size()); ++rank) {
      const Block shard = ShardBlock(problem_, problem_.product.c, rank);
      if (shard.empty()) continue;
      const int64_t missing = At(ResidentPlace(problem_, shard, rank)).Missing(shard);
      if (missing == 0) continue;
      return absl::FailedPreconditionError(absl::StrFormat(
          "rank %d ends with %d of the %d elements of %s unfinished; let a step "
          "finish them",
          rank, missing, shard.rows.size() * shard.cols.size(), BlockName(problem_, shard)));
    }
    return absl::OkStatus();
  }

  const Problem& problem_;
  const Schedule& schedule_;
  const Range k_;
  Rank rank_ = 0;  // of the step that runs
  int step_ = 0;
  std::map<std::pair<Rank, Buffer>, Regions> buffers_;
  std::map<std::pair<Rank, int>, std::vector<Range>> on_chip_;  // by lane
};

}  // namespace

absl::Status CheckContents(const Problem& problem, const Schedule& schedule, const Order& order) {
  return Contents(problem, schedule).Check(order);
}

}  // namespace agmm::verify
