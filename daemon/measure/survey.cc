#include "daemon/measure/survey.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

namespace agmm::measure {
namespace {

// A message that takes this long is measured well: it is much longer than a signal and than the
// bursts that links pass unlimited.
constexpr double kLongMessageNs = 4e6;
// The first message with a figure for the bandwidth; then sizes grow at most by the factor.
constexpr int64_t kFirstBytes = 64 << 10;
constexpr int64_t kMostGrowth = 8;
constexpr int64_t kMaxBytes = 4 << 20, kMaxGpuBytes = 64 << 20;
// Copies are larger than caches.
constexpr int64_t kMaxCopyBytes = 32 << 20;
// The side of the small product, and target times of the medium and the large one.
constexpr int64_t kFirstSide = 128;
constexpr double kMediumProductNs = 0.7e6, kLargeProductNs = 6e6, kLongestProductNs = 7e6;
constexpr int64_t kMaxSide = 1024, kMaxGpuSide = 8192;
constexpr int64_t kSideStep = 64;
constexpr size_t kProducts = 3;
// Products that hide the movement of their rows: their time, the part of it in which the rows move
// at the links' rate, and their least and largest widths.
constexpr double kRowsNs = 3e6, kMovingShare = 0.5;
constexpr int64_t kLeastWidth = 256, kMaxWidth = 8192;
constexpr int64_t kLeastRows = 16, kMostRows = 1 << 20;
// A round of products whose operands move. In the last two, rows and columns are swapped.
constexpr Probe::Kind kRound[] = {Probe::Kind::kRows, Probe::Kind::kMovingRows,
                                  Probe::Kind::kWholeRows, Probe::Kind::kRows,
                                  Probe::Kind::kMovingColumns};
constexpr size_t kRoundSeries = std::size(kRound), kFirstColumns = 3;

// Ranks of each node.
std::map<int, std::vector<int>> RanksByNode(const Site& site) {
  std::map<int, std::vector<int>> ranks;
  for (size_t rank = 0; rank < site.node_of_rank.size(); ++rank)
    ranks[site.node_of_rank[rank]].push_back(static_cast<int>(rank));
  return ranks;
}

bool IsProduct(const Probe& probe) { return probe.kind == Probe::Kind::kProduct; }

}  // namespace

Survey::Survey(const Site& site) : site_(site) {
  const std::map<int, std::vector<int>> by_node = RanksByNode(site);
  for (auto from = by_node.begin(); from != by_node.end(); ++from)
    for (auto to = std::next(from); to != by_node.end(); ++to)
      AddPair(from->second[0], to->second[0]);
  for (const auto& [node, ranks] : by_node) {
    // One pair that shares an island, and one that does not.
    const int island = site.island_of_rank[ranks[0]];
    for (const bool same : {true, false}) {
      const auto other = std::find_if(ranks.begin() + 1, ranks.end(), [&](int rank) {
        return (site.island_of_rank[rank] == island) == same;
      });
      if (other != ranks.end()) AddPair(ranks[0], *other);
    }
  }
  std::vector<int> all;
  for (size_t rank = 0; rank < site.node_of_rank.size(); ++rank)
    all.push_back(static_cast<int>(rank));
  // GPUs have hardware that moves bytes, and other fixed costs.
  const bool cores = std::all_of(site.kind_of_rank.begin(), site.kind_of_rank.end(),
                                 [](const std::string& kind) { return kind == "cpu"; });
  // All at once, because devices of a host share its caches and memory.
  Add(Probe::Kind::kCopy, all, DType::kBF16, cores ? kLeastBytes : kFirstBytes);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16})
    Add(Probe::Kind::kProduct, all, dtype, cores ? kLeastSide : kFirstSide);
  // Cores that multiply also move bytes between nodes.
  if (!cores || by_node.size() < 2) return;
  const std::vector<int> pair = {by_node.begin()->second[0], std::next(by_node.begin())->second[0]};
  // A device alone on its node may multiply faster than beside others.
  if (pair != all) Add(Probe::Kind::kProduct, pair, DType::kBF16, kFirstSide);
  Add(Probe::Kind::kMessages, pair, DType::kBF16, kPieces * kLeastBytes);
  // Sized when their turn comes.
  for (int round = 0; round < kRounds; ++round)
    for (const Probe::Kind kind : kRound) series_.emplace_back().next = {kind, pair, DType::kBF16};
}

void Survey::AddPair(int from, int to) {
  Add(Probe::Kind::kOneWay, {from, to}, DType::kBF16, kLeastBytes);
  Add(Probe::Kind::kOneWay, {to, from}, DType::kBF16, kLeastBytes);
  Add(Probe::Kind::kBothWays, {from, to}, DType::kBF16, kFirstBytes);
}

void Survey::Add(Probe::Kind kind, std::vector<int> ranks, DType dtype, int64_t size) {
  Series& series = series_.emplace_back();
  series.next = {kind, std::move(ranks), dtype, size};
  series.next.size = std::min(size, MaxSize(series.next));
}

