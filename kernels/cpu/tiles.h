// C (+)= A * B in bf16 with sums in f32, by AMX tiles. Faster than oneDNN 2.6 because it also
// blocks along K (NOTES.md), and for matrices of any pitch. A row is summed along K in steps of 32,
// always in the same order, for any number of rows.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/convert.h"

namespace agmm {

// Asks Linux for permission to use AMX tiles, on a processor that has them. Returns false if it
// refuses.
bool AskForTiles();

// Packs B[k, n] of bf16 for MultiplyTiles. `packed` begins on a cache line.
int64_t PackedTileBytes(int64_t n, int64_t k);
void PackTiles(ConstMatrix b, int64_t n, int64_t k, std::byte* packed);

struct TileProduct {
  int64_t rows = 0, n = 0, k = 0;
  bool add = false;  // C += (f32 only)

  // Bytes of scratch, on a cache line, that MultiplyTiles needs.
  int64_t ScratchBytes() const;
};
// A[rows, k] is bf16; C[rows, n] is f32 or bf16. Requires AskForTiles().
void MultiplyTiles(const TileProduct& product, ConstMatrix a, const std::byte* packed_b, Matrix c,
                   std::byte* scratch);

}  // namespace agmm
