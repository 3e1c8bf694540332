// Checks and measures the kernels of kernels/cuda/sm90 on one Hopper GPU. Prints a JSON object for
// tests/gpu/bench.py.
//
//   sm90_bench [--dry-run] [product] [ring] [repeats]     all three without a name
//
// product: the kernels against cuBLASLt. ring: ranks on one GPU, whose kernels send A around a
// ring, or wait for copies, against one product of the whole shape. repeats: the ring with new
// operands and random delays in each epoch.
//
// Every result is compared with cuBLASLt's, bit by bit, on integers. Times are of uniform values:
// medians, between two events. --dry-run: tiny sizes and no times, also on a model of the driver
// with 32 channels.
//
// Exits with 1 if a result is wrong or a kernel does not end, with 77 on a GPU for which there are
// no kernels.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/base/units.h"
#include "kernels/cuda/cuda_device.h"
#include "tests/gpu/sm90_ring.h"

namespace agmm::sm90 {
namespace {

struct Product {
  int64_t m = 0, n = 0, k = 0;
};

struct Sizes {
  std::vector<Product> products = {{4096, 4096, 4096}, {8192, 4096, 4096}};
  int64_t rows = 1024, cols = 4096, k = 4096;                    // of a ring, for each rank
  int64_t repeat_rows = 200, repeat_cols = 328, repeat_k = 264;  // ragged
  std::vector<int> ranks = {2, 4, 8};                            // of the rings
  int sets = 3, rounds = 21, warm_up = 3, repeats = 1000;
};
// Elements of 16 bits. Such a matrix begins at an odd column of its tensor map, whose address is a
// multiple of 16 bytes, but not of 32.
constexpr int64_t kOddOffset = 29;
// Ragged, and as small as the kernels take.
const Sizes kDrySizes = {.products = {{136, 200, 136}},
                         .rows = 72,
                         .cols = 136,
                         .k = 72,
                         .repeat_rows = 72,
                         .repeat_cols = 136,
                         .repeat_k = 72,
                         .ranks = {2, 4},
                         .sets = 1,
                         .rounds = 1,
                         .warm_up = 0,
                         .repeats = 2};

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

std::string Quoted(const std::string& text) { return absl::StrCat("\"", text, "\""); }

class Bench {
 public:
  Bench(HopperGpu& gpu, bool dry_run)
      : gpu_(gpu), dry_run_(dry_run), sizes_(dry_run ? kDrySizes : Sizes()) {}

  void Products() {
    for (const Product& product : sizes_.products) Compare(product);
  }
  void Rings() {
    for (const int ranks : sizes_.ranks) CompareRing(ranks);
  }
  void Repeats() {
    for (const int ranks : sizes_.ranks) Repeat(ranks);
  }

  void Print() const {
    std::printf("{\"schema\": \"agmm.sm90_bench.v1\", \"device\": %s, \"rows\": [\n",
                Quoted(gpu_.name()).c_str());
    for (size_t i = 0; i < rows_.size(); ++i)
      std::printf("  %s%s\n", rows_[i].c_str(), i + 1 < rows_.size() ? "," : "");
    std::printf("]}\n");
  }
  size_t count() const { return rows_.size(); }

 private:
  struct Operands {
    DeviceMatrix a, b, c;
  };
  using Fields = std::vector<std::pair<const char*, std::string>>;

  Operands Make(const Product& shape, DType dtype) {
    return {gpu_.Make(shape.m, shape.k, dtype), gpu_.Make(shape.k, shape.n, dtype),
            gpu_.Make(shape.m, shape.n, dtype)};
  }
  void Fill(const Operands& operands, FillKind kind, uint64_t seed) {
    gpu_.Fill(operands.a, kind, seed, 0, gpu_.control());
    gpu_.Fill(operands.b, kind, seed + 1, 0, gpu_.control());
  }

  // A product by a kernel with tiles of this width.
  void Launch(const Operands& operands, int tile_cols) {
    const auto& [a, b, c] = operands;
    const ProductConfig config = KernelOf(operands, tile_cols);
    auto arguments = std::make_unique<Arguments>();
    arguments->blocks[0] = {.rows = static_cast<int>(c.rows),
                            .cols = static_cast<int>(c.cols),
                            .first_piece = 0,
                            .pieces = 1,
                            .c = reinterpret_cast<void*>(c.at),
                            .pitch = c.pitch_bytes / SizeOf(c.dtype)};
    arguments->pieces[0].a = gpu_.Map(a, kTileRows, *arguments, 0);
    arguments->pieces[0].b =
        gpu_.Map(b, static_cast<int>(kStageBytesOfK / SizeOf(b.dtype)), *arguments, 1);
    arguments->pieces[0].k = static_cast<int>(a.cols);
    arguments->block_count = 1;
    arguments->raster_rows = config.raster_rows;
    arguments->send_columns = config.send_columns;
    gpu_.Launch(config, *arguments, gpu_.control());
  }
  ProductConfig KernelOf(const Operands& operands, int tile_cols) const {
    const std::string type = TraitsOf(operands.a.dtype).name;
    ProductConfig config = ProductKernel(type, type, tile_cols, false);
    config.ctas = static_cast<int>(std::min<int64_t>(
        gpu_.sms(), CeilDiv(operands.c.rows, kTileRows) * CeilDiv(operands.c.cols, tile_cols)));
    return config;
  }

