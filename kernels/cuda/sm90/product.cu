// Products that wait for their operands and send them on (product_arguments.h). A persistent grid:
// each cluster takes every grid-th tile, one below the other for its CTAs.
//
// Warp 0 of the first warpgroup loads stages, warp 1, the carrier, sends some of them on,
// and the other two warpgroups multiply. A stage is filled once the consumers' 8 warps, and the
// carrier if there is one, have released it.
//
// The CTAs of a cluster multiply by the same B: each one loads a part of it into all of them.
#include "kernels/cuda/sm90/cluster.h"
#include "kernels/cuda/sm90/elements.h"
#include "kernels/cuda/sm90/mbarrier.h"
#include "kernels/cuda/sm90/product_arguments.h"
#include "kernels/cuda/sm90/signal.h"
#include "kernels/cuda/sm90/tma.h"
#include "kernels/cuda/sm90/wgmma.h"

namespace agmm::sm90 {
namespace {

// The tile, the stages and the layout of shared memory of one kernel.
template <typename Element, int kTileColumns, int kStageCount, int kCtas>
struct Shape {
  static constexpr int kColumns = kTileColumns, kStages = kStageCount;
  static constexpr int kCluster = kCtas;  // CTAs of a cluster
  static constexpr int kElementBytes = sizeof(typename Element::Bits);
  static constexpr int kDepth = kStageBytesOfK / kElementBytes;  // elements of K in a stage
  static constexpr int kSteps = kStageBytesOfK / 32;             // wgmma in a stage
  static constexpr int kABytes = kTileRows * kStageBytesOfK,
                       kBBytes = kTileColumns * kStageBytesOfK;
  static constexpr int kStageBytes = kABytes + kBBytes;
  static constexpr bool kBIsKMajor =
      kElementBytes == 1;                         // wgmma takes no other for types of 8 bits
  static constexpr int kBoxBytes = kDepth * 128;  // of B in one load, if it is MN-major: 64 columns
  static constexpr int kSums = kTileColumns / 2;  // of a thread
  static constexpr int kLoaderWarp = 0, kCarrierWarp = 1;
  static_assert(kCtas == 1 || !kBIsKMajor, "a cluster shares boxes of an MN-major B");
};

// The shared memory of a CTA: stages, then for each a full and an empty mbarrier, a word for the
// use of a stage at which the loader gave up, and one for what the leader of a cluster grants.
template <typename Shape>
struct Stages {
  uint32_t base;

  __device__ __forceinline__ explicit Stages(const void* raw)
      : base((SharedAddress(raw) + 1023) & ~1023u) {}
  __device__ __forceinline__ uint32_t A(int stage) const {
    return base + stage * Shape::kStageBytes;
  }
  __device__ __forceinline__ uint32_t B(int stage) const { return A(stage) + Shape::kABytes; }
  __device__ __forceinline__ uint32_t Full(int stage) const {
    return base + Shape::kStages * Shape::kStageBytes + 8 * stage;
  }
  __device__ __forceinline__ uint32_t Empty(int stage) const {
    return Full(Shape::kStages + stage);
  }
  __device__ __forceinline__ uint32_t Aborted() const { return Full(2 * Shape::kStages); }
  __device__ __forceinline__ uint32_t Grant() const { return Aborted() + 4; }
  // A warp of consumers has read the stage. All loaders of the cluster learn it, because each one
  // fills a part of it.
  __device__ __forceinline__ void Release(int stage, int lane) const {
    if constexpr (Shape::kCluster == 1) {
      if (lane == 0) Arrive(Empty(stage));
    } else {
      if (lane < Shape::kCluster) ArriveInCluster(AddressInCta(Empty(stage), lane));
    }
  }
  // 0: not aborted.
  __device__ __forceinline__ void SetAborted(uint32_t value) const {
    asm volatile("st.relaxed.cta.shared.u32 [%0], %1;" ::"r"(Aborted()), "r"(value) : "memory");
  }
  // After a wait for a full stage, the `number`-th use of one: true if the loader has given up
  // instead of filling it. All earlier ones are filled, and must be waited for.
  __device__ __forceinline__ bool IsAborted(uint32_t number) const {
    uint32_t value;
    asm volatile("ld.relaxed.cta.shared.u32 %0, [%1];" : "=r"(value) : "r"(Aborted()) : "memory");
    return value == number;
  }
};

// A stage in use: its index, the parity of its use, and the number of uses of stages, from 1.
template <typename Shape>
struct Turn {
  int stage = 0;
  uint32_t parity = 0, number = 1;

