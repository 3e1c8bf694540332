#include "kernels/predict/seeds.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/str_format.h"
#include "kernels/predict/cost.h"

namespace agmm {
namespace {

constexpr double kNotPrinted = std::numeric_limits<double>::quiet_NaN();
constexpr double kNsPerUs = 1e3;  // ns
constexpr double kBytesPerMB = 1e6, kBytesPerKiB = 1024, kBytesPerMiB = 1024 * 1024;
constexpr double kBF16Bytes = 2;
constexpr double kPallasProductNs = 43 * kNsPerUs;  // the guide's: M 1024, K 4096, N 4096 in f16

// The rows of one source.
class SourceRows {
 public:
  SourceRows(std::string source, std::vector<SeedRow>& rows)
      : source_(std::move(source)), rows_(rows) {}

  void Add(std::string question, std::string unit, double seed, double digit, double ours,
           std::string why = "") {
    rows_.push_back({.source = source_,
                     .question = std::move(question),
                     .unit = std::move(unit),
                     .seed = seed,
                     .digit = digit,
                     .ours = ours,
                     .why = std::move(why)});
  }
  // A figure for which the source asks, but which it does not print.
  void AddOpen(std::string question, std::string unit, double ours) {
    Add(std::move(question), std::move(unit), kNotPrinted, 0, ours);
  }

