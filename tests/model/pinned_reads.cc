#include "tests/model/pinned_reads.h"

#include <algorithm>
#include <functional>
#include <string_view>

namespace model {

uint64_t PinnedReads::Sum(const Rectangle& bytes) const {
  // Memory of an operation that never runs, because its GPU is lost, may be freed.
  if (!memory_.IsPinned(bytes.address, bytes.extent_bytes())) return 0;
  uint64_t sum = 0;
  for (int64_t row = 0; row < bytes.rows; ++row) {
    const char* const begin = memory_.Engine(bytes.address + row * bytes.pitch_bytes);
    const std::string_view text(begin, bytes.row_bytes);
    sum = sum * 31 + std::hash<std::string_view>()(text);
  }
  return sum;
}

void PinnedReads::Add(uint64_t number, const std::vector<Access>& accesses) {
  for (const Access& access : accesses) {
    if (access.writes || memory_.IsDevice(access.bytes.address)) continue;
    pending_[number].push_back({access.bytes, Sum(access.bytes)});
  }
}

bool PinnedReads::AreWhole(uint64_t number) const {
  const auto found = pending_.find(number);
  return found == pending_.end() ||
         std::all_of(found->second.begin(), found->second.end(),
                     [this](const Read& read) { return Sum(read.bytes) == read.sum; });
}

void PinnedReads::Written(const Rectangle& bytes) {
  for (auto& [number, reads] : pending_) {
    for (Read& read : reads) {
      if (Overlap(read.bytes, bytes)) read.sum = Sum(read.bytes);
    }
  }
}

}  // namespace model
