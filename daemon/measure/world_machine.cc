#include "daemon/measure/world_machine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"
#include "kernels/base/status.h"
#include "proto/convert/machine_messages.h"
#include "proto/convert/plan_inputs.h"

namespace agmm::measure {
namespace {

// A link with this share of the best one's bandwidth is as fast as it.
constexpr double kFastShare = 0.8;

// A smaller and faster copy stays in a cache, and says nothing about the memory.
constexpr int64_t kLeastCopyBytes = 8 << 20;
constexpr double kLeastCopyNs = 1e6;
// A faster copy is mostly the fixed cost of its epoch.
constexpr double kLeastCacheNs = 20e3;
// The part of a small message's time that is not the cores'.
constexpr double kLeastLatencyShare = 0.1;
// The least figures, also if the cores have time to spare.
constexpr double kLeastByteNs = 1e-3, kLeastMessageNs = 100, kLeastSignalNs = 100;
// A wait of less than this share of a product is not told from the product's noise.
constexpr double kLeastWaitShare = 0.1;
// A longer fixed cost is another program's time.
constexpr double kMostFixedNs = 100e3;

using Paths = std::vector<const v1::MeasuredPath*>;

// The figures of a machine must be above 0 and finite, whatever the nodes report.
bool IsTime(double time_ns) { return time_ns > 0 && std::isfinite(time_ns); }

// Times of one pair of ranks, in ns.
struct PairTimes {
  double signal_ns = 0;  // a small message and the answer to it
  int64_t bytes = 0;     // of the large message
  double message_ns = 0;
};

double TimeAt(const EpochTimes& times, int rank) {
  const auto it = times.find(rank);
  return it == times.end() ? 0 : it->second;
}

double Slowest(const EpochTimes& times) {
  double slowest_ns = 0;
  for (const auto& [rank, time_ns] : times) slowest_ns = std::max(slowest_ns, time_ns);
  return slowest_ns;
}

// The message's answer tells its sender when it can send the next, so an epoch takes both
// latencies, whatever the size.
double BytesPerNs(const PairTimes& times) {
  if (times.message_ns <= 0) return 0;
  // A message that is hardly longer than a signal has no better figure.
  const double moving_ns = std::max(times.message_ns - times.signal_ns, times.message_ns / 4);
  return static_cast<double>(times.bytes) / moving_ns;
}

// Makes the paths of the survey, with one-way rates and latencies.
std::vector<v1::MeasuredPath> OneWayPaths(const Survey& survey) {
  std::vector<v1::MeasuredPath> paths;
  for (const Series& series : survey.series()) {
    if (series.next.kind != Probe::Kind::kOneWay || series.timed.size() < 2) continue;
    const int from = series.next.ranks[0], to = series.next.ranks[1];
    const PairTimes times = {TimeAt(series.timed.front().second, to), series.timed.back().first,
                             TimeAt(series.timed.back().second, to)};
    if (!IsTime(times.signal_ns) || !IsTime(times.message_ns)) continue;
    v1::MeasuredPath& path = paths.emplace_back();
    path.set_from_rank(from);
    path.set_to_rank(to);
    path.set_from_node(survey.site().node_of_rank[from]);
    path.set_to_node(survey.site().node_of_rank[to]);
    path.set_one_way_gb_per_s(BytesPerNs(times));
    path.set_latency_us(times.signal_ns / 2 / 1e3);
    path.set_path(series.path);
  }
  return paths;
}

void AddBothWays(const Survey& survey, std::vector<v1::MeasuredPath>* paths) {
  absl::flat_hash_map<std::pair<int, int>, v1::MeasuredPath*> path_of;
  for (v1::MeasuredPath& path : *paths) path_of[{path.from_rank(), path.to_rank()}] = &path;
  for (const Series& series : survey.series()) {
    if (series.next.kind != Probe::Kind::kBothWays || series.timed.empty()) continue;
    const int a = series.next.ranks[0], b = series.next.ranks[1];
    for (const auto& ends : {std::pair<int, int>(a, b), {b, a}}) {
      const auto found = path_of.find(ends);
      if (found == path_of.end()) continue;
      v1::MeasuredPath& path = *found->second;
      const PairTimes times = {path.latency_us() * 2e3, series.timed.back().first,
                               Slowest(series.timed.back().second)};
      // Each direction has at most the bandwidth that it has alone.
      path.set_two_way_gb_per_s(2 * std::min(BytesPerNs(times), path.one_way_gb_per_s()));
    }
  }
}

Paths Select(const v1::WorldMachine& world,
             const std::function<bool(const v1::MeasuredPath&)>& wanted) {
  Paths paths;
  for (const v1::MeasuredPath& path : world.paths())
    if (wanted(path)) paths.push_back(&path);
  return paths;
}

double Mean(const Paths& paths, double (v1::MeasuredPath::*figure)() const) {
  double sum = 0;
  for (const v1::MeasuredPath* path : paths) sum += (path->*figure)();
  return sum / static_cast<double>(paths.size());
}

// A link is fast from this bandwidth on.
double LeastFast(const Paths& paths) {
  double best = 0;
  for (const v1::MeasuredPath* path : paths) best = std::max(best, path->one_way_gb_per_s());
  return kFastShare * best;
}

// Sets the rates of links to those of the fast ones among `paths`.
void SetRates(const Paths& paths, double fixed_us, v1::MachineLinks* links) {
  const double least = LeastFast(paths);
  Paths fast;
  for (const v1::MeasuredPath* path : paths)
    if (path->one_way_gb_per_s() >= least) fast.push_back(path);
  const double one_way = Mean(fast, &v1::MeasuredPath::one_way_gb_per_s);
  const double two_way = Mean(fast, &v1::MeasuredPath::two_way_gb_per_s);
  links->set_one_way_gb_per_s(one_way);
  links->set_two_way_gb_per_s(std::clamp(two_way, one_way, 2 * one_way));
  const double latency_us = Mean(fast, &v1::MeasuredPath::latency_us);
  links->set_latency_us(std::max(latency_us - fixed_us, kLeastLatencyShare * latency_us));
  links->clear_pairs();
}

// Adds an exception for each link that is not fast.
void SetPairs(const Paths& paths, double fixed_us, v1::MachineLinks* links) {
  const double least = LeastFast(paths);
  for (const v1::MeasuredPath* path : paths) {
    if (path->one_way_gb_per_s() >= least) continue;
    v1::MachineLinks::Pair* pair = links->add_pairs();
    pair->set_from_node(path->from_node());
    pair->set_to_node(path->to_node());
    // A single link must not be faster than the ports, also where noise says so.
    pair->set_one_way_gb_per_s(std::min(path->one_way_gb_per_s(), links->one_way_gb_per_s()));
    pair->set_latency_us(
        std::max(path->latency_us() - fixed_us, kLeastLatencyShare * path->latency_us()));
  }
}

// Bounds the cost of a signal: with a message and a step, it is within half of the time of a small
// message. Waits within a node have it, too, and never cost nothing.
void SetSignal(const Paths& paths, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const double preset_us = device.signal_us();
  if (!paths.empty()) {
    const double half_us = Mean(paths, &v1::MeasuredPath::latency_us) / 2;
    device.set_signal_us(std::clamp(half_us - device.message_us() - device.step_us(),
                                    std::min(kLeastSignalNs / 1e3, preset_us), preset_us));
  }
  if (device.signal_us() == preset_us) world->add_preset_fields("device.signal_us");
}

void SetLinks(const Survey& survey, v1::WorldMachine* world) {
  v1::Machine& machine = *world->mutable_machine();
  const v1::MachineDevice& device = machine.device();
  SetSignal(Select(*world, [](const auto& path) { return path.from_node() != path.to_node(); }),
            world);
  // The model adds these to a latency, and between nodes that of a message.
  const double local_us = device.step_us() + device.signal_us();
  const double fixed_us = local_us + device.message_us();
  const Site& site = survey.site();
  const auto same_node = [](const v1::MeasuredPath& path) {
    return path.from_node() == path.to_node();
  };
  const auto same_island = [&](const v1::MeasuredPath& path) {
    return site.island_of_rank[path.from_rank()] == site.island_of_rank[path.to_rank()];
  };
  const Paths between = Select(*world, [&](const auto& path) { return !same_node(path); });
  const Paths within =
      Select(*world, [&](const auto& path) { return same_node(path) && same_island(path); });
  const Paths staged =
      Select(*world, [&](const auto& path) { return same_node(path) && !same_island(path); });
  if (between.empty()) {
    world->add_preset_fields("between");
  } else {
    SetRates(between, fixed_us, machine.mutable_between());
    SetPairs(between, fixed_us, machine.mutable_between());
  }
  if (within.empty()) {
    world->add_preset_fields("within");
  } else {
    SetRates(within, local_us, machine.mutable_within());
  }
  if (staged.empty()) {
    world->add_preset_fields("staged");
  } else {
    if (!machine.has_staged()) *machine.mutable_staged() = machine.within();
    SetRates(staged, local_us, machine.mutable_staged());
  }
}

// The measured devices by world rank.
using Devices = std::map<int, v1::MeasuredDevice>;

double GflopOf(int64_t side) { return 2.0 * std::pow(static_cast<double>(side), 3) / 1e9; }

// A product and its time.
struct TimedProduct {
  int64_t side = 0;
  double time_ns = 0;
};

// A product's rate leaves out its fixed cost, which the model adds.
v1::MachineGemm RateOf(const TimedProduct& product, DType dtype, double fixed_ns) {
  const double net_ns = std::max(product.time_ns - fixed_ns, product.time_ns / 2);
  v1::MachineGemm gemm;
  gemm.set_dtype(ToProto(dtype));
  gemm.set_gflop(GflopOf(product.side));
  gemm.set_gflop_per_s(GflopOf(product.side) / (net_ns / 1e9));
  return gemm;
}

// Leaves out products that take as long as a larger one, because other programs on a host only make
// times longer. Times of the rest grow with the sizes, also after they have been rounded.
std::vector<TimedProduct> Growing(const std::vector<TimedProduct>& products) {
  std::vector<TimedProduct> growing;
  for (auto it = products.rbegin(); it != products.rend(); ++it) {
    if (growing.empty() || it->time_ns < growing.back().time_ns * (1 - 1e-9))
      growing.push_back(*it);
  }
  std::reverse(growing.begin(), growing.end());
  return growing;
}

// Adds the rates of each device. Returns the mean times of all devices, by size, ascending.
std::vector<TimedProduct> AddProducts(const Series& series, double fixed_ns, Devices* devices) {
  std::vector<TimedProduct> means;
  for (const auto& [side, times] : series.timed) {
    if (side <= kLeastSide) continue;
    double sum_ns = 0;
    int ranks = 0;
    for (const auto& [rank, time_ns] : times) {
      if (!IsTime(time_ns)) continue;
      *(*devices)[rank].add_gemm() = RateOf({side, time_ns}, series.next.dtype, fixed_ns);
      sum_ns += time_ns;
      ++ranks;
    }
    if (ranks > 0) means.push_back({side, sum_ns / ranks});
  }
  return means;
}

void SetProducts(const Survey& survey, v1::WorldMachine* world, Devices* devices) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const double fixed_ns = (device.multiply_us() + device.step_us()) * 1e3;
  for (const Series& series : survey.series()) {
    if (series.next.kind != Probe::Kind::kProduct) continue;
    // The devices of a node work at the same time.
    if (series.next.ranks.size() < survey.site().node_of_rank.size()) continue;
    const v1::DType dtype = ToProto(series.next.dtype);
    const std::vector<TimedProduct> products = Growing(AddProducts(series, fixed_ns, devices));
    if (products.empty()) {
      world->add_preset_fields(absl::StrCat("device.gemm ", v1::DType_Name(dtype)));
      continue;
    }
    auto& gemm = *device.mutable_gemm();
    gemm.erase(std::remove_if(gemm.begin(), gemm.end(),
                              [&](const v1::MachineGemm& rate) { return rate.dtype() == dtype; }),
               gemm.end());
    for (const TimedProduct& product : products)
      *device.add_gemm() = RateOf(product, series.next.dtype, fixed_ns);
  }
}

// The mean time of a copy on all ranks, without the fixed cost of its step.
double CopyNs(const EpochTimes& times, double step_ns) {
  double sum_ns = 0;
  for (const auto& [rank, time_ns] : times) sum_ns += time_ns - step_ns;
  return times.empty() ? 0 : sum_ns / static_cast<double>(times.size());
}

// A copy touches twice its bytes, and reads or writes each.
void SetCopies(const Survey& survey, v1::WorldMachine* world, Devices* devices) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const double step_ns = device.step_us() * 1e3;
  for (const Series& series : survey.series()) {
    if (series.next.kind != Probe::Kind::kCopy || series.timed.empty()) continue;
    const auto& [bytes, times] = series.timed.back();
    const double time_ns = CopyNs(times, step_ns);
    if (!IsTime(time_ns) || (bytes < kLeastCopyBytes && time_ns < kLeastCopyNs)) continue;
    for (const auto& [rank, rank_ns] : times) {
      if (rank_ns > step_ns)
        (*devices)[rank].set_copy_gb_per_s(static_cast<double>(bytes) / (rank_ns - step_ns));
    }
    const double bytes_per_ns = static_cast<double>(bytes) / time_ns;
    device.set_memory_gb_per_s(2 * bytes_per_ns);
    // Hardware moves the bytes where the preset says 0.
    if (device.copy_ns_per_byte() > 0) device.set_copy_ns_per_byte(1 / bytes_per_ns);
    device.clear_caches();
    double next = device.memory_gb_per_s();  // of the next larger size
    for (size_t i = series.timed.size() - 1; i-- > 0;) {
      const double cached_ns = CopyNs(series.timed[i].second, step_ns);
      if (cached_ns < kLeastCacheNs || !IsTime(cached_ns)) break;
      const double touched = 2 * static_cast<double>(series.timed[i].first);
      next = std::max(next, touched / cached_ns);
      v1::MachineCache* cache = device.add_caches();
      cache->set_mb(touched / 1e6);
      cache->set_gb_per_s(next);
    }
    std::reverse(device.mutable_caches()->begin(), device.mutable_caches()->end());
    return;
  }
  world->add_preset_fields("device.memory_gb_per_s");
  world->add_preset_fields("device.copy_ns_per_byte");
}