bool Survey::SizeRows(Probe* probe) const {
  double both_ns = 0, both_bytes = 0, flops_per_ns = 0;
  for (const Series& series : series_) {
    if (series.timed.empty()) continue;
    const auto size = static_cast<double>(series.timed.back().first);
    double slowest_ns = 0;
    for (const int rank : probe->ranks) {
      const auto time = series.timed.back().second.find(rank);
      if (time != series.timed.back().second.end()) slowest_ns = std::max(slowest_ns, time->second);
    }
    if (series.next.kind == Probe::Kind::kBothWays && series.next.ranks == probe->ranks) {
      both_ns = slowest_ns;
      both_bytes = size;
    } else if (IsProduct(series.next) && series.next.ranks == probe->ranks &&
               series.next.dtype == probe->dtype && slowest_ns > 0 &&
               series.timed.back().first > kLeastSide) {
      flops_per_ns = 2 * std::pow(size, 3) / slowest_ns;
    }
  }
  if (both_ns <= 0 || flops_per_ns <= 0) return false;
  // Each row that a rank sends is one of two that it multiplies with 2 kDepth width operations.
  const double element_bytes = SizeOf(probe->dtype);
  const double width = element_bytes * both_ns / both_bytes * flops_per_ns / 4 / kMovingShare;
  if (!(width <= kMaxWidth - kSideStep)) return false;
  probe->width = std::max(kLeastWidth, (static_cast<int64_t>(width) / kSideStep + 1) * kSideStep);
  const double row_flops = 2.0 * kDepth * static_cast<double>(probe->width);
  const double fastest = kMostRows * row_flops / kRowsNs;
  probe->size = static_cast<int64_t>(kRowsNs * std::min(flops_per_ns, fastest) / row_flops) / 2 * 2;
  const double rows = static_cast<double>(probe->size), columns = static_cast<double>(probe->width);
  const double bytes = element_bytes * (2 * rows * (kDepth + columns) + kDepth * columns);
  return probe->size >= kLeastRows && bytes <= static_cast<double>(site_.max_bytes);
}

void Survey::Advance() {
  ++current_;
  if (current_ == series_.size()) return;
  Probe probe = series_[current_].next;
  if (probe.kind != Probe::Kind::kRows || probe.width > 0) return;
  if (!SizeRows(&probe)) return series_.resize(current_);
  const int64_t columns = std::max(probe.size / kSideStep * kSideStep, kSideStep);
  for (size_t i = current_; i < series_.size(); ++i) {
    const bool swapped = (i - current_) % kRoundSeries >= kFirstColumns;
    series_[i].next.size = swapped ? probe.width : probe.size;
    series_[i].next.width = swapped ? columns : probe.width;
  }
}

std::optional<Probe> Survey::Next() const {
  if (current_ == series_.size()) return std::nullopt;
  return series_[current_].next;
}

void Survey::Add(const EpochTimes& times, const std::string& path) {
  Series& series = series_[current_];
  series.path = path;
  const int64_t size = series.next.size;
  double took_ns = 0;
  for (const auto& [rank, time_ns] : times) took_ns = std::max(took_ns, time_ns);
  series.timed.emplace_back(size, times);
  const int64_t next_size = SizeAfter(series, size, took_ns);
  series.over = next_size == 0;
  if (!series.over) series.next.size = next_size;
  if (series.over) Advance();
}

void Survey::Fail(const std::string& why) {
  series_[current_].error = why;
  series_[current_].over = true;
  Advance();
}

int64_t Survey::SizeAfter(const Series& series, int64_t size, double took_ns) const {
  // A single size.
  if (series.next.width > 0 || series.next.kind == Probe::Kind::kMessages) return 0;
  const int64_t max = MaxSize(series.next);
  if (size >= max || took_ns <= 0) return 0;
  if (IsProduct(series.next)) {
    if (size < kFirstSide) return std::min(kFirstSide, max);
    const size_t tiny = series.timed.front().first < kFirstSide ? 1 : 0;
    if (series.timed.size() - tiny >= kProducts) return 0;
    const double goal_ns = series.timed.size() - tiny == 1 ? kMediumProductNs : kLargeProductNs;
    const double side = static_cast<double>(size) * std::cbrt(goal_ns / took_ns);
    const int64_t steps = static_cast<int64_t>(side / kSideStep);
    const int64_t next = std::min(std::max(steps * kSideStep, size + kSideStep), max);
    const double growth = static_cast<double>(next) / static_cast<double>(size);
    return took_ns * std::pow(growth, 3) > kLongestProductNs ? 0 : next;
  }
  if (size < kFirstBytes) return std::min(kFirstBytes, max);
  int64_t growth = 1;
  while (growth < kMostGrowth && took_ns * static_cast<double>(growth) < kLongMessageNs / 2)
    growth *= 2;
  return growth == 1 ? 0 : std::min(size * growth, max);
}

// A copy takes its size twice. A message takes it three times: where it is sent, where it arrives,
// and the result of the product that its plan is of. A product takes three matrices.
int64_t Survey::MaxSize(const Probe& probe) const {
  const bool gpu = std::any_of(probe.ranks.begin(), probe.ranks.end(),
                               [&](int rank) { return site_.kind_of_rank[rank] != "cpu"; });
  const int64_t room = site_.max_bytes / 4;
  if (IsProduct(probe)) {
    const double side = std::sqrt(static_cast<double>(room) / SizeOf(probe.dtype));
    const int64_t fits = static_cast<int64_t>(side) / kSideStep * kSideStep;
    return std::clamp(fits, kSideStep, gpu ? kMaxGpuSide : kMaxSide);
  }
  const bool copy = probe.kind == Probe::Kind::kCopy;
  const int64_t fits = room * (copy ? 2 : 1) / kLeastBytes * kLeastBytes;
  const int64_t most = copy ? kMaxCopyBytes : kMaxBytes;
  return std::clamp(fits, kLeastBytes, gpu ? kMaxGpuBytes : most);
}

}  // namespace agmm::measure
