#include "daemon/sequencer/placement.h"

#include <algorithm>
#include <iterator>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "kernels/base/reason.h"
#include "kernels/base/units.h"

namespace agmm {
namespace {

using Pieces = std::map<int64_t, int64_t>;  // offset -> bytes

int64_t Largest(const Pieces& pieces) {
  int64_t largest = 0;
  for (const auto& [offset, bytes] : pieces) largest = std::max(largest, bytes);
  return largest;
}

int64_t Total(const Pieces& pieces) {
  int64_t total = 0;
  for (const auto& [offset, bytes] : pieces) total += bytes;
  return total;
}

// Returns the bytes that are in both.
Pieces Intersect(const Pieces& a, const Pieces& b) {
  Pieces both;
  auto x = a.begin(), y = b.begin();
  while (x != a.end() && y != b.end()) {
    const int64_t x_end = x->first + x->second, y_end = y->first + y->second;
    const int64_t begin = std::max(x->first, y->first), end = std::min(x_end, y_end);
    if (begin < end) both.emplace_hint(both.end(), begin, end - begin);
    if (x_end < y_end) {
      ++x;
    } else {
      ++y;
    }
  }
  return both;
}

}  // namespace

void Placement::Reset(const std::vector<int64_t>& heap_bytes) {
  heaps_.clear();
  for (int64_t bytes : heap_bytes) {
    RankHeap heap;
    heap.size = bytes;
    // The bytes after the last whole page are never used.
    if (const int64_t usable = bytes / kPlacementAlign * kPlacementAlign; usable > 0)
      heap.free.emplace(0, usable);
    heaps_.push_back(std::move(heap));
  }
}

absl::StatusOr<int64_t> Placement::Allocate(const std::vector<int>& ranks, int64_t bytes,
                                            MemoryClass memory_class) {
  int64_t smallest = heap_bytes(ranks[0]);
  for (int rank : ranks) smallest = std::min(smallest, heap_bytes(rank));
  // Reclaiming is pointless for a size that does not fit even into an empty heap.
  const bool could_fit = bytes <= smallest / kPlacementAlign * kPlacementAlign;
  while (true) {
    Pieces common = heaps_[ranks[0]].free;
    for (int rank : ranks) common = Intersect(common, heaps_[rank].free);
    // Pieces are whole pages, so a piece that holds `bytes` holds them rounded up.
    const auto fit = std::find_if(common.begin(), common.end(),
                                  [&](const auto& piece) { return piece.second >= bytes; });
    if (fit != common.end()) {
      Take(ranks, fit->first, RoundUp(bytes, kPlacementAlign), memory_class);
      return fit->first;
    }
    if (could_fit && reclaim_ && reclaim_(ranks, bytes)) continue;
    const int fullest = *std::min_element(
        ranks.begin(), ranks.end(), [&](int a, int b) { return free_bytes(a) < free_bytes(b); });
    return WithReason(
        absl::ResourceExhaustedError(absl::StrFormat(
            "%s were requested on each of ranks %s; rank %d has %s free of %s, and the largest "
            "piece free on all of them is %s; rank %d holds %s; delete tensors or give the devices "
            "larger heaps",
            FormatBytes(bytes), absl::StrJoin(ranks, ","), fullest,
            FormatBytes(free_bytes(fullest)), FormatBytes(heap_bytes(fullest)),
            FormatBytes(Largest(common)), fullest, DescribeUsage(fullest))),
        kReasonHeapFull);
  }
}

absl::Status Placement::CheckRoom(const std::vector<int>& ranks, int64_t bytes,
                                  const std::vector<Piece>& freed) const {
  Placement then = *this;
  then.reclaim_ = nullptr;
  for (const Piece& piece : freed)
    then.Free(piece.ranks, piece.offset_bytes, piece.bytes, MemoryClass::kWorkspace);
  return then.Allocate(ranks, bytes, MemoryClass::kWorkspace).status();
}

bool Placement::AllocateAt(const std::vector<int>& ranks, int64_t offset, int64_t bytes,
                           MemoryClass memory_class) {
  if (offset < 0 || offset % kPlacementAlign != 0 || bytes <= 0) return false;
  for (int rank : ranks) {
    const Pieces& free = heaps_[rank].free;
    const auto behind = free.upper_bound(offset);
    if (behind == free.begin()) return false;
    const auto piece = std::prev(behind);
    // Pieces are whole pages, so a piece that holds `bytes` holds them rounded up.
    if (bytes > piece->second - (offset - piece->first)) return false;
  }
  Take(ranks, offset, RoundUp(bytes, kPlacementAlign), memory_class);
  return true;
}

std::string Placement::DescribeUsage(int rank) const {
  return absl::StrFormat("tensors %s%s, workspaces %s",
                         FormatBytes(used_bytes(rank, MemoryClass::kTensor)),
                         describe_tensors_ == nullptr ? "" : describe_tensors_(rank),
                         FormatBytes(used_bytes(rank, MemoryClass::kWorkspace)));
}

void Placement::Take(const std::vector<int>& ranks, int64_t offset, int64_t bytes,
                     MemoryClass memory_class) {
  for (int rank : ranks) {
    RankHeap& heap = heaps_[rank];
    const auto piece = std::prev(heap.free.upper_bound(offset));
    const int64_t begin = piece->first, end = begin + piece->second;
    heap.free.erase(piece);
    if (begin < offset) heap.free.emplace(begin, offset - begin);
    if (offset + bytes < end) heap.free.emplace(offset + bytes, end - offset - bytes);
    heap.used[static_cast<int>(memory_class)] += bytes;
  }
}

void Placement::Free(const std::vector<int>& ranks, int64_t offset, int64_t bytes,
                     MemoryClass memory_class) {
  const int64_t rounded = RoundUp(bytes, kPlacementAlign);
  for (int rank : ranks) {
    RankHeap& heap = heaps_[rank];
    heap.used[static_cast<int>(memory_class)] -= rounded;
    auto piece = heap.free.emplace(offset, rounded).first;
    if (const auto next = std::next(piece);
        next != heap.free.end() && next->first == offset + rounded) {
      piece->second += next->second;
      heap.free.erase(next);
    }
    if (piece != heap.free.begin()) {
      if (const auto before = std::prev(piece); before->first + before->second == offset) {
        before->second += piece->second;
        heap.free.erase(piece);
      }
    }
  }
}

int64_t Placement::heap_bytes(int rank) const { return heaps_[rank].size; }

int64_t Placement::free_bytes(int rank) const { return Total(heaps_[rank].free); }

int64_t Placement::largest_free_bytes(int rank) const { return Largest(heaps_[rank].free); }

int64_t Placement::used_bytes(int rank, MemoryClass memory_class) const {
  return heaps_[rank].used[static_cast<int>(memory_class)];
}

}  // namespace agmm