// Returns the time of a kind of probe with the rows and columns of `like` in a round; 0 if there is
// none.
double NsOf(const Survey& survey, Probe::Kind kind, const Probe& like, int round = 0) {
  for (const Series& series : survey.series()) {
    const Probe& probe = series.next;
    if (probe.kind != kind || probe.size != like.size || probe.width != like.width) continue;
    if (round-- > 0) continue;
    const double time_ns = series.timed.empty() ? 0 : Slowest(series.timed.back().second);
    return IsTime(time_ns) ? time_ns : 0;
  }
  return 0;
}

double Median(std::vector<double> figures) {
  std::sort(figures.begin(), figures.end());
  return (figures[(figures.size() - 1) / 2] + figures[figures.size() / 2]) / 2;
}

// Times of a product in ns: medians of the rounds.
struct Longer {
  double alone_ns = 0;   // all of its operands are there
  double longer_ns = 0;  // by which it takes longer if a part of an operand moves
};

// Returns how much longer the product `moving` takes than without the movement; none if it was not
// timed. Rounds that another program has disturbed count, because they may be too long or too
// short.
std::optional<Longer> LongerOf(const Survey& survey, const Probe& moving) {
  std::vector<double> alone, longer;
  for (int round = 0; round < kRounds; ++round) {
    const double alone_ns = NsOf(survey, Probe::Kind::kRows, moving, round);
    const double moving_ns = NsOf(survey, moving.kind, moving, round);
    if (alone_ns <= 0 || moving_ns <= 0) continue;
    alone.push_back(alone_ns);
    longer.push_back(moving_ns - alone_ns);
  }
  if (alone.empty()) return std::nullopt;
  return Longer{Median(std::move(alone)), Median(std::move(longer))};
}