  __device__ __forceinline__ void Next() {
    ++number;
    if (++stage == Shape::kStages) {
      stage = 0;
      parity ^= 1;
    }
  }
};

// The rank of this CTA in its cluster. Rank 0 is the leader.
template <typename Shape>
__device__ __forceinline__ int RankInCluster() {
  return static_cast<int>(blockIdx.x % Shape::kCluster);
}

// The tiles of a CTA, in order.
template <typename Shape>
struct Walk {
  const Arguments& arguments;
  int block = 0, index;  // of the cluster's tiles in the block
  int number;            // of them in the launch
  TileOrder order;

  __device__ __forceinline__ explicit Walk(const Arguments& arguments)
      : arguments(arguments),
        index(blockIdx.x / Shape::kCluster),
        number(blockIdx.x / Shape::kCluster),
        order(OrderOf(0)) {
    Skip();
  }
  __device__ __forceinline__ static int Clusters() { return gridDim.x / Shape::kCluster; }
  __device__ __forceinline__ TileOrder OrderOf(int number) const {
    return TileOrder(arguments.blocks[number], Shape::kColumns, arguments.raster_rows,
                     Shape::kCluster);
  }
  __device__ __forceinline__ void Skip() {
    while (index >= order.count()) {
      index -= order.count();
      if (++block >= arguments.block_count) return;
      order = OrderOf(block);
    }
  }
  __device__ __forceinline__ bool more() const { return block < arguments.block_count; }
  __device__ __forceinline__ void Next() {
    index += Clusters();
    number += Clusters();
    Skip();
  }
  __device__ __forceinline__ const Block& at() const { return arguments.blocks[block]; }
  // The row and the column of this CTA's tile.
  __device__ __forceinline__ TileOrder::Tile tile() const {
    const TileOrder::Tile tile = order.At(index);
    return {tile.row * Shape::kCluster + RankInCluster<Shape>(), tile.col};
  }
  __device__ __forceinline__ TileTrace* trace() const {
    return &arguments.trace[number * Shape::kCluster + RankInCluster<Shape>()];
  }
  // True if this CTA computes no later tile among the columns that send.
  __device__ __forceinline__ bool IsLastToSend() const {
    for (int later = index + Clusters(); later < order.count(); later += Clusters()) {
      if (order.At(later).col < arguments.send_columns) return false;
    }
    return true;
  }
};

// The writers of a TileTrace. Each field has one writer. The stores are relaxed, because the host
// may read at the same time.
__device__ __forceinline__ void TraceTime(uint64_t* field) {
  uint64_t now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  asm volatile("st.relaxed.sys.global.u64 [%0], %1;" ::"l"(field), "l"(now) : "memory");
}
__device__ __forceinline__ void TraceStart(TileTrace* tile, int block) {
  int sm;
  asm volatile("mov.u32 %0, %smid;" : "=r"(sm));
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(&tile->block), "r"(block) : "memory");
  asm volatile("st.relaxed.sys.global.u32 [%0], %1;" ::"l"(&tile->sm), "r"(sm) : "memory");
  TraceTime(&tile->start_ns);
}

__device__ __forceinline__ int StagesOf(int k, int depth) { return (k + depth - 1) / depth; }

// Waits for the slots of a piece, before the thread loads it or a later one. Returns false if the
// launch is aborted.
__device__ __forceinline__ bool WaitForPiece(const Arguments& arguments, const Piece& piece) {
  if (!piece.has_waits()) return true;
#pragma unroll 1
  for (const uint64_t* const slot : piece.waits) {
    if (slot != nullptr && !WaitForSlot(slot, arguments.epoch, arguments.abort)) return false;
  }
  FenceAsyncGlobal();
  return true;
}

// The same for a cluster, whose CTAs must decide alike: its leader waits, and grants the piece to
// the others, or says that it gives up. Pieces are granted in order, so their number is enough.
template <typename Shape>
__device__ __forceinline__ bool WaitForPieceInCluster(const Arguments& arguments, int number,
                                                      const Stages<Shape>& stages) {
  const Piece& piece = arguments.pieces[number];
  if constexpr (Shape::kCluster == 1) return WaitForPiece(arguments, piece);
  if (!piece.has_waits()) return true;
  if (RankInCluster<Shape>() != 0) {
    if (!WaitForGrant(stages.Grant(), number)) return false;
    FenceAsyncGlobal();
    return true;
  }
  const bool granted = WaitForPiece(arguments, piece);
#pragma unroll
  for (int rank = 1; rank < Shape::kCluster; ++rank) {
    GrantPieces(AddressInCta(stages.Grant(), rank), granted ? number + 1 : number, !granted);
  }
  return granted;
}

// Waits for all pieces up to this one, also for those of other CTAs' tiles: the order of the pieces
// is that of a lane, so a piece has no wait that an earlier one implies. `arrived`: the pieces that
// have been waited for.
template <typename Shape>
__device__ __forceinline__ bool WaitForPieces(const Arguments& arguments, int number, int* arrived,
                                              const Stages<Shape>& stages) {
#pragma unroll 1
  for (; *arrived <= number; ++*arrived) {
    if (!WaitForPieceInCluster(arguments, *arrived, stages)) return false;
  }
  return true;
}

// Loads the part of a stage of B that this CTA has, into all CTAs of its cluster.
template <typename Shape>
__device__ __forceinline__ void LoadB(const Stages<Shape>& stages, int stage,
                                      const CUtensorMap* map, const Piece& piece, int k, int col,
                                      uint32_t full) {
  if constexpr (Shape::kBIsKMajor) {
    LoadTile(stages.B(stage), map, piece.b.x + k, col, full);
  } else {
    constexpr int kBoxes = Shape::kColumns / 64 / Shape::kCluster;
    const int first = RankInCluster<Shape>() * kBoxes;
#pragma unroll
    for (int box = 0; box < kBoxes; ++box) {
      const uint32_t to = stages.B(stage) + (first + box) * Shape::kBoxBytes;
      const int x = piece.b.x + col + (first + box) * 64;
      if constexpr (Shape::kCluster == 1) {
        LoadTile(to, map, x, k, full);
      } else {
        LoadTileIntoCluster<Shape::kCluster>(to, map, x, k, full);
      }
    }
  }
}

template <typename Shape>
__device__ __forceinline__ void Load(const Arguments& arguments, const Stages<Shape>& stages) {
  Turn<Shape> turn;
  int arrived = 0;
  for (Walk<Shape> walk(arguments); walk.more(); walk.Next()) {
    const Block& block = walk.at();
    const int row = walk.tile().row * kTileRows, col = walk.tile().col * Shape::kColumns;
    if (arguments.trace != nullptr) TraceStart(walk.trace(), walk.block);
    for (int number = block.first_piece; number < block.first_piece + block.pieces; ++number) {
      const Piece& piece = arguments.pieces[number];
      if (!WaitForPieces(arguments, number, &arrived, stages)) {
        // The others wait for this stage, and stop there. No loader of the cluster loads it.
        WaitForPhase(stages.Empty(turn.stage), turn.parity ^ 1);
        stages.SetAborted(turn.number);
        Arrive(stages.Full(turn.stage));
        return;
      }
      if (arguments.trace != nullptr && number + 1 == block.first_piece + block.pieces) {
        TraceTime(&walk.trace()->waited_ns);
      }
      const CUtensorMap* const a = &arguments.maps[piece.a.map];
      const CUtensorMap* const b = &arguments.maps[piece.b.map];
      const int count = StagesOf(piece.k, Shape::kDepth);
#pragma unroll 1
      for (int step = 0; step < count; ++step, turn.Next()) {
        const uint32_t full = stages.Full(turn.stage);
        const int k = step * Shape::kDepth;
        WaitForPhase(stages.Empty(turn.stage), turn.parity ^ 1);
        ArriveExpectingBytes(full, Shape::kStageBytes);
        LoadTile(stages.A(turn.stage), a, piece.a.x + k, row, full);
        LoadB(stages, turn.stage, b, piece, k, col, full);
      }
    }
  }
}

// Waits until the receivers' places may be written. Returns false if the launch is aborted.
__device__ __forceinline__ bool WaitForCredits(const Arguments& arguments, const Piece& piece) {
  for (const Send& send : piece.sends) {
    if (send.map < 0 || send.credit == nullptr) continue;
    if (!WaitForSlot(send.credit, arguments.epoch, arguments.abort)) return false;
    FenceAsyncGlobal();
  }
  return true;
}

__device__ __forceinline__ bool IsSent(const Piece& piece) {
  bool sent = false;
  for (const Send& send : piece.sends) sent = sent || send.map >= 0;
  return sent;
}

// Stores a stage of A to all receivers, and waits until the stores have read it.
__device__ __forceinline__ void SendStage(const Arguments& arguments, const Piece& piece, int k,
                                          int row, uint32_t stage) {
  for (const Send& send : piece.sends) {
    if (send.map >= 0) StoreTile(&arguments.maps[send.map], send.x + k, row, stage);
  }
  WaitForStoreReads();
}

// Ends this CTA's part of a piece that is sent: the last CTA raises the slots.
__device__ __forceinline__ void FinishSending(const Arguments& arguments, const Piece& piece) {
  const bool aborted = IsAborted(arguments.abort);  // first, while the stores are under way
  WaitForStores();
  for (const Send& send : piece.sends) {
    if (send.map < 0 || !CountContribution(send.counter, send.contributors)) continue;
    if (!aborted) RaiseSlot(send.slot, arguments.epoch);
  }
}

template <typename Shape>
__device__ __forceinline__ void Carry(const Arguments& arguments, const Stages<Shape>& stages) {
  Turn<Shape> turn;
  int granted = 0;  // pieces whose credits have been waited for
  bool aborted = false;
  for (Walk<Shape> walk(arguments); walk.more(); walk.Next()) {
    const Block& block = walk.at();
    const int row = walk.tile().row * kTileRows, column = walk.tile().col;
    const int columns = min(arguments.send_columns, walk.order.col_tiles);
    for (int number = block.first_piece; number < block.first_piece + block.pieces; ++number) {
      const Piece& piece = arguments.pieces[number];
      const bool sends = column < columns && IsSent(piece);
      if (sends && number >= granted) {
        aborted = aborted || !WaitForCredits(arguments, piece);
        granted = number + 1;
      }
      // Without the credits, the receivers may still read their places.
      const bool carries = sends && !aborted;
      const int count = StagesOf(piece.k, Shape::kDepth);
#pragma unroll 1
      for (int step = 0; step < count; ++step, turn.Next()) {
        WaitForPhase(stages.Full(turn.stage), turn.parity);
        if (stages.IsAborted(turn.number)) {
          WaitForStores();
          return;
        }
        // The columns take turns, so that no tile is much slower than the others.
        if (carries && step % columns == column) {
          SendStage(arguments, piece, step * Shape::kDepth, row, stages.A(turn.stage));
        }
        Arrive(stages.Empty(turn.stage));
      }
      if (carries && walk.IsLastToSend()) FinishSending(arguments, piece);
    }
  }
  WaitForStores();
}

// Stores the sums of a thread: 2 rows that are 8 apart, and pairs of columns that are 8 apart.
template <typename Out, int kSums>
__device__ __forceinline__ void StoreSums(const Block& block, int row, int col,
                                          const float (&sums)[kSums]) {
  using Bits = typename Out::Bits;
  using Word = typename Pair<Out>::Word;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (row + 8 * half >= block.rows) continue;
    Bits* const out = static_cast<Bits*>(block.c) + (row + 8 * half) * block.pitch + col;
    const bool aligned = (reinterpret_cast<uintptr_t>(out) & (sizeof(Word) - 1)) == 0;
#pragma unroll
    for (int i = 0; i < kSums / 4; ++i) {
      const Word pair = Pair<Out>::Of(sums[4 * i + 2 * half], sums[4 * i + 2 * half + 1]);
      const int at = col + 8 * i;
      if (aligned && at + 1 < block.cols) {
        *reinterpret_cast<Word*>(out + 8 * i) = pair;
      } else {
        if (at < block.cols) out[8 * i] = static_cast<Bits>(pair);
        if (at + 1 < block.cols) out[8 * i + 1] = static_cast<Bits>(pair >> 8 * sizeof(Bits));
      }
    }
  }
}

