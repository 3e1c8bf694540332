// Products of one GPU, and of several GPUs whose chunks of A travel around a ring, on the model.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "kernels/cuda/sm90/product_arguments.h"
#include "tests/sm90/matrix.h"

namespace agmm::sm90 {

// Mistakes of the host, which the model must notice.
enum class Mistake {
  kNone,
  kOneSlotForTwoSteps,  // the second chunk that arrives at a GPU has the slot of the first one
  kCreditRaisedEarly,   // credits are granted an epoch ahead
  kCreditMissing,       // GPU 1 never tells GPU 0 that its places may be written
};

struct Case {
  std::string name;
  int gpus = 1;
  Element element = Element::kBF16, out = Element::kBF16;
  int tile_cols = 128;
  int cluster = 1;
  std::vector<int> rows;  // of the chunks; with several GPUs, chunk i belongs to GPU i
  int n = 0, k = 0;
  bool odd = false;  // matrices begin at odd columns
  int ctas = 2, send_columns = 1, raster_rows = 16, epochs = 1;
  // The epochs of a GPU follow those of its neighbours only through slots and credits; else all
  // GPUs meet between two epochs.
  bool credits = false;
  // Other kernels copy the chunks, so the products only wait for them.
  bool delivered = false;
  // Each chunk goes half the way round in each direction; else the whole way in one.
  bool both_ways = false;
  bool traced = false;
  Mistake mistake = Mistake::kNone;
  bool aborted = false;  // the host sets the abort word at some time of each epoch
  bool along_k = false;  // `rows` are columns of A, parts of K, and C has k rows
  bool check_races = true;
  ptx::RunOptions options;
};

inline void PrintTo(const Case& product, std::ostream* out) { *out << product.name; }

// All GPUs of a product C = A * B, where chunks of A travel around a ring. On one GPU all chunks
// are there.
class Ring {
 public:
  // The module's kernels are those of product.cu. It outlives the ring.
  Ring(const Case& product, ptx::Module& kernels);

  // Runs an epoch on all GPUs, with new operands.
  void Run(uint64_t epoch);
  // Returns the number of wrong elements of C and of wrong rows of received chunks, and of elements
  // that were written outside of the matrices.
  int CountWrong() const;
  bool HasArrived(int gpu, int chunk) const { return gpus_[gpu]->slots[chunk] != 0; }
  // Returns the number of tiles without a right record in the trace, and of other records that were
  // written.
  int CountWrongTraces() const;
  const ptx::World& world() const { return world_; }

 private:
  static constexpr int kDirections = 2;  // to the next GPU, and to the previous one
  struct Gpu {
    std::vector<std::unique_ptr<Matrix>> a;  // by chunk: its own, and places for the others
    std::unique_ptr<Matrix> b, c;
    uint64_t slots[kMaxPieces] = {};
    // By direction. A credit: the places of the neighbour there may be written.
    uint64_t credits[kDirections] = {};
    uint32_t counters[kDirections][kMaxPieces] = {};
    std::vector<TileTrace> trace;
    std::vector<int> blocks;  // of the tiles
    ptx::Knowledge known;     // of the epochs so far
  };

  int Odd(int x) const { return product_.odd ? x : 0; }
  bool b_is_k_major() const { return product_.element == Element::kE4M3; }
  int depth_of_k() const;
  int depth_of_stage() const { return kStageBytesOfK / BytesOf(product_.element); }
  // Returns the whole A, row-major.
  std::vector<float> WholeA() const;
  int CountWrongProducts(const Gpu& state, const std::vector<float>& a) const;
  // Returns the chunk that a GPU computes at a step of the ring.
  int ChunkAt(int gpu, int step) const;
  int NeighbourOf(int gpu, int direction) const;
  TileOrder OrderOf(const Block& block) const;
  // Returns the number of GPUs that a chunk reaches in a direction.
  int HopsOf(int direction) const;
  int AddMap(Arguments& arguments, const ptx::TensorMap& map);
  // Returns a map of some rows of B.
  ptx::TensorMap BMap(const Matrix& b, int depth, int first_row, int rows) const;
  void Start(int gpu, uint64_t epoch);
  uint64_t* SlotOf(int gpu, int chunk);
  // Adds the sending of a piece with this chunk to the neighbours that it has not passed.
  void AddSends(Arguments& arguments, Piece& piece, int gpu, int chunk, int contributors);
  void Launch(int gpu, const Arguments& arguments);
  // Copies a chunk from its owner, and raises its slot here.
  void Deliver(int gpu, int chunk, uint64_t epoch);
  // Starts a kernel of one thread that writes the word with release.
  void Write(uint64_t* word, uint64_t value, int gpu, const ptx::Knowledge& known);
  // Tells the neighbours of a GPU that send to it that its places may be written.
  void GrantCredits(int gpu, uint64_t epoch);

  const Case product_;
  ptx::Module& kernels_;
  ptx::HostMemory memory_;
  ptx::World world_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
  uint64_t abort_ = 0;
  int maps_ = 0;
};

}  // namespace agmm::sm90
