#include "tests/model/races.h"

#include <algorithm>

#include "tests/model/options.h"

namespace model {
namespace {

uint64_t Region(uint64_t address) { return address >> 48; }

std::string Describe(const Rectangle& bytes) {
  return Format("%lld x %lld bytes at %#llx", (long long)bytes.rows, (long long)bytes.row_bytes,
                (unsigned long long)bytes.address);
}

// Returns true if `outer` contains each byte of `inner`: for equal shapes, and for one piece.
bool Contains(const Rectangle& outer, const Rectangle& inner) {
  if (outer.rows == 1) return outer.address <= inner.address && inner.end() <= outer.end();
  return outer.address == inner.address && outer.rows == inner.rows &&
         outer.row_bytes == inner.row_bytes && outer.pitch_bytes == inner.pitch_bytes;
}

}  // namespace

void Join(Clock& into, const Clock& other) {
  if (into.size() < other.size()) into.resize(other.size());
  for (size_t i = 0; i < other.size(); ++i) into[i] = std::max(into[i], other[i]);
}

bool Covers(const Clock& clock, int stream, uint64_t count) {
  return stream < static_cast<int>(clock.size()) && clock[stream] >= count;
}

bool Overlap(const Rectangle& a, const Rectangle& b) {
  if (a.end() <= b.address || b.end() <= a.address) return false;
  const Rectangle& few = a.rows <= b.rows ? a : b;
  const Rectangle& many = a.rows <= b.rows ? b : a;
  const auto base = static_cast<int64_t>(many.address);
  for (int64_t row = 0; row < few.rows; ++row) {
    const auto begin = static_cast<int64_t>(few.address) + row * few.pitch_bytes;
    const int64_t end = begin + few.row_bytes;
    // Rows of `many` that end after `begin` and start before `end`.
    if (many.rows == 1) {
      if (base < end && base + many.row_bytes > begin) return true;
      continue;
    }
    const int64_t before = begin - base - many.row_bytes;
    const int64_t first = before < 0 ? 0 : before / many.pitch_bytes + 1;
    if (first < many.rows && base + first * many.pitch_bytes < end) return true;
  }
  return false;
}

std::string Races::Add(const Operation& operation, const Clock& clock, const Clock& host,
                       const std::vector<Access>& accesses) {
  std::string race;
  for (const Access& access : accesses) {
    std::vector<Touch>& touches = touches_[Region(access.bytes.address)];
    // Removes earlier touches that this one orders and covers, because they can only race where
    // this one does.
    std::erase_if(touches, [&](const Touch& touch) {
      const bool same = touch.by.stream == operation.stream && touch.by.count == operation.count;
      if (same) return false;
      if (!Covers(clock, touch.by.stream, touch.by.count)) {
        if (race.empty() && (access.writes || touch.access.writes) &&
            Overlap(access.bytes, touch.access.bytes)) {
          race = Format("race: %s %s %s, and %s %s %s; no stream, event or host wait orders them",
                        operation.name.c_str(), access.writes ? "writes" : "reads",
                        Describe(access.bytes).c_str(), touch.by.name.c_str(),
                        touch.access.writes ? "writes" : "reads",
                        Describe(touch.access.bytes).c_str());
        }
        return false;
      }
      return Covers(host, touch.by.stream, touch.by.count) ||
             ((access.writes || !touch.access.writes) &&
              Contains(access.bytes, touch.access.bytes));
    });
    touches.push_back({access, operation});
  }
  return race;
}

std::string Races::Unseen(const Rectangle& bytes, const Clock& host) const {
  const auto found = touches_.find(Region(bytes.address));
  if (found == touches_.end()) return "";
  for (const Touch& touch : found->second) {
    if (!Covers(host, touch.by.stream, touch.by.count) && Overlap(bytes, touch.access.bytes))
      return touch.by.name;
  }
  return "";
}

void Races::ForgetStream(int stream) {
  for (auto& [region, touches] : touches_) {
    std::erase_if(touches, [&](const Touch& touch) { return touch.by.stream == stream; });
  }
}

void Races::Forget(uint64_t address, int64_t bytes) {
  const Rectangle gone = {address, 1, bytes, bytes};
  std::erase_if(touches_[Region(address)],
                [&](const Touch& touch) { return Overlap(gone, touch.access.bytes); });
}

}  // namespace model
