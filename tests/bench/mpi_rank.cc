// The usual program with MPI and oneDNN, against which agmm is measured: one rank on each host.
//
//   mpirun ... mpi_rank FOLDER, with commands as in contender_rank.h
//
// * shape M N K DATA: loads this rank's rows of DATA/A.i8 and columns of DATA/B.i8, and chooses
//   the fastest options.
// * run WHAT COUNT PRODUCTS: the microseconds of COUNT runs on this rank, which all ranks begin
//   together. Each runs PRODUCTS products in a row; the answer is a product's share.
// * rows WHAT PRODUCTS FILE ROW...: runs WHAT over a poisoned C and writes these rows of this
//   rank's C, in bf16.
//
// Values of WHAT:
//
// * gemm_plain, gemm_packed: [M, K] x [K, N / P] of a gathered A, B row-major or as oneDNN packs
// it.
// * gemm_tiles, gemm_widened: the same by agmm's tiles, where the processor has them, and by
//   oneDNN in f32. For the bounds alone.
// * gather: MPI_Allgather(v) of A.
// * unfused: gather, then the faster one of oneDNN's.
// * chunks: isend and irecv by chunks of rows to and from every peer, multiplied as they arrive,
//   MPI_Testsome between the pieces. B is packed; chunk and piece are chosen by trial.
#include <mpi.h>
#include <omp.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "tests/bench/contender_rank.h"
#include "tests/bench/local_gemm.h"

namespace agmm::bench {
namespace {

// The cuts of the overlapped form: rows of a message, and of a multiply, which is as large or
// smaller.
struct Cut {
  int64_t chunk, piece;
};
struct Choice {
  bool packed = false;
  Cut cut = {64, 64};
};
// Each was the best one on some shape and rate.
constexpr Cut kCuts[] = {{64, 64},   {128, 128},  {256, 64},  {256, 256},
                         {512, 128}, {1024, 128}, {1024, 512}};
constexpr int kTrialRuns = 2;
// The number of products in a row in a trial, where one product takes less than kShortUs.
constexpr int kTrialProducts = 8;
constexpr double kShortUs = 5000;

class Rank {
 public:
  Rank() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }
  int rank() const { return rank_; }

  std::string Answer(const Words& words) {
    if (words.at(0) == "shape")
      return SetShape(std::stoll(words.at(1)), std::stoll(words.at(2)), std::stoll(words.at(3)),
                      words.at(4));
    if (words[0] == "run")
      return Times(words.at(1), std::stoi(words.at(2)), std::stoi(words.at(3)));
    if (words[0] == "rows") return WriteRows(words);
    throw std::invalid_argument("unknown command " + words[0]);
  }

 private:
  std::string SetShape(int64_t m, int64_t n, int64_t k, const std::string& data) {
    m_ = m, n_ = PartOf(n, size_, rank_).size(), k_ = k;
    rows_.clear(), counts_.clear(), offsets_.clear();
    for (int r = 0; r < size_; ++r) {
      rows_.push_back(PartOf(m, size_, r));
      counts_.push_back(static_cast<int>(rows_[r].size() * k));
      offsets_.push_back(static_cast<int>(rows_[r].begin * k));
    }
    gemm_.reset();
    tiles_.reset();
    widened_.reset();
    own_ = Load(data + "/A.i8", k, rows_[rank_], {0, k});
    b_ = Load(data + "/B.i8", n, {0, k}, PartOf(n, size_, rank_));
    a_ = MakeBuffer(m * k);
    c_ = MakeBuffer(m * n_);
    gemm_.emplace(b_.get(), k, n_);
    if (AskForTiles()) tiles_.emplace(b_.get(), k, n_);
    widened_.emplace(b_.get(), k, n_);
    Gather();
    alone_ = {};
    const double us = Choose(&alone_, 1);
    in_a_row_ = alone_;
    if (us < kShortUs) Choose(&in_a_row_, kTrialProducts);
    return (alone_.packed ? "packed " : "plain ") + std::to_string(alone_.cut.chunk) + " " +
           std::to_string(alone_.cut.piece);
  }

  // Chooses the fastest options for `products` in a row. Returns microseconds of a product in
  // chunks.
  double Choose(Choice* choice, int products) {
    const double packed_us = Fastest("gemm_packed", products);
    choice->packed = packed_us < Fastest("gemm_plain", products);
    double best = 0;
    Cut fastest;
    for (const Cut& cut : kCuts) {
      choice->cut = cut;
      const double us = Fastest("chunks", products);
      if (best != 0 && us >= best) continue;
      best = us;
      fastest = cut;
    }
    choice->cut = fastest;
    return best;
  }