template <typename Element, typename Out, typename Shape>
__device__ __forceinline__ void Consume(const Arguments& arguments, const Stages<Shape>& stages,
                                        int consumer) {
  constexpr int kGroupRows = kTileRows / kConsumers;
  // Bytes from one wgmma to the next along K, and the strides of the descriptors.
  constexpr int kBStep = Shape::kBIsKMajor ? 32 : 16 * 128,
                kBLeading = Shape::kBIsKMajor ? 16 : Shape::kBoxBytes;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
  float sums[Shape::kSums];
  Turn<Shape> turn;
  for (Walk<Shape> walk(arguments); walk.more(); walk.Next()) {
    const Block& block = walk.at();
    int previous = -1;  // the stage whose products may be under way
    int accumulate = 0;
    for (int number = block.first_piece; number < block.first_piece + block.pieces; ++number) {
      const int count = StagesOf(arguments.pieces[number].k, Shape::kDepth);
#pragma unroll 1
      for (int step = 0; step < count; ++step, turn.Next()) {
        WaitForPhase(stages.Full(turn.stage), turn.parity);
        if (stages.IsAborted(turn.number)) {
          WaitForProducts<0>(sums);
          return;
        }
        const uint64_t a = MatrixDescriptor(
            stages.A(turn.stage) + consumer * kGroupRows * kStageBytesOfK, 16, 8 * kStageBytesOfK);
        const uint64_t b = MatrixDescriptor(stages.B(turn.stage), kBLeading, 8 * kStageBytesOfK);
        BeginProducts(sums);
#pragma unroll
        for (int i = 0; i < Shape::kSteps; ++i) {
          Multiply<Element>(sums, a + (i * 32 >> 4), b + (i * kBStep >> 4), accumulate | i);
        }
        EndProducts(sums);
        accumulate = 1;
        WaitForProducts<1>(sums);
        if (previous >= 0) stages.Release(previous, lane);
        previous = turn.stage;
      }
    }
    WaitForProducts<0>(sums);
    stages.Release(previous, lane);
    const int row = walk.tile().row * kTileRows + consumer * kGroupRows + warp * 16 + lane / 4;
    StoreSums<Out>(block, row, walk.tile().col * Shape::kColumns + lane % 4 * 2, sums);
    if (arguments.trace != nullptr && warp == 0 && lane == 0) {
      TraceTime(&walk.trace()->end_ns[consumer]);
    }
  }
}