  // Returns the median of the microseconds of each way to compute the sets, which take turns.
  template <typename Compute>
  std::vector<double> Time(const std::vector<Operands>& sets, int ways, Compute compute) {
    const int rounds = sizes_.warm_up + sizes_.rounds;
    std::vector<std::vector<double>> us(ways);
    std::vector<std::pair<CUevent, CUevent>> stamps(ways);
    for (auto& [begin, end] : stamps) begin = gpu_.Event(), end = gpu_.Event();
    for (int round = 0; round < rounds; ++round) {
      gpu_.HoldBack();
      for (int way = 0; way < ways; ++way) {
        gpu_.Check("cuEventRecord", gpu_.cu.cuEventRecord(stamps[way].first, gpu_.control()));
        compute(sets[(round + way) % sets.size()], way);
        gpu_.Check("cuEventRecord", gpu_.cu.cuEventRecord(stamps[way].second, gpu_.control()));
      }
      gpu_.Await(stamps.back().second, "a product");
      for (int way = 0; way < ways && round >= sizes_.warm_up; ++way)
        us[way].push_back(gpu_.Microseconds(stamps[way].first, stamps[way].second));
    }
    std::vector<double> medians;
    for (const auto& each : us) medians.push_back(Median(each));
    return medians;
  }

  void Compare(const Product& shape) {
    constexpr DType kType = DType::kBF16;
    constexpr int kTiles[] = {kNarrow, kWide};
    std::vector<Operands> sets;
    for (int set = 0; set < sizes_.sets; ++set) sets.push_back(Make(shape, kType));
    const DeviceMatrix wanted = gpu_.Make(shape.m, shape.n, kType);
    Fill(sets[0], FillKind::kIntegers, 1);
    gpu_.Multiply(sets[0].a, sets[0].b, wanted, gpu_.control());
    for (const int tile_cols : kTiles) {
      gpu_.Poison(sets[0].c, gpu_.control());
      Launch(sets[0], tile_cols);
      RefuseWrong(gpu_.CountDifferentRows(sets[0].c, wanted), shape.m,
                  KernelOf(sets[0], tile_cols).kernel);
    }
    for (size_t set = 0; set < sets.size(); ++set) Fill(sets[set], FillKind::kUniform, 10 * set);
    const std::vector<double> us = Time(sets, 3, [&](const Operands& operands, int way) {
      if (way > 0) return Launch(operands, kTiles[way - 1]);
      gpu_.Multiply(operands.a, operands.b, operands.c, gpu_.control());
    });
    for (int i = 0; i < 2; ++i) {
      Fields fields = {{"what", Quoted("sm90_product")},
                       {"kernel", Quoted(KernelOf(sets[0], kTiles[i]).kernel)}};
      AddShape(fields, shape);
      AddTimes(fields, shape, us[i + 1], "cublaslt_us", us[0]);
      AddRow(fields);
    }
  }

  void CompareRing(int ranks) {
    const LoopbackRing::Shape shape = {ranks, sizes_.rows, sizes_.cols, sizes_.k};
    const Product whole = {ranks * shape.rows, ranks * shape.cols, shape.k};
    LoopbackRing ring(gpu_, shape);
    const Operands operands = Make(whole, shape.dtype);
    Fill(operands, FillKind::kUniform, 1);
    const std::vector<double> one_product = Time({operands}, 1, [&](const Operands&, int) {
      gpu_.Multiply(operands.a, operands.b, operands.c, gpu_.control());
    });
    for (const auto send : {LoopbackRing::Send::kCarried, LoopbackRing::Send::kCopies}) {
      const bool carried = send == LoopbackRing::Send::kCarried;
      ring.Refill(FillKind::kIntegers, 100 * ranks);
      ring.Run(send);
      RefuseWrong(ring.CountWrongRows(), ranks * whole.m, ring.config(send).kernel);
      Fields fields = {{"what", Quoted("sm90_ring")},
                       {"ranks", absl::StrCat(ranks)},
                       {"send", Quoted(carried ? "carried" : "copies")},
                       {"kernel", Quoted(ring.config(send).kernel)},
                       {"ctas", absl::StrCat(ring.config(send).ctas)}};
      AddShape(fields, whole);
      ring.Refill(FillKind::kUniform, 1);
      std::vector<double> us;
      for (int round = 0; round < sizes_.warm_up + sizes_.rounds; ++round) {
        const double one = ring.Run(send);
        if (round >= sizes_.warm_up) us.push_back(one);
      }
      AddTimes(fields, whole, Median(us), "one_product_us", one_product[0]);
      AddRow(fields);
    }
  }