 private:
  const std::string source_;
  std::vector<SeedRow>& rows_;
};

// On a torus, axes wrap around where the machine says so. Several axes wrap, or none does.
Passing PassingOnTorus(const Machine& machine, const std::vector<int>& sizes) {
  const auto wraps = [&](int size) {
    return machine.wrap_multiple > 0 && size % machine.wrap_multiple == 0;
  };
  return std::all_of(sizes.begin(), sizes.end(), wraps) ? Passing::kBothWays : Passing::kLine;
}

double GatherOnNs(const Machine& machine, double bytes, const std::vector<int>& sizes) {
  return rule::GatherNs(bytes, sizes, machine.within.rates, PassingOnTorus(machine, sizes));
}

double BF16ComputeNs(const Machine& machine, double flops) {
  return flops / PeakFlopsPerNs(machine.device, DType::kBF16);
}

void AddBytes(std::vector<SeedRow>& all) {
  SourceRows sharded("scaling book, quiz 2D sharding", all);
  const double shard = ShardBytes(1024.0 * 4096 * 4, {8, 2});
  sharded.Add("fp32[1024, 4096] as [I_xy, J] on x=8, y=2: bytes on a device", "MiB", 1, 1,
              shard / kBytesPerMiB);
  DeviceRates device;
  device.memory = 3400;  // the quiz's
  const double load_ns = LoadNs(shard, device);
  sharded.Add("time to load them at 3.4e12 bytes/s", "us", 0.3, 0.1, load_ns / kNsPerUs);
  sharded.Add("the same, to the ns", "ns", 294, 1, load_ns,
              "the book divides 1e6 bytes; 1 MiB has 1,048,576");

  SourceRows copies("scaling book, quiz int8", all);
  const double bytes = 128.0 * 2048;
  const std::string question = "int8[128, 2048] as [I_xy, J] on x=2, y=8, z=2: ";
  copies.Add(question + "bytes on a device", "B", 16384, 1, ShardBytes(bytes, {2, 8}));
  copies.Add(question + "bytes on all devices", "KiB", 512, 1,
             TotalBytes(bytes, {2, 8}, 32) / kBytesPerKiB);
}

void AddGathers(const Machine& v5e, std::vector<SeedRow>& all) {
  const LinkRates& links = v5e.within.rates;
  SourceRows rates("scaling book, latency and bandwidth", all);
  rates.Add("v5e: messages below this size are bound by latency", "kB", 45, 1,
            rule::LatencyBoundBytes(links) / 1e3);
  const double array = 10 * kBytesPerMB;
  rates.Add("v5e: 10 MB over 16 devices, a device's shard", "kB", 500, 100,
            ShardBytes(array, {16}) / 1e3, "10 MB / 16; the book says about 500 kB");
  const double ring_ns = exact::GatherNs(array, {16}, links, Passing::kBothWays);
  rates.Add("v5e: 10 MB over 16 devices, rate of a gather both ways", "% of peak", 95, 1,
            100 * array / ring_ns / links.two_way,
            "the book measured about 95; ours adds the whole latency to each of 8 hops");

  SourceRows quiz("scaling book, quiz 2", all);
  const double large = 2048.0 * 8192 * kBF16Bytes, small = 256.0 * 256 * kBF16Bytes;
  quiz.Add("v5e x=8, y=4: gather bf16[2048_y, 8192] as a ring", "us", 377, 1,
           rule::GatherNs(large, {4}, links) / kNsPerUs,
           "the book rounds 33.55 MB up to 34 MB before it divides");
  quiz.Add("the same on a line, because an axis of 4 does not wrap around", "us", 560, 1,
           rule::GatherNs(large, {4}, links, Passing::kLine) / kNsPerUs,
           "the book rounds a shard of 8.39 MB up to 8.4 MB before it divides");
  quiz.Add("the same, measured; ours with latency", "us", 680, 1,
           exact::GatherNs(large, {4}, links, Passing::kLine) / kNsPerUs,
           "a profile of a real device, which reaches 82 % of the links' rate");
  quiz.Add("v5e x=8, y=4: gather bf16[256_y, 256]", "us", 3, 1,
           rule::GatherNs(small, {4}, links, Passing::kLine) / kNsPerUs);
  quiz.Add("the same, measured; ours with latency and bytes of each hop", "us", 8, 1,
           exact::GatherNs(small, {4}, links, Passing::kLine) / kNsPerUs,
           "a profile of a real device, whose 3 hops take 2.7 us each instead of 1.7");
}

void AddQuestions1To3(const Machine& v4p, std::vector<SeedRow>& all) {
  SourceRows first("scaling book, question 1", all);
  first.Add("[I_x, J, K] on x=4, y=8, z=2: bytes of all copies / bytes of the array", "", 16, 1,
            TotalBytes(1, {4}, 64));

  SourceRows second("scaling book, question 2", all);
  const double array = 1024.0 * 4096 * kBF16Bytes;
  second.Add("v4p 4x4x4: gather over x of bf16[1024_x, 4096_y]", "us", 23, 1,
             GatherOnNs(v4p, array / 4, {4}) / kNsPerUs);
  second.Add("the same over x and y", "us", 46, 1, GatherOnNs(v4p, array, {4, 4}) / kNsPerUs,
             "the book truncates 46.6 to 46");
  second.Add("all-reduce over z of bf16[1024_x, 4096_y]", "us", 11.6, 0.1,
             rule::AllReduceNs(array / 16, {4}, v4p.within.rates) / kNsPerUs,
             "the book truncates 11.65 to 11.6");

  SourceRows third("scaling book, question 3", all);
  third.Add("v4p 4x4x4: gather over x of bf16[128_x]", "us", 2, 1,
            GatherOnNs(v4p, 128 * kBF16Bytes, {4}) / kNsPerUs);
}

void AddQuestion4(const Machine& v5p, std::vector<SeedRow>& all) {
  SourceRows rows("scaling book, question 4", all);
  StrategyQuestion question = {.batch = 1024,
                               .width = 32768,
                               .size = 4,
                               .flops_per_ns = PeakFlopsPerNs(v5p.device, DType::kBF16),
                               .bytes_per_ns = v5p.within.rates.two_way};
  const StrategyThresholds thresholds = ThresholdsOf(question);
  rows.Add("v5p: B below which strategy 1 (gather Y) is bound by communication", "", 2550, 1,
           thresholds.comm_bound_batch);
  rows.Add("v5p: B = 1024: D above which strategy 2 (all-reduce Z) is faster, 2B", "", 2048, 1,
           thresholds.depth_small_batch);
  rows.Add("v5p: B > 2550: D above which strategy 2 is faster", "", 5100, 1,
           thresholds.depth_large_batch);
  for (const double batch : {1024.0, 2550.0, 8192.0}) {
    for (const double depth : {4096.0, 8192.0}) {
      question.batch = batch;
      question.depth = depth;
      const std::string at =
          absl::StrFormat("v5p, F = 32768, x = 4, B = %g, D = %g: ", batch, depth);
      const double first = GatherThenMultiply(question).TotalNs();
      const double second = MultiplyThenAllReduce(question).TotalNs();
      rows.AddOpen(at + "strategy 1", "us", first / kNsPerUs);
      rows.AddOpen(at + "strategy 2", "us", second / kNsPerUs);
      // The book's rules, with its figures.
      const int better = depth > (batch < 2550 ? 2 * batch : 5100) ? 2 : 1;
      rows.Add(at + "the faster strategy", "", better, 1, second < first ? 2 : 1);
    }
  }
}

void AddQuestion5(const Machine& v5p, std::vector<SeedRow>& all) {
  SourceRows rows("scaling book, question 5", all);
  const double side = 8192;
  const std::string at = "v5p 4x4x4, I = J = K = 8192: ";
  const double flops = 2 * side * side * side, result = side * side * kBF16Bytes;
  const std::vector<int> sizes = {4, 4, 4};
  const double compute_ns = BF16ComputeNs(v5p, flops / 64);
  const double gather_ns = GatherOnNs(v5p, result, sizes);
  const double reduce_ns = rule::AllReduceNs(result, sizes, v5p.within.rates);
  const std::array<double, 4> options = {compute_ns + gather_ns, compute_ns + gather_ns,
                                         compute_ns + reduce_ns, BF16ComputeNs(v5p, flops)};
  rows.AddOpen(at + "flop on a device, options 1 to 3", "Gflop", flops / 64 / 1e9);
  rows.AddOpen(at + "communication of options 1 and 2", "us", gather_ns / kNsPerUs);
  rows.AddOpen(at + "communication of option 3", "us", reduce_ns / kNsPerUs);
  rows.AddOpen(at + "1. A[I_xyz, J] B[J, K], gather C", "us", options[0] / kNsPerUs);
  rows.AddOpen(at + "2. A[I, J] B[J, K_xyz], gather C", "us", options[1] / kNsPerUs);
  rows.AddOpen(at + "3. A[I, J_xyz] B[J_xyz, K], all-reduce C", "us", options[2] / kNsPerUs);
  rows.AddOpen(at + "4. A[I, J] B[J, K], all on every device", "us", options[3] / kNsPerUs);
  const double best = *std::min_element(options.begin(), options.end());
  rows.Add(at + "options that are as fast as the fastest: 1 and 2", "", 2, 1,
           static_cast<double>(std::count(options.begin(), options.end(), best)));
  rows.Add(
      at + "the first of them", "", 1, 1,
      static_cast<double>(std::find(options.begin(), options.end(), best) - options.begin()) + 1);
}

void AddQuestions6And7(const Machine& v5e, std::vector<SeedRow>& all) {
  SourceRows sixth("scaling book, question 6", all);
  const double side = 4096;
  const std::string at = "v5e 4x4 (lines), I = J = K = 4096: ";
  const double compute_us = BF16ComputeNs(v5e, 2 * side * side * side / 16) / kNsPerUs;
  // A quarter of a matrix, of which all devices of an axis get or sum the whole.
  const double gather_us = GatherOnNs(v5e, side * side * kBF16Bytes / 4, {4}) / kNsPerUs;
  const std::array<std::pair<std::string, double>, 3> forms = {
      {{"A[I_x, J_y] B[J_y, K] -> C[I_x, K], all-reduce C over y", 2 * gather_us},
       {"A[I_x, J] B[J_x, K_y] -> C[I_x, K_y], gather B over x", gather_us},
       {"A[I_x, J] B[J, K_y] -> C[I_x, K_y], nothing", 0}}};
  for (const auto& [form, comm_us] : forms) {
    sixth.AddOpen(at + form + ": communication", "us", comm_us);
    sixth.AddOpen(at + form + ": computation", "us", compute_us);
  }

  SourceRows seventh("scaling book, question 7", all);
  const double depth = 8192, width = 32768, batch = 128;
  const double weights = 2 * depth * width * kBF16Bytes, rows = batch * depth * kBF16Bytes;
  const std::string block = "v5e 2x2, D 8192, F 32768, batch 128, 300 MB: ";
  seventh.AddOpen(block + "weights on a device as B[D, F_xy], C[F_xy, D], which fit", "MB",
                  ShardBytes(weights, {2, 2}) / kBytesPerMB);
  seventh.AddOpen(block + "weights on a device as B[D, F_x], C[F_x, D], which do not fit", "MB",
                  ShardBytes(weights, {2}) / kBytesPerMB);
  seventh.AddOpen(block + "computation", "us",
                  BF16ComputeNs(v5e, 2 * 2 * batch * depth * width / 4) / kNsPerUs);
  seventh.AddOpen(block + "gather x[B, D_xy], reduce-scatter the output to [B, D_xy]", "us",
                  2 * GatherOnNs(v5e, rows, {2, 2}) / kNsPerUs);
  seventh.AddOpen(block + "reading the weights, which takes longest", "us",
                  LoadNs(ShardBytes(weights, {2, 2}), v5e.device) / kNsPerUs);
}

void AddQuestion9(const Machine& v5e, std::vector<SeedRow>& all) {
  SourceRows rows("scaling book, question 9", all);
  const double n = 8192, m = 16384, k = 4096;
  rows.Add("A[8192, 16384_x] B[16384, 4096]: gather of A / reduce-scatter of C, M/K", "", m / k, 1,
           rule::GatherNs(n * m * kBF16Bytes, {16}, v5e.within.rates) /
               rule::GatherNs(n * k * kBF16Bytes, {16}, v5e.within.rates));
}

void AddQuestion10(const LinkElements& counted, std::vector<SeedRow>& all) {
  SourceRows rows("scaling book, question 10", all);
  const double matrix = 1.0 * kQuestion10Rows * kQuestion10Rows;
  const double share = 1 - 1.0 / kQuestion10Devices;
  const std::string at = absl::StrFormat("N = %d, D = %d: ", kQuestion10Rows, kQuestion10Devices);
  rows.Add(at + "1. scalars on a link, gather one way, N^2 (1 - 1/D)", "", matrix * share, 1,
           counted.gather_one_way);
  rows.Add(at + "2. scalars on a link, all-to-all one way, N^2 / 2 (1 - 1/D)", "",
           matrix * share / 2, 1, counted.all_to_all_one_way);
  rows.Add(at + "3. all-to-all / gather, one way", "", 0.5, 0.1,
           counted.all_to_all_one_way / counted.gather_one_way);
  rows.Add(at + "4. gather, one way / both ways", "", 2, 0.1,
           counted.gather_one_way / counted.gather_both_ways,
           "one direction carries the shard of the opposite device, too: 8 of 15 shards");
  rows.Add(at + "5. all-to-all, one way / both ways", "", 4, 0.1,
           counted.all_to_all_one_way / counted.all_to_all_both_ways,
           "4 is the limit of large D; with D = 16, 120 blocks one way and 36 both ways");
  rows.Add(at + "6. gather / all-to-all, both ways", "", 4, 0.1,
           counted.gather_both_ways / counted.all_to_all_both_ways,
           "4 is the limit of large D; with D = 16, 128 blocks and 36");
}

void AddPallas(const Machine& h100, const SimulatedFigures& simulated, std::vector<SeedRow>& all) {
  SourceRows rows("Pallas:MGPU, collective matrix multiplication", all);
  const std::array<double, 3> kernel_us = {102, 212, 436}, bound_us = {92, 190, 386},
                              unfused_us = {147, 290, 565};
  for (size_t i = 0; i < kernel_us.size(); ++i) {
    const int devices = kPallasDevices[i];
    const std::string at = absl::StrFormat("%d H100s, M 1024, K 4096, N 4096 each: ", devices);
    rows.Add(at + "ring", "us", kernel_us[i], 1, simulated.pallas_ring_us[i],
             "a measured kernel, whose tail and memory traffic no model here has");
    rows.Add(at + "lower bound", "us", bound_us[i], 1,
             RingProductBoundNs(kPallasProductNs, devices) / kNsPerUs);
    const double array = devices * 1024.0 * 4096 * kBF16Bytes;
    rows.Add(
        at + "gather, then multiply", "us", unfused_us[i], 1,
        (devices * kPallasProductNs + exact::SwitchGatherNs(array, devices, h100.within.rates)) /
            kNsPerUs,
        "measured with NCCL, whose launch and protocol ours leaves out");
  }
}

}  // namespace

bool Agrees(const SeedRow& row) {
  if (std::isnan(row.seed)) return true;
  // Lets a sum of binary fractions end just beyond half a digit.
  return std::abs(row.ours - row.seed) <= row.digit / 2 * (1 + 1e-9);
}

SimulatedFigures FiguresOfForms() {
  const double matrix = 1.0 * kQuestion10Rows * kQuestion10Rows;
  const int devices = kQuestion10Devices;
  SimulatedFigures figures;
  figures.elements = {
      .gather_one_way = exact::GatherLinkBytes(matrix, devices, Passing::kOneWay),
      .all_to_all_one_way = exact::AllToAllLinkBytes(matrix, {devices}, Passing::kOneWay),
      .gather_both_ways = exact::GatherLinkBytes(matrix, devices, Passing::kBothWays),
      .all_to_all_both_ways = exact::AllToAllLinkBytes(matrix, {devices}, Passing::kBothWays)};
  for (size_t i = 0; i < figures.pallas_ring_us.size(); ++i)
    figures.pallas_ring_us[i] = RingProductBoundNs(kPallasProductNs, kPallasDevices[i]) / kNsPerUs;
  return figures;
}

std::vector<SeedRow> SeedRows(const SeedMachines& machines, const SimulatedFigures& simulated) {
  std::vector<SeedRow> rows;
  AddBytes(rows);
  AddGathers(machines.tpu_v5e, rows);
  AddQuestions1To3(machines.tpu_v4p, rows);
  AddQuestion4(machines.tpu_v5p, rows);
  AddQuestion5(machines.tpu_v5p, rows);
  AddQuestions6And7(machines.tpu_v5e, rows);
  AddQuestion9(machines.tpu_v5e, rows);
  AddQuestion10(simulated.elements, rows);
  AddPallas(machines.h100, simulated, rows);
  return rows;
}

}  // namespace agmm
