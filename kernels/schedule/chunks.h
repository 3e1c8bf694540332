// The pieces in which an operand travels: the rectangles of the common refinement of the blocks
// that ranks have and the blocks that they need, cut further by the options. Ragged cuts that do
// not nest and shards in another order need no special cases.
#pragma once

#include <vector>

#include "kernels/schedule/problem.h"

namespace agmm {

// A rank that has a chunk, and the ranks to which it sends the chunk, ascending.
struct Source {
  Rank rank = 0;
  std::vector<Rank> needers;
};

struct Chunk {
  Block block;
  int piece = 0;                // its number among the pieces of its cell
  std::vector<Source> sources;  // if there are several holders, the nearest one sends
};

// Disjoint blocks.
using Blocks = std::vector<Block>;

// The cuts of both dimensions, at all ends of the blocks, and between them into near-equal pieces.
struct Grid {
  std::vector<Range> rows, cols;

  int64_t size() const { return static_cast<int64_t>(rows.size() * cols.size()); }
  // Returns the indices of `cuts` inside `range`, which begins and ends at cuts.
  static Range Within(const std::vector<Range>& cuts, const Range& range);
};
// All chunks of an operand, by rows and then by columns.
struct Chunks {
  Grid grid;
  std::vector<Chunk> list;
  bool travel = false;  // some rank needs elements that it does not have

  int IndexOf(int row, int col) const { return row * static_cast<int>(grid.cols.size()) + col; }
};

// `has`, `needs`: by rank; blocks may be empty.
Grid GridOf(const std::vector<Block>& has, const std::vector<Blocks>& needs, int row_pieces,
            int col_pieces);

// Time and memory are proportional to the chunks, and to the number that each rank has and needs.
// `one_a_node`: as in Algorithm. `groups`: by rank; ranks of different groups exchange nothing;
// empty: all ranks are one group. `from_all`: each holder of a group sends to all other needers.
Chunks Refine(const Mesh& mesh, const Topology& topology, const std::vector<Block>& has,
              const std::vector<Blocks>& needs, int row_pieces, int col_pieces, bool one_a_node,
              const std::vector<int>& groups = {}, bool from_all = false);

// For the chunks that Refine would make: the number that a rank receives, and the number that it
// needs, received or its own.
struct ChunkCount {
  int64_t received = 0, read = 0;
};
// By rank.
std::vector<ChunkCount> CountChunks(const std::vector<Block>& has, const std::vector<Blocks>& needs,
                                    int row_pieces, int col_pieces);

}  // namespace agmm