  void Repeat(int ranks) {
    LoopbackRing ring(gpu_, {.ranks = ranks,
                             .rows = sizes_.repeat_rows,
                             .cols = sizes_.repeat_cols,
                             .k = sizes_.repeat_k,
                             .offset = kOddOffset});
    ring.Refill(FillKind::kIntegers, 1);
    ring.RunAborted();
    for (int epoch = 1; epoch <= sizes_.repeats; ++epoch) {
      ring.Refill(FillKind::kIntegers, 1000 * epoch);
      ring.Run(LoopbackRing::Send::kCarried, epoch);
      RefuseWrong(ring.CountWrongRows(), ranks * ranks * sizes_.repeat_rows,
                  absl::StrCat("epoch ", epoch, " of ", ranks, " ranks"));
    }
    AddRow({{"what", Quoted("sm90_repeats")},
            {"ranks", absl::StrCat(ranks)},
            {"epochs", absl::StrCat(sizes_.repeats)}});
  }

  static void RefuseWrong(int64_t wrong, int64_t rows, const std::string& what) {
    if (wrong > 0) Die(absl::StrCat(what, ": ", wrong, " of ", rows, " rows of C are wrong"));
  }
  static void AddShape(Fields& fields, const Product& shape) {
    fields.emplace_back("m", absl::StrCat(shape.m));
    fields.emplace_back("n", absl::StrCat(shape.n));
    fields.emplace_back("k", absl::StrCat(shape.k));
  }
  // Adds nothing in a dry run, whose times say nothing.
  void AddTimes(Fields& fields, const Product& shape, double us, const char* other,
                double other_us) const {
    if (dry_run_) return;
    fields.emplace_back("us", absl::StrFormat("%.1f", us));
    fields.emplace_back("tflop_s",
                        absl::StrFormat("%.1f", 2e-6 * shape.m * shape.n * shape.k / us));
    fields.emplace_back(other, absl::StrFormat("%.1f", other_us));
  }
  void AddRow(const Fields& fields) {
    std::string row;
    for (const auto& [name, value] : fields)
      absl::StrAppend(&row, row.empty() ? "{" : ", ", Quoted(name), ": ", value);
    rows_.push_back(row + "}");
    std::fprintf(stderr, "%s\n", rows_.back().c_str());
  }

  HopperGpu& gpu_;
  const bool dry_run_;
  const Sizes sizes_;
  std::vector<std::string> rows_;
};

int Main(bool dry_run, const std::set<std::string>& names) {
  SetUpCudaEnvironment();  // one hardware queue for each stream
  HopperGpu gpu;
  if (const std::string why = gpu.Start(); !why.empty()) {
    std::fprintf(stderr, "sm90_bench: %s\n", why.c_str());
    gpu.Finish();
    return 77;
  }
  if (gpu.is_model() && !dry_run)
    Die(absl::StrCat(gpu.name(), " is a model, whose times mean nothing; use --dry-run"));
  Bench bench(gpu, dry_run);
  if (names.contains("product")) bench.Products();
  if (names.contains("ring")) bench.Rings();
  if (names.contains("repeats")) bench.Repeats();
  bench.Print();
  gpu.Finish();
  std::fprintf(stderr, "%zu cases are exact\n", bench.count());
  return 0;
}

}  // namespace
}  // namespace agmm::sm90

int main(int argc, char** argv) {
  const std::set<std::string> all = {"product", "ring", "repeats"};
  std::set<std::string> names;
  bool dry_run = false;
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--dry-run") == 0) {
      dry_run = true;
    } else if (all.contains(argv[i])) {
      names.insert(argv[i]);
    } else {
      std::fprintf(stderr, "usage: sm90_bench [--dry-run] [product] [ring] [repeats]\n");
      return 2;
    }
  }
  return agmm::sm90::Main(dry_run, names.empty() ? all : names);
}