// Returns the time by which a product is longer for each of `bytes` that move, after what is known
// of it, `known_ns`, has been subtracted. None: without a time, or if it is as long as the product,
// which only another program explains.
std::optional<double> ByteNs(const Survey& survey, const Probe& moving, double bytes,
                             double known_ns) {
  const std::optional<Longer> times = LongerOf(survey, moving);
  if (!times.has_value() || times->longer_ns - known_ns >= times->alone_ns) return std::nullopt;
  return (times->longer_ns - known_ns) / bytes;
}

// Returns the probe of a kind; null if it was not timed.
const Probe* Timed(const Survey& survey, Probe::Kind kind) {
  for (const Series& series : survey.series())
    if (series.next.kind == kind && !series.timed.empty()) return &series.next;
  return nullptr;
}

// Sets the time of the cores for a message: the time by which several small ones take longer than
// one. The sender and the receiver work at the same time, each on a message of its own.
void SetMessages(const Survey& survey, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const Probe* const messages = Timed(survey, Probe::Kind::kMessages);
  if (messages != nullptr && device.message_us() > 0) {
    const double all_ns = NsOf(survey, Probe::Kind::kMessages, *messages);
    double one_ns = 0;
    for (const Series& series : survey.series()) {
      if (series.next.kind != Probe::Kind::kOneWay || series.next.ranks != messages->ranks)
        continue;
      if (!series.timed.empty()) one_ns = Slowest(series.timed.front().second);
    }
    const double message_ns = (all_ns - one_ns) / (kPieces - 1) - device.step_us() * 1e3;
    if (IsTime(all_ns) && IsTime(one_ns) && message_ns > 0 && message_ns < kMostFixedNs) {
      device.set_message_us(std::max(message_ns, kLeastMessageNs) / 1e3);
      return;
    }
  }
  world->add_preset_fields("device.message_us");
}