template <typename Element, typename Out, typename Shape, bool kCarries>
__device__ __forceinline__ void RunProduct(const Arguments& arguments) {
  extern __shared__ __align__(1024) uint8_t raw[];
  const Stages<Shape> stages(raw);
  if (threadIdx.x == 0) {
    for (int stage = 0; stage < Shape::kStages; ++stage) {
      InitMbarrier(stages.Full(stage), 1);
      InitMbarrier(stages.Empty(stage), 4 * kConsumers * Shape::kCluster + kCarries);
    }
    stages.SetAborted(0);
    if (Shape::kCluster > 1) InitGrant(stages.Grant());
    FenceMbarrierInits();
  }
  if constexpr (Shape::kCluster == 1) {
    __syncthreads();
  } else {
    SyncCluster();
  }
  const int warp = __shfl_sync(~0u, threadIdx.x / 32, 0), lane = threadIdx.x % 32;
  if (warp >= 4) {
    Consume<Element, Out, Shape>(arguments, stages, warp / 4 - 1);
  } else if (warp == Shape::kLoaderWarp) {
    if (lane == 0) Load<Shape>(arguments, stages);
  } else if (kCarries && warp == Shape::kCarrierWarp) {
    if (lane == 0) Carry<Shape>(arguments, stages);
  }
  // The others may still arrive in this CTA's shared memory.
  if constexpr (Shape::kCluster > 1) SyncCluster();
}

}  // namespace