  // The least time of a few runs, each that of the slowest rank; the same on every rank.
  double Fastest(const std::string& what, int products) {
    double best = Time(what, products);  // prepares, too
    for (int i = 0; i < kTrialRuns; ++i) {
      double us = Time(what, products);
      MPI_Allreduce(MPI_IN_PLACE, &us, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      best = i == 0 ? us : std::min(best, us);
    }
    return best;
  }

  std::string Times(const std::string& what, int count, int products) {
    std::ostringstream text;
    text.precision(12);
    for (int i = 0; i < count; ++i) text << Time(what, products) << " ";
    return text.str();
  }

  double Time(const std::string& what, int products = 1) {
    double start = NowUs() + kLeadUs;
    MPI_Allreduce(MPI_IN_PLACE, &start, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
    WaitUntil(start);
    const Choice& choice = products == 1 ? alone_ : in_a_row_;
    for (int i = 0; i < products; ++i) Do(what, choice);
    return (NowUs() - start) / products;
  }

  void Do(const std::string& what, const Choice& choice) {
    if (what == "gemm_plain") {
      gemm_->Run(a_.get(), m_, c_.get(), false);
    } else if (what == "gemm_packed") {
      gemm_->Run(a_.get(), m_, c_.get(), true);
    } else if (what == "gemm_tiles" && tiles_) {
      tiles_->Run(a_.get(), m_, c_.get());
    } else if (what == "gemm_widened") {
      widened_->Run(a_.get(), m_, c_.get());
    } else if (what == "gather") {
      Gather();
    } else if (what == "unfused") {
      Gather();
      gemm_->Run(a_.get(), m_, c_.get(), choice.packed);
    } else if (what == "chunks") {
      Chunks(choice.cut);
    } else {
      throw std::invalid_argument("unknown contender " + what);
    }
  }

  void Gather() {
    if (m_ % size_ == 0) {
      MPI_Allgather(own_.get(), counts_[rank_], MPI_UINT16_T, a_.get(), counts_[0], MPI_UINT16_T,
                    MPI_COMM_WORLD);
    } else {
      MPI_Allgatherv(own_.get(), counts_[rank_], MPI_UINT16_T, a_.get(), counts_.data(),
                     offsets_.data(), MPI_UINT16_T, MPI_COMM_WORLD);
    }
  }

  void Chunks(const Cut& cut) {
    std::vector<MPI_Request> receives, sends;
    std::vector<Part> arriving;
    // Chunk by chunk from all peers, and to them in an order that is each rank's own, so that no
    // link idles.
    for (int64_t at = 0; at < rows_[0].size(); at += cut.chunk) {
      for (int step = 1; step < size_; ++step) {
        const int from = (rank_ + size_ - step) % size_, to = (rank_ + step) % size_;
        const Part in = ChunkOf(from, at, cut), out = ChunkOf(rank_, at, cut);
        if (in.size() > 0) {
          MPI_Irecv(a_.get() + in.begin * k_, static_cast<int>(in.size() * k_), MPI_UINT16_T, from,
                    static_cast<int>(at), MPI_COMM_WORLD, &receives.emplace_back());
          arriving.push_back(in);
        }
        if (out.size() > 0) {
          MPI_Isend(own_.get() + (out.begin - rows_[rank_].begin) * k_,
                    static_cast<int>(out.size() * k_), MPI_UINT16_T, to, static_cast<int>(at),
                    MPI_COMM_WORLD, &sends.emplace_back());
        }
      }
    }
    std::deque<Part> ready;
    std::vector<int> indices(receives.size());
    size_t arrived = 0;
    const auto collect = [&](bool wait) {
      int count = 0;
      (wait ? MPI_Waitsome : MPI_Testsome)(static_cast<int>(receives.size()), receives.data(),
                                           &count, indices.data(), MPI_STATUSES_IGNORE);
      if (count == MPI_UNDEFINED) return;
      for (int i = 0; i < count; ++i) ready.push_back(arriving[indices[i]]);
      arrived += count;
    };
    const auto multiply = [&](const Part& rows, BF16* a) {
      for (int64_t row = rows.begin; row < rows.end; row += cut.piece) {
        gemm_->Run(a + (row - rows.begin) * k_, std::min(cut.piece, rows.end - row),
                   c_.get() + row * n_, true);
        collect(false);
      }
    };
    collect(false);
    multiply(rows_[rank_], own_.get());
    while (arrived < receives.size() || !ready.empty()) {
      if (ready.empty()) {
        collect(true);
        continue;
      }
      const Part rows = ready.front();
      ready.pop_front();
      multiply(rows, a_.get() + rows.begin * k_);
    }
    MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE);
  }

  // The chunk of rank r's rows that begins `at` rows into them; empty past their end.
  Part ChunkOf(int r, int64_t at, const Cut& cut) const {
    const int64_t begin = std::min(rows_[r].begin + at, rows_[r].end);
    return {begin, std::min(begin + cut.chunk, rows_[r].end)};
  }

  std::string WriteRows(const Words& words) {
    std::memset(c_.get(), 0xff, m_ * n_ * sizeof(BF16));
    if (words.at(1).rfind("gemm", 0) != 0) std::memset(a_.get(), 0xff, m_ * k_ * sizeof(BF16));
    Time(words.at(1), std::stoi(words.at(2)));
    std::ofstream file(words.at(3) + "." + std::to_string(rank_), std::ios::binary);
    for (size_t i = 4; i < words.size(); ++i)
      file.write(reinterpret_cast<const char*>(c_.get() + std::stoll(words[i]) * n_),
                 n_ * sizeof(BF16));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + words[3]);
    return "";
  }

  int rank_ = 0, size_ = 1;
  int64_t m_ = 0, n_ = 0, k_ = 0;  // n_: of this rank
  std::vector<Part> rows_;         // of A, by rank
  std::vector<int> counts_, offsets_;
  Buffer own_, a_, b_, c_;  // this rank's rows of A; all of A; this rank's columns of B and C
  std::optional<LocalGemm> gemm_;
  std::optional<LocalTiles> tiles_;
  std::optional<LocalWidened> widened_;
  Choice alone_, in_a_row_;
};

}  // namespace
}  // namespace agmm::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  omp_set_num_threads(1);
  agmm::bench::Rank rank;
  agmm::bench::Serve(argv[1], rank.rank(),
                     [&](const agmm::bench::Words& words) { return rank.Answer(words); });
  MPI_Finalize();
}
