// Matrices that the lanes of a warp load, store, transpose and multiply together: ldmatrix,
// stmatrix, movmatrix and mma.
#include <array>
#include <cstring>

#include "tests/model/ptx/instructions/access.h"
#include "tests/model/ptx/matrix/fragments.h"
#include "tests/model/ptx/program/decode.h"

namespace ptx {
namespace {

// Rows of 8 elements of 16 bits.
using Matrix = std::array<std::array<uint16_t, 8>, 8>;

enum Flags : uint32_t { kTransposed = 1 };

void RequireWarp(const Warp& warp, const Instruction& instruction, uint32_t mask) {
  if (mask != kAllLanes) Fail(warp, instruction, "not all threads of the warp execute it");
}

// The element that a lane has in the low or the high half of its register.
template <typename Elements>
auto& ElementOf(Elements& matrix, bool transposed, int lane, int half) {
  const int row = lane / 4, column = lane % 4 * 2 + half;
  return transposed ? matrix[column][row] : matrix[row][column];
}

Matrix FromRegister(const Lanes& lanes, bool transposed) {
  Matrix matrix;
  for (int lane = 0; lane < 32; ++lane) {
    ElementOf(matrix, transposed, lane, 0) = static_cast<uint16_t>(lanes[lane]);
    ElementOf(matrix, transposed, lane, 1) = static_cast<uint16_t>(lanes[lane] >> 16);
  }
  return matrix;
}

void ToRegister(const Matrix& matrix, bool transposed, Lanes& lanes) {
  for (int lane = 0; lane < 32; ++lane) {
    lanes[lane] = ElementOf(matrix, transposed, lane, 0) |
                  uint32_t{ElementOf(matrix, transposed, lane, 1)} << 16;
  }
}

// The row of 16 bytes whose address a lane gives.
std::byte* RowAt(Warp& warp, const Instruction& instruction, const Operand& operand, int lane,
                 bool write) {
  const uint64_t address = AddressOf(warp, operand, lane);
  if (instruction.space == Space::kGeneric && address >> 56 != kSharedWindow >> 56) {
    Fail(warp, instruction, "the generic address of a row is not in shared memory");
  }
  std::byte* const row = Touch(warp, instruction, Space::kShared, address, 16, lane, write);
  if ((address >> 24 & 0xff) != warp.cta->rank) {
    Fail(warp, instruction, "the address of a row is in shared memory of another CTA");
  }
  return row;
}

Outcome RunLoad(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarp(warp, instruction, mask);
  Matrix matrices[4];
  // All rows first, because a target may be the register of the addresses.
  for (int i = 0; i < instruction.count * 8; ++i) {
    std::memcpy(matrices[i / 8][i % 8].data(),
                RowAt(warp, instruction, instruction.operands[1], i, false), 16);
  }
  for (int i = 0; i < instruction.count; ++i) {
    ToRegister(matrices[i], instruction.flags & kTransposed,
               Target(warp, PartsOf(instruction.operands[0])[i]));
  }
  return Outcome::kNext;
}

Outcome RunStore(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarp(warp, instruction, mask);
  for (int i = 0; i < instruction.count; ++i) {
    const Matrix matrix = FromRegister(Source(warp, PartsOf(instruction.operands[1])[i]),
                                       instruction.flags & kTransposed);
    for (int row = 0; row < 8; ++row) {
      std::memcpy(RowAt(warp, instruction, instruction.operands[0], i * 8 + row, true),
                  matrix[row].data(), 16);
    }
  }
  ++warp.cta->grid->world->events;
  return Outcome::kNext;
}

Outcome RunMove(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarp(warp, instruction, mask);
  const Matrix matrix = FromRegister(Source(warp, instruction.operands[1]), false);
  ToRegister(matrix, true, Target(warp, instruction.operands[0]));
  return Outcome::kNext;
}

// Instruction::type is the type of C and D, from that of A, variant that of B, and count is K.
Outcome RunMultiply(Warp& warp, const Instruction& instruction, uint32_t mask) {
  RequireWarp(warp, instruction, mask);
  const int depth = instruction.count;
  const std::vector<Operand>& operands = instruction.operands;
  alignas(32) float a[kWarpRows * kMaxDepth], b[kMaxDepth * 8], d[kWarpRows * 8];
  ReadFragmentA(warp, operands[1], instruction.from, depth, a);
  ReadFragmentB(warp, operands[2], static_cast<Type>(instruction.variant), depth, b);
  ReadAccumulators(warp, operands[3], instruction.type, 8, d);
  MultiplyAdd(a, b, depth, 8, d);
  WriteAccumulators(warp, operands[0], instruction.type, 8, d);
  return Outcome::kNext;
}

// ---- Decoding

bool TakeSyncAligned(Modifiers& modifiers) {
  return modifiers.Take("sync") && modifiers.Take("aligned");
}

// .sync.aligned.m8n8.x4{.trans}{.shared}.b16, with the registers and the addresses in these
// operands.
bool DecodeRows(Instruction& instruction, Modifiers& modifiers, size_t registers,
                size_t addresses) {
  if (!TakeSyncAligned(modifiers) || !modifiers.Take("m8n8")) return false;
  const int size = modifiers.TakeOneOf({"x1", "x2", "x4"});
  if (size < 0) return false;
  instruction.count = 1 << size;
  if (modifiers.Take("trans")) instruction.flags |= kTransposed;
  if (modifiers.TakeOneOf({"shared", "shared::cta"}) >= 0) instruction.space = Space::kShared;
  if (!modifiers.Take("b16")) return false;
  instruction.converges = true;
  const std::vector<Operand>& operands = instruction.operands;
  return operands.size() == 2 && HasRegisters(operands[registers], instruction.count) &&
         operands[addresses].kind == Operand::kAddress && operands[addresses].parts.size() == 1;
}

Execute DecodeLoad(Instruction& instruction, Modifiers& modifiers) {
  return DecodeRows(instruction, modifiers, 0, 1) ? RunLoad : nullptr;
}

Execute DecodeStore(Instruction& instruction, Modifiers& modifiers) {
  return DecodeRows(instruction, modifiers, 1, 0) ? RunStore : nullptr;
}

Execute DecodeMove(Instruction& instruction, Modifiers& modifiers) {
  if (!TakeSyncAligned(modifiers) || !modifiers.Take("m8n8") || !modifiers.Take("trans") ||
      !modifiers.Take("b16")) {
    return nullptr;
  }
  instruction.converges = true;
  const std::vector<Operand>& operands = instruction.operands;
  const bool valid =
      operands.size() == 2 && HasRegisters(operands[0], 1) && HasRegisters(operands[1], 1);
  return valid ? RunMove : nullptr;
}

// Returns true if mma has a form of these types. The types of C and D are the same.
bool TypesAgree(Type d, Type a, Type b) {
  const auto is_fp8 = [](Type type) { return type == Type::kE4M3 || type == Type::kE5M2; };
  switch (a) {
    case Type::kF16: return b == a && (d == Type::kF32 || d == Type::kF16);
    case Type::kBF16:
    case Type::kTF32: return b == a && d == Type::kF32;
    default: return is_fp8(a) && is_fp8(b) && (d == Type::kF32 || d == Type::kF16);
  }
}

// mma.sync.aligned.m16n8kK.row.col.D.A.B.C
Execute DecodeMultiply(Instruction& instruction, Modifiers& modifiers) {
  if (!TakeSyncAligned(modifiers)) return nullptr;
  const int shape = modifiers.TakeOneOf({"m16n8k4", "m16n8k8", "m16n8k16", "m16n8k32"});
  if (shape < 0 || !modifiers.Take("row") || !modifiers.Take("col")) return nullptr;
  instruction.type = modifiers.TakeType();
  instruction.from = modifiers.TakeType();
  const Type b = modifiers.TakeType(), c = modifiers.TakeType();
  instruction.variant = static_cast<int>(b);
  if (!TypesAgree(instruction.type, instruction.from, b) || c != instruction.type) return nullptr;
  instruction.count = 4 << shape;
  // Each type has two forms: 32 bytes of K, and half of it.
  const int depth = DepthOf(instruction.from);
  if (instruction.count != depth && instruction.count != depth / 2) return nullptr;
  const int registers_b = instruction.count == depth ? 2 : 1;
  const int accumulators = instruction.type == Type::kF32 ? 4 : 2;
  instruction.converges = true;
  const std::vector<Operand>& operands = instruction.operands;
  const bool valid = operands.size() == 4 && HasRegisters(operands[0], accumulators) &&
                     HasSources(operands[1], 2 * registers_b) &&
                     HasSources(operands[2], registers_b) && HasSources(operands[3], accumulators);
  return valid ? RunMultiply : nullptr;
}

}  // namespace

const DecoderTable& MatrixDecoders() {
  static const DecoderTable table = {{"ldmatrix", DecodeLoad},
                                     {"stmatrix", DecodeStore},
                                     {"movmatrix", DecodeMove},
                                     {"mma", DecodeMultiply}};
  return table;
}

}  // namespace ptx