// The fixed costs of a product in two multiplies, with a message sent and one received.
double MovingFixedNs(const v1::MachineDevice& device) {
  return (device.multiply_us() + device.step_us() + 2 * device.message_us()) * 1e3;
}

// The most time for a byte, one sent and one received, with which the cores of the two ranks reach
// the rate between them in both directions.
double MostByteNs(const std::vector<int>& ranks, const v1::WorldMachine& world) {
  for (const v1::MeasuredPath& path : world.paths()) {
    if (path.from_rank() == ranks[0] && path.to_rank() == ranks[1] && path.two_way_gb_per_s() > 0)
      return 1 / path.two_way_gb_per_s();
  }
  return std::numeric_limits<double>::infinity();
}

// Sets the time that the cores of a device need for a byte that they send or receive: the time by
// which a product is longer while its rows move, behind which they are hidden.
void SetMovedBytes(const Survey& survey, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const Probe* const moving = Timed(survey, Probe::Kind::kMovingRows);
  if (moving != nullptr && device.send_ns_per_byte() > 0) {
    const auto moved = static_cast<double>(moving->size * kDepth * SizeOf(moving->dtype));
    if (const auto byte_ns = ByteNs(survey, *moving, moved, MovingFixedNs(device))) {
      const double plausible_ns =
          std::max(std::min(*byte_ns, MostByteNs(moving->ranks, *world)), kLeastByteNs);
      device.set_send_ns_per_byte(plausible_ns);
      device.set_receive_ns_per_byte(plausible_ns);
      return;
    }
  }
  world->add_preset_fields("device.send_ns_per_byte");
  world->add_preset_fields("device.receive_ns_per_byte");
}

