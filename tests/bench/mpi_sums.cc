// The usual program with MPI and oneDNN for a product in f32 whose K is cut: one rank on each host.
//
//   mpirun ... mpi_sums FOLDER, with commands as in contender_rank.h
//
// * shape FORM M N K DATA: loads this rank's parts of DATA/A.i8 and DATA/B.i8, and chooses the
//   fastest options. M, N and K are multiples of the number of ranks.
// * run WHAT COUNT PRODUCTS: as in mpi_rank.
// * rows FILE ROW...: runs unfused over a poisoned C and writes those of these rows of C that this
//   rank has, in f32.
//
// Values of FORM, where x is the axis of the ranks:
//
// * k_gather: A[M, K_x] * B[K, N_x] -> C[M, N_x], by MPI_Allgather of A and one product.
// * reduce_scatter: A[M, K_x] * B[K_x, N] -> C[M_x, N], by one product and
//   MPI_Reduce_scatter_block.
// * all_reduce: A[M, K_x] * B[K_x, N] -> C[M, N], by one product and MPI_Allreduce.
//
// Values of WHAT:
//
// * gemm_plain, gemm_packed: this rank's product, B row-major or as oneDNN packs it.
// * collective: the collective alone.
// * unfused: both, the product by the faster of the two.
#include <mpi.h>
#include <omp.h>

#include <optional>

#include "tests/bench/contender_rank.h"
#include "tests/bench/local_gemm.h"
#include "tests/bench/mpi_process.h"

namespace agmm::bench {
namespace {

class Rank : public MpiProcess {
 public:
  std::string Answer(const Words& words) {
    if (words.at(0) == "shape")
      return SetShape(words.at(1), std::stoll(words.at(2)), std::stoll(words.at(3)),
                      std::stoll(words.at(4)), words.at(5));
    if (words[0] == "run")
      return TimesTogether([&] { Do(words.at(1)); }, std::stoi(words.at(2)),
                           std::stoi(words.at(3)));
    if (words[0] == "rows") return WriteRows(words);
    throw std::invalid_argument("unknown command " + words[0]);
  }

 private:
  std::string SetShape(const std::string& form, int64_t m, int64_t n, int64_t k,
                       const std::string& data) {
    if (m % size_ != 0 || n % size_ != 0 || k % size_ != 0)
      throw std::invalid_argument("M, N and K must be multiples of the number of ranks");
    form_ = form, m_ = m, k_ = k;
    const Part k_part = PartOf(k, size_, rank_), n_part = PartOf(n, size_, rank_);
    n_ = gathers() ? n_part.size() : n;
    own_ = Load<float>(data + "/A.i8", k, {0, m}, k_part);
    b_ = Load<float>(data + "/B.i8", n, gathers() ? Part{0, k} : k_part,
                     gathers() ? n_part : Part{0, n});
    arrived_ = MakeBuffer<float>(gathers() ? m * k : 0);
    a_ = MakeBuffer<float>(gathers() ? m * k : 0);
    made_ = MakeBuffer<float>(m * n_);
    rows_ = form == "reduce_scatter" ? PartOf(m, size_, rank_) : Part{0, m};
    c_ = MakeBuffer<float>(gathers() ? 0 : rows_.size() * n_);
    gemm_.emplace(b_.get(), gathers() ? k : k_part.size(), n_, LocalGemm::Type::f32);
    packed_ = Fastest("gemm_packed") < Fastest("gemm_plain");
    strided_ = false;
    if (gathers()) {
      const double copied_us = Fastest("collective");
      strided_ = true;
      strided_ = Fastest("collective") < copied_us;
    }
    return std::string(packed_ ? "packed" : "plain") + (strided_ ? " strided" : "");
  }

  double Fastest(const std::string& what) {
    return FastestTogether([&] { Do(what); }, 1);
  }

  void Do(const std::string& what) {
    if (what == "gemm_plain" || what == "gemm_packed") {
      Multiply(what == "gemm_packed");
    } else if (what == "collective" || what == "unfused") {
      if (gathers()) GatherA();
      if (what == "unfused") Multiply(packed_);
      if (!gathers()) AddUp();
    } else {
      throw std::invalid_argument("unknown contender " + what);
    }
  }

  void Multiply(bool packed) {
    gemm_->Run(gathers() ? a_.get() : own_.get(), m_, made_.get(), packed);
  }

  // The columns of each rank arrive in one block. They are copied to their place in A, or MPI lays
  // them there.
  void GatherA() {
    const int64_t cols = k_ / size_;
    const int count = static_cast<int>(m_ * cols);
    if (strided_) {
      MPI_Datatype block, columns;
      MPI_Type_vector(static_cast<int>(m_), static_cast<int>(cols), static_cast<int>(k_), MPI_FLOAT,
                      &block);
      MPI_Type_create_resized(block, 0, cols * static_cast<int64_t>(sizeof(float)), &columns);
      MPI_Type_commit(&columns);
      MPI_Allgather(own_.get(), count, MPI_FLOAT, a_.get(), 1, columns, MPI_COMM_WORLD);
      MPI_Type_free(&columns);
      MPI_Type_free(&block);
      return;
    }
    MPI_Allgather(own_.get(), count, MPI_FLOAT, arrived_.get(), count, MPI_FLOAT, MPI_COMM_WORLD);
    const float* from = arrived_.get();
    for (int rank = 0; rank < size_; ++rank) {
      for (int64_t row = 0; row < m_; ++row, from += cols)
        std::memcpy(a_.get() + row * k_ + rank * cols, from, cols * sizeof(float));
    }
  }

  void AddUp() {
    const int count = static_cast<int>(rows_.size() * n_);
    if (form_ == "reduce_scatter") {
      MPI_Reduce_scatter_block(made_.get(), c_.get(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else {
      MPI_Allreduce(made_.get(), c_.get(), count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    }
  }

  std::string WriteRows(const Words& words) {
    float* const c = gathers() ? made_.get() : c_.get();
    std::memset(c, 0xff, rows_.size() * n_ * sizeof(float));
    if (gathers()) std::memset(a_.get(), 0xff, m_ * k_ * sizeof(float));
    Do("unfused");
    std::ofstream file(words.at(1) + "." + std::to_string(rank_), std::ios::binary);
    for (size_t i = 2; i < words.size(); ++i) {
      const int64_t row = std::stoll(words[i]);
      if (row < rows_.begin || row >= rows_.end) continue;
      file.write(reinterpret_cast<const char*>(c + (row - rows_.begin) * n_), n_ * sizeof(float));
    }
    file.close();
    if (!file) throw std::runtime_error("cannot write " + words[1]);
    return "";
  }

  bool gathers() const { return form_ == "k_gather"; }

  std::string form_;
  int64_t m_ = 0, n_ = 0, k_ = 0;  // n_: of the product
  Part rows_;                      // of C that this rank has
  // This rank's columns of A; A as it arrives, and in order; B; the product; C, where it differs.
  BufferOf<float> own_, arrived_, a_, b_, made_, c_;
  std::optional<LocalGemm> gemm_;
  bool packed_ = false, strided_ = false;
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
