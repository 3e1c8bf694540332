// Compares footprints and regions with a model that checks every byte.
#include "kernels/schedule/regions.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <tuple>

#include "absl/strings/str_format.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

constexpr int64_t kWord = sizeof(float);

struct Placed {
  Block block;
  Place place;
};

Placed Draw(std::mt19937_64& random) {
  auto below = [&](int bound) { return static_cast<int64_t>(random() % bound); };
  const int64_t row = below(6), col = 32 * below(4);
  Placed p;
  p.block = {static_cast<Operand>(below(2)), {row, row + 1 + below(4)}, {col, col + 1 + below(80)}};
  // Half of them begin at the start of a row, like most blocks.
  p.place.offset_bytes =
      kRowAlignBytes * below(12) + kWord * below(2) * below(kRowAlignBytes / kWord);
  p.place.pitch_bytes =
      RoundUp(RowBytes(p.block, p.place), kRowAlignBytes) + kRowAlignBytes * below(3);
  return p;
}

std::set<int64_t> Words(const Footprint& footprint) {
  std::set<int64_t> words;
  for (int64_t i = 0; i < footprint.rows; ++i) {
    const int64_t begin = footprint.offset + i * footprint.pitch;
    for (int64_t at = 0; at < footprint.width; at += kWord) words.insert((begin + at) / kWord);
  }
  return words;
}

TEST(Footprint, OverlapIsExact) {
  std::mt19937_64 random(1);
  int overlaps = 0;
  for (int i = 0; i < 20000; ++i) {
    const Placed a = Draw(random), b = Draw(random);
    const Footprint first = FootprintOf(a.block, a.place), second = FootprintOf(b.block, b.place);
    const std::set<int64_t> words = Words(first);
    bool expected = false;
    for (int64_t word : Words(second)) expected |= words.count(word) > 0;
    overlaps += expected;
    ASSERT_EQ(Overlap(first, second), expected) << absl::StrFormat(
        "%d+%d*%d x %d and %d+%d*%d x %d", a.place.offset_bytes, a.block.rows.size(),
        a.place.pitch_bytes, RowBytes(a.block, a.place), b.place.offset_bytes, b.block.rows.size(),
        b.place.pitch_bytes, RowBytes(b.block, b.place));
  }
  EXPECT_GT(overlaps, 2000);
  EXPECT_LT(overlaps, 18000);
}

TEST(Regions, AgreeWithAModelOfEveryElement) {
  using Element = std::tuple<Operand, int64_t, int64_t, bool>;
  int found = 0;
  for (int seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    Regions regions;
    std::map<int64_t, Element> model;  // by the element's first byte
    std::vector<Placed> written;
    for (int i = 0; i < 12; ++i) {
      const Placed p = Draw(random);
      const bool finished = random() % 2;
      Footprint bytes = FootprintOf(p.block, p.place);
      if (random() % 2)  // with padding
        bytes.width = RoundUp(bytes.offset + bytes.width, kRowAlignBytes) - bytes.offset;
      regions.Write({p.block, p.place, {}, finished}, bytes);
      written.push_back(p);
      for (int64_t word : Words(bytes)) model.erase(word * kWord);
      auto for_each = [](const Placed& q, auto use) {
        for (int64_t r = q.block.rows.begin; r < q.block.rows.end; ++r) {
          for (int64_t c = q.block.cols.begin; c < q.block.cols.end; ++c) {
            use(q.place.offset_bytes + (r - q.block.rows.begin) * q.place.pitch_bytes +
                    (c - q.block.cols.begin) * 4,
                r, c);
          }
        }
      };
      for_each(p, [&](int64_t byte, int64_t r, int64_t c) {
        model[byte] = {p.block.operand, r, c, finished};
      });
      // Reads blocks that were written, and arbitrary ones.
      Placed q = random() % 4 ? written[random() % written.size()] : Draw(random);
      if (q.block.rows.size() > 1 && random() % 2) --q.block.rows.end;
      int64_t expected = 0, actual = 0;
      for_each(q, [&](int64_t byte, int64_t r, int64_t c) {
        const auto at = model.find(byte);
        for (bool f : {false, true}) {
          expected += at != model.end() && at->second == Element(q.block.operand, r, c, f);
        }
      });
      for (const Region& piece : regions.Find(q.block, q.place)) {
        for_each({piece.block, piece.place}, [&](int64_t byte, int64_t r, int64_t c) {
          ASSERT_EQ(model.at(byte), Element(q.block.operand, r, c, piece.finished));
          ++actual;
        });
      }
      ASSERT_EQ(actual, expected);
      found += actual > 0;
      const bool elsewhere = regions.FindOther(q.block, q.place, true) != nullptr;
      bool any = false;
      for (int64_t word : Words(FootprintOf(q.block, q.place)))
        any |= model.count(word * kWord) > 0;
      ASSERT_EQ(elsewhere, any);
    }
  }
  EXPECT_GT(found, 1000);
}

}  // namespace
}  // namespace agmm
