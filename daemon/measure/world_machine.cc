#include "daemon/measure/world_machine.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
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
// The least figure, also if the cores have time to spare.
constexpr double kLeastByteNs = 1e-3;

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
  links->set_latency_us(std::max(latency_us - fixed_us, latency_us / 2));
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
    pair->set_latency_us(std::max(path->latency_us() - fixed_us, path->latency_us() / 2));
  }
}

void SetLinks(const Survey& survey, v1::WorldMachine* world) {
  v1::Machine& machine = *world->mutable_machine();
  const v1::MachineDevice& device = machine.device();
  // The model adds these to a message's latency.
  const double fixed_us = device.message_us() + device.step_us() + device.signal_us();
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
    SetRates(within, fixed_us, machine.mutable_within());
  }
  if (staged.empty()) {
    world->add_preset_fields("staged");
  } else {
    if (!machine.has_staged()) *machine.mutable_staged() = machine.within();
    SetRates(staged, fixed_us, machine.mutable_staged());
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

// Sets the time that the cores of a device need for a byte that they send or receive: the time by
// which a product is longer while its rows move, behind which they are hidden.
void SetMovedBytes(const Survey& survey, v1::WorldMachine* world) {
  v1::MachineDevice& device = *world->mutable_machine()->mutable_device();
  const Series *alone = nullptr, *moving = nullptr;
  for (const Series& series : survey.series()) {
    if (series.timed.empty()) continue;
    if (series.next.kind == Probe::Kind::kRows) alone = &series;
    if (series.next.kind == Probe::Kind::kMovingRows) moving = &series;
  }
  if (alone != nullptr && moving != nullptr && device.send_ns_per_byte() > 0) {
    const auto& [rows, times] = moving->timed.back();
    const auto moved = static_cast<double>(rows * kDepth * SizeOf(moving->next.dtype));
    const double alone_ns = Slowest(alone->timed.back().second), moving_ns = Slowest(times);
    // One more multiply, a message sent and one received.
    const double fixed_ns =
        (device.multiply_us() + device.step_us() + 2 * device.message_us()) * 1e3;
    const double byte_ns = (moving_ns - alone_ns - fixed_ns) / moved;
    if (IsTime(alone_ns) && IsTime(moving_ns) && byte_ns < alone_ns / moved) {
      device.set_send_ns_per_byte(std::max(byte_ns, kLeastByteNs));
      device.set_receive_ns_per_byte(std::max(byte_ns, kLeastByteNs));
      return;
    }
  }
  world->add_preset_fields("device.send_ns_per_byte");
  world->add_preset_fields("device.receive_ns_per_byte");
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
  SetLinks(survey, &world);
  Devices devices;
  SetProducts(survey, &world, &devices);
  SetCopies(survey, &world, &devices);
  SetMovedBytes(survey, &world);
  for (auto& [rank, device] : devices) {
    device.set_rank(rank);
    *world.add_devices() = std::move(device);
  }
  for (const char* name : {"multiply_us", "step_us", "signal_us", "message_us", "pack_ns_per_byte"})
    world.add_preset_fields(absl::StrCat("device.", name));
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