// The kernels: elements of A and B, of C, columns of a tile, stages, CTAs of a cluster; and whether
// the kernel sends pieces. The cluster is a part of the kernel, so no launch can have another one.
#define AGMM_KERNEL(name, cluster, in, out, columns, stages, carries)           \
  extern "C" __global__ void __launch_bounds__(kThreads, 1)                     \
      AGMM_CLUSTER_##cluster agmm_##name(const __grid_constant__ Arguments a) { \
    RunProduct<in, out, Shape<in, columns, stages, cluster>, carries>(a);       \
  }
#define AGMM_CLUSTER_1
#define AGMM_CLUSTER_2 __cluster_dims__(2)
#define AGMM_PRODUCT(name, ...)                   \
  AGMM_KERNEL(product_##name, __VA_ARGS__, false) \
  AGMM_KERNEL(ring_##name, __VA_ARGS__, true)
AGMM_PRODUCT(f16_f16_128, 1, F16, F16, kNarrow, kNarrowStages)
AGMM_PRODUCT(f16_f32_128, 1, F16, F32, kNarrow, kNarrowStages)
AGMM_PRODUCT(bf16_bf16_128, 1, BF16, BF16, kNarrow, kNarrowStages)
AGMM_PRODUCT(bf16_f32_128, 1, BF16, F32, kNarrow, kNarrowStages)
AGMM_PRODUCT(f16_f16_256, 1, F16, F16, kWide, kWideStages)
AGMM_PRODUCT(bf16_bf16_256, 1, BF16, BF16, kWide, kWideStages)
AGMM_PRODUCT(f16_f16_256_2, 2, F16, F16, kWide, kWideStages)
AGMM_PRODUCT(bf16_bf16_256_2, 2, BF16, BF16, kWide, kWideStages)
AGMM_PRODUCT(e4m3_f32_128, 1, E4M3, F32, kNarrow, kNarrowStages)

}  // namespace agmm::sm90
