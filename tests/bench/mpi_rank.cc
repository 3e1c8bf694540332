// The usual program with MPI and oneDNN, against which agmm is measured: one rank on each host.
//
//   mpirun ... mpi_rank FOLDER, with commands as in contender_rank.h
//
// * shape M N K DATA GATHERED: loads this rank's rows of DATA/A.i8 and columns of DATA/B.i8, and
//   chooses the fastest options. GATHERED: A, or B where that moves fewer bytes.
// * run WHAT COUNT PRODUCTS: the microseconds of COUNT runs on this rank, which all ranks begin
//   together. Each runs PRODUCTS products in a row; the answer is a product's share.
// * rows WHAT PRODUCTS FILE ROW...: runs WHAT over a poisoned C and writes these rows of this
//   rank's C, in bf16.
//
// Values of WHAT:
//
// * gemm_plain, gemm_packed: [M, K] x [K, N / P] of a gathered A, or [M / P, K] x [K, N] of a
//   gathered B, B row-major or as oneDNN packs it.
// * gemm_tiles, gemm_widened: the same by agmm's tiles, where the processor has them, and by
//   oneDNN in f32. For the bounds alone.
// * gather: MPI_Allgather(v) of A; or of B, and MPI_Alltoallv of the blocks of C.
// * unfused: gather, then the faster product by oneDNN. A gathered B arrives row-major, so the
//   columns of each rank are multiplied one by one between the two collectives.
// * chunks: isend and irecv of chunks of rows to and from every peer, multiplied as they arrive,
//   with MPI_Testsome between the pieces. B is packed; the sizes of chunks and pieces are chosen by
//   trial. If B is gathered, chunks are panels of columns, and each piece of C is sent once it is
//   computed.
#include <mpi.h>
#include <omp.h>

#include <algorithm>
#include <deque>
#include <optional>

#include "tests/bench/contender_rank.h"
#include "tests/bench/local_gemm.h"
#include "tests/bench/mpi_process.h"

namespace agmm::bench {
namespace {

// The cuts of the overlapped form: rows of a message, and rows of a multiply, at most as many.
struct Cut {
  int64_t chunk, piece;
};
struct Choice {
  bool packed = false;
  Cut cut = {64, 64};
};
// Each was the best on some shape and rate.
constexpr Cut kCuts[] = {{64, 64},   {128, 128},  {256, 64},  {256, 256},
                         {512, 128}, {1024, 128}, {1024, 512}};
// The number of products in a row in a trial, where one product takes less than kShortUs.
constexpr int kTrialProducts = 8;
constexpr double kShortUs = 5000;

class Rank : public MpiProcess {
 public:
  std::string Answer(const Words& words) {
    if (words.at(0) == "shape")
      return SetShape(std::stoll(words.at(1)), std::stoll(words.at(2)), std::stoll(words.at(3)),
                      words.at(4), words.at(5) == "B");
    if (words[0] == "run") {
      const int products = std::stoi(words.at(3));
      return TimesTogether(Work(words.at(1), products), std::stoi(words.at(2)), products);
    }
    if (words[0] == "rows") return WriteRows(words);
    throw std::invalid_argument("unknown command " + words[0]);
  }

