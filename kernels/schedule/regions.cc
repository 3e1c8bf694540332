#include "kernels/schedule/regions.h"

#include <algorithm>
#include <utility>

#include "kernels/base/units.h"

namespace agmm {
namespace {

// A rectangle of a region: rows, and bytes within a row, both counted from the region's first.
struct Cut {
  Range rows, bytes;
};

// Splits the bytes [begin, end), counted from the region's first byte, into at most three
// rectangles.
void CutInterval(int64_t begin, int64_t end, const Footprint& region, std::vector<Cut>& cuts) {
  begin = std::max<int64_t>(begin, 0);
  end = std::min(end, region.end() - region.offset);
  if (begin >= end) return;
  const int64_t pitch = region.pitch;
  const int64_t first = begin / pitch, last = (end - 1) / pitch;
  if (first == last) {
    cuts.push_back({{first, first + 1}, {begin - first * pitch, end - first * pitch}});
    return;
  }
  cuts.push_back({{first, first + 1}, {begin - first * pitch, pitch}});
  if (first + 1 < last) cuts.push_back({{first + 1, last}, {0, pitch}});
  cuts.push_back({{last, last + 1}, {0, end - last * pitch}});
}

// Returns the rectangles of `region` that `written` overwrites.
std::vector<Cut> CutsOf(Footprint region, const Footprint& written) {
  if (region.rows == 1) region.pitch = region.width;
  std::vector<Cut> cuts;
  const int64_t delta = written.offset - region.offset;
  if (written.pitch == written.width || written.rows == 1) {
    CutInterval(delta, delta + written.end() - written.offset, region, cuts);
  } else if (written.pitch == region.pitch) {
    const int64_t row = delta >= 0 ? delta / region.pitch : -CeilDiv(-delta, region.pitch);
    const int64_t column = delta - row * region.pitch, behind = column + written.width;
    cuts.push_back({{row, row + written.rows}, {column, std::min(region.pitch, behind)}});
    if (behind > region.pitch) {  // each row continues in the region's next one
      cuts.push_back({{row + 1, row + 1 + written.rows}, {0, behind - region.pitch}});
    }
  } else {
    for (int64_t i = 0; i < written.rows; ++i) {
      const int64_t begin = delta + i * written.pitch;
      CutInterval(begin, begin + written.width, region, cuts);
    }
  }
  return cuts;
}

// Appends the parts of `region` outside rows x cols.
void Without(const Region& region, const Range& rows, const Range& cols, std::vector<Region>& out) {
  const Block& block = region.block;
  const Range r = Intersect(block.rows, rows), c = Intersect(block.cols, cols);
  auto keep = [&](const Range& kept_rows, const Range& kept_cols) {
    const Block inner = {block.operand, kept_rows, kept_cols};
    if (inner.empty()) return;
    out.push_back({inner, PlaceWithin(block, region.place, inner), region.terms, region.finished});
  };
  if (r.empty() || c.empty()) return keep(block.rows, block.cols);
  keep({block.rows.begin, r.begin}, block.cols);
  keep(r, {block.cols.begin, c.begin});
  keep(r, {c.end, block.cols.end});
  keep({r.end, block.rows.end}, block.cols);
}

// Returns the byte at which element (0, 0) of the operand would be.
int64_t Origin(const Block& block, const Place& place) {
  return place.offset_bytes - block.rows.begin * place.pitch_bytes -
         block.cols.begin * SizeOf(place.dtype);
}

// Returns the part of `region` that is where it belongs if all of `block` is at `place`; may be
// empty.
Block Common(const Region& region, const Block& block, const Place& place) {
  Block common = Intersect(block, region.block);
  if (region.block.operand != block.operand || region.place.dtype != place.dtype) return Block();
  if (common.empty()) return Block();
  const int64_t apart = Origin(region.block, region.place) - Origin(block, place);
  const int64_t slope = place.pitch_bytes - region.place.pitch_bytes;
  if (slope == 0) return apart == 0 ? common : Block();
  if (apart % slope != 0) return Block();
  common.rows = Intersect(common.rows, {apart / slope, apart / slope + 1});
  return common.empty() ? Block() : common;
}

}  // namespace

template <typename Use>
void Regions::ForEachNear(const Footprint& footprint, Use use) const {
  for (auto it = regions_.lower_bound(footprint.offset - longest_);
       it != regions_.end() && it->first < footprint.end(); ++it) {
    if (!use(it)) return;
  }
}

void Regions::Add(const Region& region) {
  const Footprint footprint = FootprintOf(region.block, region.place);
  longest_ = std::max(longest_, footprint.end() - footprint.offset);
  regions_.emplace(footprint.offset, region);
}

bool Regions::Unite(Region& region) {
  Footprint beside = FootprintOf(region.block, region.place);
  beside.offset -= beside.pitch;
  beside.rows += 2;
  ByOffset::const_iterator found = regions_.end();
  ForEachNear(beside, [&](ByOffset::const_iterator it) {
    const Region& other = it->second;
    const Block &a = region.block, &b = other.block;
    if (!other.finished || other.terms != region.terms || a.operand != b.operand ||
        region.place.dtype != other.place.dtype ||
        region.place.pitch_bytes != other.place.pitch_bytes ||
        Origin(a, region.place) != Origin(b, other.place)) {
      return true;
    }
    const auto meet = [](const Range& x, const Range& y) {
      return x.end == y.begin || y.end == x.begin;
    };
    if ((a.rows == b.rows && meet(a.cols, b.cols)) || (a.cols == b.cols && meet(a.rows, b.rows)))
      found = it;
    return found == regions_.end();
  });
  if (found == regions_.end()) return false;
  const Block &a = region.block, &b = found->second.block;
  const Block both = {a.operand,
                      {std::min(a.rows.begin, b.rows.begin), std::max(a.rows.end, b.rows.end)},
                      {std::min(a.cols.begin, b.cols.begin), std::max(a.cols.end, b.cols.end)}};
  region.place = PlaceWithin(a, region.place, both);
  region.block = both;
  regions_.erase(found);
  return true;
}

void Regions::Write(const Region& region, const Footprint& written) {
  std::vector<ByOffset::const_iterator> near;
  ForEachNear(written, [&](ByOffset::const_iterator it) {
    if (Overlap(FootprintOf(it->second.block, it->second.place), written)) near.push_back(it);
    return true;
  });
  for (const auto& it : near) {
    const Region old = it->second;
    regions_.erase(it);
    const int64_t size = SizeOf(old.place.dtype);
    const Block& block = old.block;
    std::vector<Region> pieces = {old}, next;
    for (const Cut& cut : CutsOf(FootprintOf(block, old.place), written)) {
      const Range rows = {block.rows.begin + cut.rows.begin, block.rows.begin + cut.rows.end};
      const Range cols = {block.cols.begin + cut.bytes.begin / size,
                          block.cols.begin + CeilDiv(cut.bytes.end, size)};
      next.clear();
      for (const Region& piece : pieces) Without(piece, rows, cols, next);
      std::swap(pieces, next);
      if (pieces.empty()) break;
    }
    for (const Region& piece : pieces) Add(piece);
  }
  Region whole = region;
  while (whole.finished && Unite(whole)) continue;
  Add(whole);
}

std::vector<Region> Regions::Find(const Block& block, const Place& place) const {
  std::vector<Region> pieces;
  ForEachNear(FootprintOf(block, place), [&](ByOffset::const_iterator it) {
    const Region& region = it->second;
    const Block common = Common(region, block, place);
    if (!common.empty()) {
      pieces.push_back(
          {common, PlaceWithin(region.block, region.place, common), region.terms, region.finished});
    }
    return true;
  });
  return pieces;
}

const Region* Regions::FindOther(const Block& block, const Place& place, bool same) const {
  const Footprint footprint = FootprintOf(block, place);
  const Region* found = nullptr;
  ForEachNear(footprint, [&](ByOffset::const_iterator it) {
    const Region& region = it->second;
    if (Overlap(FootprintOf(region.block, region.place), footprint) &&
        (same || Common(region, block, place).empty())) {
      found = &region;
    }
    return found == nullptr;
  });
  return found;
}

int64_t Regions::Missing(const Block& block) const {
  int64_t missing = block.rows.size() * block.cols.size();
  for (const auto& [offset, region] : regions_) {
    const Block common = Intersect(block, region.block);
    if (region.finished && !common.empty()) missing -= common.rows.size() * common.cols.size();
  }
  return missing;
}

}  // namespace agmm