// Sets the time of the cores for a byte of B that has arrived, beyond that of its movement.
void SetPacking(const Survey& survey, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const Probe* const columns = Timed(survey, Probe::Kind::kMovingColumns);
  if (columns != nullptr && device.pack_ns_per_byte() > 0) {
    // Half of B arrives at each rank, which sends as much.
    const auto arrived = static_cast<double>(columns->width / 2 * kDepth * SizeOf(columns->dtype));
    const double moved_ns = arrived * (device.send_ns_per_byte() + device.receive_ns_per_byte()) +
                            MovingFixedNs(device);
    const auto byte_ns = ByteNs(survey, *columns, arrived, moved_ns);
    if (byte_ns.has_value() && *byte_ns > 0) {
      device.set_pack_ns_per_byte(*byte_ns);
      return;
    }
  }
  world->add_preset_fields("device.pack_ns_per_byte");
}

// Returns the bytes that pass a link at once after it was idle, which it is while a product runs: a
// product waits less for them than the link's rate says. None: noise hides them.
std::optional<double> BurstBytes(const Survey& survey, const Probe& whole,
                                 const v1::WorldMachine& world) {
  const std::optional<Longer> times = LongerOf(survey, whole);
  if (!times.has_value()) return std::nullopt;
  const double noise_ns = kLeastWaitShare * times->alone_ns;
  for (const v1::MeasuredPath& path : world.paths()) {
    if (path.from_rank() != whole.ranks[0] || path.to_rank() != whole.ranks[1]) continue;
    const auto bytes = static_cast<double>(whole.size / 2 * kDepth * SizeOf(whole.dtype));
    const double bytes_per_ns = path.two_way_gb_per_s() / 2;
    const double waited_ns = times->longer_ns - path.latency_us() * 1e3;
    // Noise of the product looks like a burst.
    if (waited_ns < -noise_ns || bytes < noise_ns * bytes_per_ns) return std::nullopt;
    return std::clamp(bytes - waited_ns * bytes_per_ns, 0.0, bytes);
  }
  return std::nullopt;
}