 private:
  std::string SetShape(int64_t m, int64_t n, int64_t k, const std::string& data, bool gathers_b) {
    m_ = m, n_ = PartOf(n, size_, rank_).size(), k_ = k, gathers_b_ = gathers_b;
    rows_.clear(), cols_.clear();
    for (int r = 0; r < size_; ++r) {
      rows_.push_back(PartOf(m, size_, r));
      cols_.push_back(PartOf(n, size_, r));
    }
    gemm_.reset();
    tiles_.reset();
    widened_.reset();
    panels_.clear();
    own_ = Load(data + "/A.i8", k, rows_[rank_], {0, k});
    b_ = Load(data + "/B.i8", n, {0, k}, gathers_b ? Part{0, n} : cols_[rank_]);
    a_ = MakeBuffer(gathers_b ? 0 : m * k);
    b_panels_ = MakeBuffer(gathers_b ? k * n : 0);
    made_ = MakeBuffer(gathers_b ? rows_[rank_].size() * n : 0);
    c_ = MakeBuffer(m * n_);
    const int64_t width = gathers_b ? n : n_;
    gemm_.emplace(b_.get(), k, width);
    if (AskForTiles()) tiles_.emplace(b_.get(), k, width);
    widened_.emplace(b_.get(), k, width);
    if (gathers_b) LayPanels(n);
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

  // Returns the work of one product.
  std::function<void()> Work(const std::string& what, int products) {
    return [this, &what, &choice = products == 1 ? alone_ : in_a_row_] { Do(what, choice); };
  }

  double Fastest(const std::string& what, int products) {
    return FastestTogether(Work(what, products), products);
  }

  void Do(const std::string& what, const Choice& choice) {
    BF16* const a = gathers_b_ ? own_.get() : a_.get();
    BF16* const c = gathers_b_ ? made_.get() : c_.get();
    const int64_t rows = gathers_b_ ? rows_[rank_].size() : m_;
    if (what == "gemm_plain") {
      gemm_->Run(a, rows, c, false);
    } else if (what == "gemm_packed") {
      gemm_->Run(a, rows, c, true);
    } else if (what == "gemm_tiles" && tiles_) {
      tiles_->Run(a, rows, c);
    } else if (what == "gemm_widened") {
      widened_->Run(a, rows, c);
    } else if (what == "gather") {
      Gather();
      if (gathers_b_) ExchangeC();
    } else if (what == "unfused") {
      Gather();
      if (gathers_b_) {
        for (Panel& panel : panels_) MultiplyBy(panel, rows_[rank_]);
        ExchangeC();
      } else {
        gemm_->Run(a_.get(), m_, c_.get(), choice.packed);
      }
    } else if (what == "chunks") {
      gathers_b_ ? PanelsOfB(choice.cut) : Chunks(choice.cut);
    } else {
      throw std::invalid_argument("unknown contender " + what);
    }
  }

  // Gathers all of A, or B with a panel for the columns of each rank.
  void Gather() {
    BF16* const to = gathers_b_ ? b_panels_.get() : a_.get();
    const std::vector<Part>& parts = gathers_b_ ? cols_ : rows_;
    if (gathers_b_) LayPanels(cols_.back().end);
    std::vector<int> counts, offsets;
    for (const Part& part : parts) {
      counts.push_back(static_cast<int>(part.size() * k_));
      offsets.push_back(static_cast<int>(part.begin * k_));
    }
    const void* const own = gathers_b_ ? MPI_IN_PLACE : own_.get();
    if (parts.back().end % size_ == 0) {
      MPI_Allgather(own, counts[rank_], MPI_UINT16_T, to, counts[0], MPI_UINT16_T, MPI_COMM_WORLD);
    } else {
      MPI_Allgatherv(own, counts[rank_], MPI_UINT16_T, to, counts.data(), offsets.data(),
                     MPI_UINT16_T, MPI_COMM_WORLD);
    }
  }

  // Columns of B of one rank, in one block of b_panels_ at offset k * begin; this rank's product
  // with them is in one block of made_ at offset rows * begin.
  struct Panel {
    int owner;
    Part cols;
    LocalGemm gemm;
  };

  // Cuts each rank's columns into panels of at most `width` and puts its own in place.
  void LayPanels(int64_t width) {
    if (!panels_.empty() && panel_width_ == width) return;
    panel_width_ = width;
    panels_.clear();
    const int64_t n = cols_.back().end;
    for (int owner = 0; owner < size_; ++owner) {
      for (int64_t begin = cols_[owner].begin; begin < cols_[owner].end; begin += width) {
        const Part cols = {begin, std::min(begin + width, cols_[owner].end)};
        BF16* const block = b_panels_.get() + begin * k_;
        panels_.push_back({owner, cols, LocalGemm(block, k_, cols.size())});
        for (int64_t k = 0; owner == rank_ && k < k_; ++k)
          std::memcpy(block + k * cols.size(), b_.get() + k * n + begin,
                      cols.size() * sizeof(BF16));
      }
    }
  }

  // `rows` is a part of this rank's rows.
  void MultiplyBy(Panel& panel, const Part& rows) {
    panel.gemm.Run(own_.get() + (rows.begin - rows_[rank_].begin) * k_, rows.size(),
                   MadeOf(panel, rows), /*packed=*/false);
  }
  BF16* MadeOf(const Panel& panel, const Part& rows) {
    return made_.get() + rows_[rank_].size() * panel.cols.begin +
           (rows.begin - rows_[rank_].begin) * panel.cols.size();
  }

  // Sends the products with each rank's columns to that rank.
  void ExchangeC() {
    std::vector<int> sends, send_offsets, receives, receive_offsets;
    const int64_t rows = rows_[rank_].size();
    for (int peer = 0; peer < size_; ++peer) {
      sends.push_back(static_cast<int>(rows * cols_[peer].size()));
      send_offsets.push_back(static_cast<int>(rows * cols_[peer].begin));
      receives.push_back(static_cast<int>(rows_[peer].size() * n_));
      receive_offsets.push_back(static_cast<int>(rows_[peer].begin * n_));
    }
    MPI_Alltoallv(made_.get(), sends.data(), send_offsets.data(), MPI_UINT16_T, c_.get(),
                  receives.data(), receive_offsets.data(), MPI_UINT16_T, MPI_COMM_WORLD);
  }

  void PanelsOfB(const Cut& cut) {
    LayPanels(cut.chunk);
    std::vector<MPI_Request> panels, blocks, sends;
    std::vector<Panel*> arriving;
    std::deque<Panel*> ready;
    for (Panel& panel : panels_) {
      if (panel.owner == rank_) {
        ready.push_back(&panel);
        ReceiveC(panel, cut.piece, blocks);
      } else {
        MPI_Irecv(b_panels_.get() + panel.cols.begin * k_, static_cast<int>(panel.cols.size() * k_),
                  MPI_UINT16_T, panel.owner, TagOf(panel), MPI_COMM_WORLD, &panels.emplace_back());
        arriving.push_back(&panel);
      }
    }
    for (int step = 1; step < size_; ++step) {
      for (const Panel* own : ready) {
        MPI_Isend(b_panels_.get() + own->cols.begin * k_, static_cast<int>(own->cols.size() * k_),
                  MPI_UINT16_T, (rank_ + step) % size_, TagOf(*own), MPI_COMM_WORLD,
                  &sends.emplace_back());
      }
    }
    std::vector<int> indices(panels.size());
    size_t arrived = 0;
    const auto collect = [&](bool wait) {
      int count = 0;
      (wait ? MPI_Waitsome : MPI_Testsome)(static_cast<int>(panels.size()), panels.data(), &count,
                                           indices.data(), MPI_STATUSES_IGNORE);
      if (count == MPI_UNDEFINED) return;
      // Placed before this rank's own panels, because other ranks wait for the results.
      for (int i = 0; i < count; ++i) ready.push_front(arriving[indices[i]]);
      arrived += count;
    };
    while (arrived < panels.size() || !ready.empty()) {
      collect(ready.empty());
      Panel& panel = *ready.front();
      ready.pop_front();
      for (int64_t row = rows_[rank_].begin; row < rows_[rank_].end; row += cut.piece) {
        const Part rows = {row, std::min(row + cut.piece, rows_[rank_].end)};
        MultiplyBy(panel, rows);
        if (panel.owner == rank_) {
          KeepC(panel, rows);
        } else {
          MPI_Isend(MadeOf(panel, rows), static_cast<int>(rows.size() * panel.cols.size()),
                    MPI_UINT16_T, panel.owner, TagOf(panel) + 1, MPI_COMM_WORLD,
                    &sends.emplace_back());
        }
        collect(false);
      }
    }
    MPI_Waitall(static_cast<int>(sends.size()), sends.data(), MPI_STATUSES_IGNORE);
    MPI_Waitall(static_cast<int>(blocks.size()), blocks.data(), MPI_STATUSES_IGNORE);
  }

  int TagOf(const Panel& panel) const {
    return static_cast<int>(2 * (panel.cols.begin - cols_[panel.owner].begin));
  }
  BF16* PlaceInC(const Panel& panel, int64_t row) {
    return c_.get() + row * n_ + panel.cols.begin - cols_[rank_].begin;
  }

  // Receives the other ranks' products with a panel of this rank, in pieces of their rows, in
  // order.
  void ReceiveC(const Panel& panel, int64_t piece, std::vector<MPI_Request>& requests) {
    for (int step = 1; step < size_; ++step) {
      const int from = (rank_ + size_ - step) % size_;
      for (int64_t row = rows_[from].begin; row < rows_[from].end; row += piece) {
        const int64_t rows = std::min(piece, rows_[from].end - row);
        MPI_Datatype block;
        MPI_Type_vector(static_cast<int>(rows), static_cast<int>(panel.cols.size()),
                        static_cast<int>(n_), MPI_UINT16_T, &block);
        MPI_Type_commit(&block);
        MPI_Irecv(PlaceInC(panel, row), 1, block, from, TagOf(panel) + 1, MPI_COMM_WORLD,
                  &requests.emplace_back());
        MPI_Type_free(&block);
      }
    }
  }
  void KeepC(const Panel& panel, const Part& rows) {
    const BF16* from = MadeOf(panel, rows);
    for (int64_t row = rows.begin; row < rows.end; ++row, from += panel.cols.size())
      std::memcpy(PlaceInC(panel, row), from, panel.cols.size() * sizeof(BF16));
  }

  void Chunks(const Cut& cut) {
    std::vector<MPI_Request> receives, sends;
    std::vector<Part> arriving;
    // Chunk by chunk from all peers, and to them in a different order on each rank, so that no link
    // idles.
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

  // Returns the chunk of rank r's rows that begins at row `at` of them; empty past their end.
  Part ChunkOf(int r, int64_t at, const Cut& cut) const {
    const int64_t begin = std::min(rows_[r].begin + at, rows_[r].end);
    return {begin, std::min(begin + cut.chunk, rows_[r].end)};
  }

  std::string WriteRows(const Words& words) {
    std::memset(c_.get(), 0xff, m_ * n_ * sizeof(BF16));
    if (gathers_b_) {
      std::memset(b_panels_.get(), 0xff, k_ * cols_.back().end * sizeof(BF16));
      panels_.clear();
    } else if (words.at(1).rfind("gemm", 0) != 0) {
      std::memset(a_.get(), 0xff, m_ * k_ * sizeof(BF16));
    }
    const int products = std::stoi(words.at(2));
    TimeTogether(Work(words.at(1), products), products);
    std::ofstream file(words.at(3) + "." + std::to_string(rank_), std::ios::binary);
    for (size_t i = 4; i < words.size(); ++i)
      file.write(reinterpret_cast<const char*>(c_.get() + std::stoll(words[i]) * n_),
                 n_ * sizeof(BF16));
    file.close();
    if (!file) throw std::runtime_error("cannot write " + words[3]);
    return "";
  }

  int64_t m_ = 0, n_ = 0, k_ = 0;  // n_: of this rank
  bool gathers_b_ = false;
  std::vector<Part> rows_, cols_;  // of A and of B, by rank
  // This rank's rows of A; all of A; its columns of B, or for the gemm alone all of B; its columns
  // of C.
  Buffer own_, a_, b_, c_;
  Buffer b_panels_, made_;  // where B is gathered: all of B; this rank's rows of C
  std::vector<Panel> panels_;
  int64_t panel_width_ = 0;
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
