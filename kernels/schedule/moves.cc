#include "kernels/schedule/moves.h"

#include <algorithm>

#include "kernels/schedule/cells.h"

namespace agmm {
namespace {

void FindOut(Move& move) {
  for (size_t rank = 0; rank < move.has.size(); ++rank) {
    const Block& needed = move.needs[rank];
    move.travels |= !needed.empty() && Intersect(move.has[rank], needed) != needed;
  }
}

// Whether each rank has all of the rows (or columns) of what it needs.
bool Whole(const Move& move, Range Block::*range) {
  for (size_t rank = 0; rank < move.has.size(); ++rank) {
    const Range &has = move.has[rank].*range, &needed = move.needs[rank].*range;
    if (!move.needs[rank].empty() && Intersect(has, needed) != needed) return false;
  }
  return true;
}

// Makes parts no larger than what a rank computes of them: with replicas, some compute for others
// and some do not.
void Shrink(const Problem& problem, const Flow& c, Work& work) {
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    LocalProduct& part = work.parts[rank];
    const Block made = NeededBlock(problem, problem.product.c, part);
    Block bounds = {
        problem.product.c, {made.rows.end, made.rows.begin}, {made.cols.end, made.cols.begin}};
    for (int chunk : ChunksMadeBy(problem, c, made, rank)) {
      const Block& block = c.chunks().list[chunk].block;
      bounds.rows = {std::min(bounds.rows.begin, block.rows.begin),
                     std::max(bounds.rows.end, block.rows.end)};
      bounds.cols = {std::min(bounds.cols.begin, block.cols.begin),
                     std::max(bounds.cols.end, block.cols.end)};
    }
    part.m = bounds.rows;
    part.n = bounds.cols;
  }
}

}  // namespace

Moves MovesOf(const Problem& problem, const Topology& topology, const Split& split, int chunks,
              int k_chunks, int halves) {
  Moves moves;
  moves.work = WorkOf(problem, split);
  const Roles& product = problem.product;
  moves.a.operand = product.a;
  moves.b.operand = product.b;
  moves.c.operand = product.c;
  for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
    moves.c.has.push_back(NeededBlock(problem, product.c, moves.work.parts[rank]));
    moves.c.needs.push_back(ShardBlock(problem, product.c, rank));
  }
  moves.c.row_pieces = chunks * halves;
  FindOut(moves.c);
  if (moves.c.travels) {
    Move cells = moves.c;
    cells.row_pieces = 1;
    const Flow c(problem, topology, product.c, RefineMove(problem, topology, cells), DirectRoute);
    Shrink(problem, c, moves.work);
  }
  for (Move* input : {&moves.a, &moves.b}) {
    for (Rank rank = 0; rank < problem.mesh.size(); ++rank) {
      input->has.push_back(ShardBlock(problem, input->operand, rank));
      input->needs.push_back(NeededBlock(problem, input->operand, moves.work.parts[rank]));
    }
    FindOut(*input);
    const bool is_a = input == &moves.a;
    input->along_k = input->travels && Whole(*input, is_a ? &Block::rows : &Block::cols);
    int &outer = is_a ? input->row_pieces : input->col_pieces,
        &k = is_a ? input->col_pieces : input->row_pieces;
    outer = chunks * (input->along_k ? 1 : halves);
    k = k_chunks * (input->along_k ? halves : 1);
  }
  return moves;
}

Chunks RefineMove(const Problem& problem, const Topology& topology, const Move& move) {
  return Refine(problem.mesh, topology, move.has, move.needs, move.row_pieces, move.col_pieces);
}

}  // namespace agmm
