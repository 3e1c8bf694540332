// The collectives of MPI, against which agmm's are measured: one rank on each host.
//
//   mpirun ... mpi_collectives FOLDER, with commands as in contender_rank.h
//
// * run NAME BYTES COUNT: the microseconds of COUNT runs on this rank, one after the other like the
//   epochs of a job, after one that is not counted. All ranks begin together. NAME: all_gather,
//   reduce_scatter, all_reduce or all_to_all, of f32. BYTES: the larger of a rank's two buffers; a
//   multiple of 4 * ranks.
#include <mpi.h>

#include <stdexcept>
#include <vector>

#include "tests/bench/contender_rank.h"
#include "tests/bench/mpi_process.h"

namespace agmm::bench {
namespace {

class Collectives : public MpiProcess {
 public:
  std::string Answer(const Words& words) {
    if (words.size() != 4 || words[0] != "run") throw std::runtime_error("run NAME BYTES COUNT");
    const int elements =
        static_cast<int>(std::stoll(words[2]) / static_cast<int64_t>(sizeof(float)));
    from_.assign(elements, 1);
    to_.assign(elements, 0);
    double begin = BeginTogether();
    std::ostringstream times;
    for (int run = 0; run <= std::stoi(words[3]); ++run) {
      Run(words[1], elements);
      const double end = NowUs();
      if (run > 0) times << end - begin << ' ';
      begin = end;
    }
    return times.str();
  }

 private:
  void Run(const std::string& name, int elements) {
    const int part = elements / size_;
    if (name == "all_gather") {
      MPI_Allgather(from_.data(), part, MPI_FLOAT, to_.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
    } else if (name == "reduce_scatter") {
      MPI_Reduce_scatter_block(from_.data(), to_.data(), part, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (name == "all_reduce") {
      MPI_Allreduce(from_.data(), to_.data(), elements, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    } else if (name == "all_to_all") {
      MPI_Alltoall(from_.data(), part, MPI_FLOAT, to_.data(), part, MPI_FLOAT, MPI_COMM_WORLD);
    } else {
      throw std::runtime_error("no collective " + name);
    }
  }

  std::vector<float> from_, to_;
};

}  // namespace
}  // namespace agmm::bench

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  agmm::bench::Collectives collectives;
  agmm::bench::Serve(argv[1], collectives.rank(),
                     [&](const agmm::bench::Words& words) { return collectives.Answer(words); });
  MPI_Finalize();
}
