// The products of a rank as one kernel on Hopper GPUs: its arguments, and the order of its tiles.
// Host and device agree on both through this header.
//
// A block is a part of C: some of its rows, all of its columns. A piece is a part of the sum of one
// block: some of the columns of A and the rows of B. Blocks are computed in order, each one's
// pieces too. A piece may wait for slots before it is read, and the kernel itself may send it on to
// one or two neighbours, out of the shared memory that the products read.
#pragma once

#include <cuda.h>

#include <cstdint>

#include "kernels/base/host_device.h"

namespace agmm::sm90 {

constexpr int kMaxBlocks = 32, kMaxPieces = 32;
constexpr int kMaxSends = 2;  // of a piece: both directions of a ring
constexpr int kMaxWaits = 8;  // of a piece
constexpr int kMaxMaps = (2 + kMaxSends) * kMaxPieces;
// The rows of a tile, and the bytes of K in one stage: 128, the span of the swizzle.
constexpr int kTileRows = 128, kStageBytesOfK = 128;
// Columns of a tile, and as many stages as fit into the 227 KiB of a CTA beside 1 KiB of alignment.
constexpr int kNarrow = 128, kNarrowStages = 7, kWide = 256, kWideStages = 4;
constexpr int kPair = 2;                          // CTAs of a cluster, where there are clusters
constexpr int kConsumers = 2;                     // warpgroups, which take 64 rows of a tile each
constexpr int kThreads = 128 * (1 + kConsumers);  // the first warpgroup loads and sends

// A matrix as TMA sees it: element (row, col) of the matrix is element (row, x + col) of the map,
// because a map begins at 16 aligned bytes.
struct View {
  int map = 0;  // in Arguments::maps
  int x = 0;
};

// The sending of a piece of A to one receiver. The place and `slot` lie in its memory, `counter`
// and `credit` in that of the sender.
struct Send {
  int map = -1;  // of the place at the receiver; -1: not used
  int x = 0;
  int contributors = 0;         // CTAs that send a part of it: those of ContributorsOf
  uint32_t* counter = nullptr;  // counts them; zero between launches
  uint64_t* slot = nullptr;     // raised to the epoch once all has arrived
  const uint64_t* credit =
      nullptr;  // has the epoch once the receiver's place may be written; null: at once
};

// k is at least 1.
struct Piece {
  View a, b;
  int k = 0;
  // Slots that have the epoch before this piece, or any later one, is read; null: none.
  const uint64_t* waits[kMaxWaits] = {};
  Send sends[kMaxSends];

  AGMM_HOST_DEVICE constexpr bool has_waits() const {
    for (const uint64_t* const slot : waits)
      if (slot != nullptr) return true;
    return false;
  }
};

// Rows, columns and pieces are at least 1: the host leaves out empty ones.
struct Block {
  int rows = 0, cols = 0;
  int first_piece = 0, pieces = 0;
  void* c = nullptr;  // element (0, 0)
  int64_t pitch = 0;  // of C, in elements
};

// The times of a tile, by %globaltimer; the host sets them to 0 before the launch. The records of
// tiles whose end is missing show where a launch waits.
struct TileTrace {
  uint64_t start_ns, waited_ns;  // the loader begins the tile; all its pieces have arrived
  uint64_t end_ns[kConsumers];   // the first warp of a warpgroup has stored its rows
  int32_t block, sm;
};

struct Arguments {
  CUtensorMap maps[kMaxMaps];
  Block blocks[kMaxBlocks];
  Piece pieces[kMaxPieces];
  int block_count = 0;
  // Rows of tiles that are computed together, column by column. The tiles of a cluster are one row
  // in this.
  int raster_rows = 0;
  int send_columns = 1;  // columns of tiles that share the sending of a piece
  uint64_t epoch = 0;
  // In pinned memory of the host; may be null. Once it is not zero, waits end, and pieces whose
  // sending ends later do not raise their slots.
  const uint64_t* abort = nullptr;
  // A record for each tile, in the order of blocks, of TileOrder, and of the CTAs of a cluster;
  // null: none. In memory of the GPU, or in pinned memory, which the host can read while the kernel
  // runs.
  TileTrace* trace = nullptr;
};

// The order of a block's tiles: bands of raster_rows rows of tiles, column by column within a band.
// With clusters, it is the order of clusters, whose CTAs have tiles one below the other: so
// everything here is counted in clusters. Tiles that lie below the block are computed and not
// stored.
struct TileOrder {
  int row_tiles, col_tiles, raster_rows;

  AGMM_HOST_DEVICE constexpr TileOrder(const Block& block, int tile_cols, int raster_rows,
                                       int cluster = 1)
      : row_tiles((block.rows + kTileRows * cluster - 1) / (kTileRows * cluster)),
        col_tiles((block.cols + tile_cols - 1) / tile_cols),
        raster_rows(raster_rows) {}
  AGMM_HOST_DEVICE constexpr int count() const { return row_tiles * col_tiles; }

  struct Tile {
    int row, col;  // a row is one of clusters
  };
  AGMM_HOST_DEVICE constexpr Tile At(int index) const {
    const int band = index / (raster_rows * col_tiles);
    const int rest = index - band * raster_rows * col_tiles, left = row_tiles - band * raster_rows;
    const int height = left < raster_rows ? left : raster_rows;
    return {band * raster_rows + rest % height, rest / height};
  }
};

// True if no tile of the first `send_columns` columns comes after another tile of its block on its
// CTA. A block needs this if it sends a piece and waits for another one: a CTA that waits inside a
// tile would hold up a later tile that sends, and so the neighbour.
constexpr bool SendsInItsFirstRound(const TileOrder& order, int grid, int send_columns) {
  for (int index = grid; index < order.count(); ++index) {
    if (order.At(index).col < send_columns) return false;
  }
  return true;
}

// CTAs of a grid, or its clusters, that compute a tile of the first `send_columns` columns of a
// block. Their number does not depend on the CTA that computes the block's first tile.
constexpr int ContributorsOf(const TileOrder& order, int grid, int send_columns) {
  int count = 0;
  for (int cta = 0; cta < grid; ++cta) {
    for (int index = cta; index < order.count(); index += grid) {
      if (order.At(index).col < send_columns) {
        ++count;
        break;
      }
    }
  }
  return count;
}

}  // namespace agmm::sm90