void SetBurst(const Survey& survey, v1::WorldMachine* world) {
  v1::Machine& machine = *world->mutable_machine();
  const Probe* const whole = Timed(survey, Probe::Kind::kWholeRows);
  if (whole == nullptr || machine.device().message_us() <= 0) return;
  if (const std::optional<double> bytes = BurstBytes(survey, *whole, *world)) {
    machine.mutable_between()->set_burst_kb(*bytes / 1e3);
  } else {
    world->add_preset_fields("between.burst_kb");
  }
}

// The mean of all ranks; 0 if there is none.
double MeanNs(const EpochTimes& times) {
  double sum_ns = 0;
  for (const auto& [rank, time_ns] : times) sum_ns += time_ns;
  const double mean_ns = times.empty() ? 0 : sum_ns / static_cast<double>(times.size());
  return IsTime(mean_ns) ? mean_ns : 0;
}

// The fixed costs of steps are those of the smallest copy and of the smallest product, which an
// epoch has little else to do for.
void SetFixedCosts(const Survey& survey, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  double copy_ns = 0, product_ns = 0;
  for (const Series& series : survey.series()) {
    if (series.timed.empty()) continue;
    const auto& [size, times] = series.timed.front();
    if (series.next.kind == Probe::Kind::kCopy && size <= kLeastBytes) copy_ns = MeanNs(times);
    const bool tiny = series.next.kind == Probe::Kind::kProduct && size <= kLeastSide;
    if (tiny && series.next.dtype == DType::kBF16) product_ns = MeanNs(times);
  }
  if (copy_ns > 0 && copy_ns < kMostFixedNs) {
    device.set_step_us(copy_ns / 1e3);
  } else {
    world->add_preset_fields("device.step_us");
  }
  const double multiply_ns = product_ns - device.step_us() * 1e3;
  if (multiply_ns > 0 && multiply_ns < kMostFixedNs) {
    device.set_multiply_us(multiply_ns / 1e3);
  } else {
    world->add_preset_fields("device.multiply_us");
  }
}

}  // namespace

v1::WorldMachine PresetOf(const v1::Machine& preset) {
  v1::WorldMachine world;
  *world.mutable_machine() = preset;
  world.set_preset(preset.name());
  world.add_preset_fields("all");
  return world;
}

v1::WorldMachine MachineOf(const Survey& survey, const v1::Machine& preset) {
  v1::WorldMachine world = PresetOf(preset);
  world.clear_preset_fields();
  std::vector<v1::MeasuredPath> paths = OneWayPaths(survey);
  AddBothWays(survey, &paths);
  world.mutable_paths()->Add(paths.begin(), paths.end());
  SetFixedCosts(survey, &world);
  Devices devices;
  SetProducts(survey, &world, &devices);
  SetCopies(survey, &world, &devices);
  SetMessages(survey, &world);
  SetMovedBytes(survey, &world);
  SetPacking(survey, &world);
  SetLinks(survey, &world);
  SetBurst(survey, &world);
  for (auto& [rank, device] : devices) {
    device.set_rank(rank);
    *world.add_devices() = std::move(device);
  }
  for (const Series& series : survey.series())
    if (!series.error.empty())
      world.add_errors(absl::StrCat(Describe(series.next), ": ", series.error));
  return world;
}

absl::StatusOr<CheckedWorld> Check(v1::WorldMachine world) {
  AGMM_ASSIGN_OR_RETURN(Machine machine, FromProto(world.machine()));
  return CheckedWorld{std::move(world), std::move(machine)};
}

}  // namespace agmm::measure
