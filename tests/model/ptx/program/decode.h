// From an opcode to the function that runs it. Each family of instructions has a table of decoders.
#pragma once

#include <map>
#include <string_view>

#include "tests/model/ptx/program/program.h"

namespace ptx {

// The parts of an opcode after its first one. A decoder takes all parts that it knows; a part that
// is left makes the instruction unknown, so that none is ever ignored.
class Modifiers {
 public:
  explicit Modifiers(const Instruction& instruction);

  // Takes the part if it is there.
  bool Take(std::string_view part);
  // Takes the first of these parts that is there; returns its place in the list, or -1.
  int TakeOneOf(std::initializer_list<std::string_view> parts);
  // Takes the first part that names a type; kNone if there is none.
  Type TakeType();
  // Takes .global, .shared, .shared::cta, .shared::cluster, .param, .param::entry, .const or
  // .local.
  Space TakeSpace();
  // Takes .cta, .cluster, .gpu or .sys; kNone if there is none.
  Scope TakeScope();
  // Takes .v2, .v4 or .v8; 1 if there is none.
  int TakeVector();
  bool all_taken() const { return left_.empty(); }
  const std::vector<std::string_view>& left() const { return left_; }

 private:
  std::vector<std::string_view> left_;
};

// Fills the decoder's fields of the instruction, and returns its function, or null if it does not
// know this form.
using Decoder = Execute (*)(Instruction& instruction, Modifiers& modifiers);
using DecoderTable = std::map<std::string_view, Decoder>;  // by the opcode's first part

const DecoderTable& ArithmeticDecoders();  // arithmetic.cc: add, mad, setp, selp, shl, lop3, ...
const DecoderTable& ConversionDecoders();  // conversion.cc: mov, cvt, cvta
const DecoderTable& ControlDecoders();   // control.cc: bra, ret, shfl, elect, vote, setmaxnreg, ...
const DecoderTable& AccessDecoders();    // access.cc: ld, st, atom, red, multimem, cp.async
const DecoderTable& MatrixDecoders();    // matrix.cc: ldmatrix, stmatrix, mma
const DecoderTable& BarrierDecoders();   // barrier.cc: bar, barrier, fence, membar
const DecoderTable& MbarrierDecoders();  // mbarrier.cc
const DecoderTable& BulkDecoders();  // bulk.cc: cp.async.bulk, cp.reduce.async.bulk, tensormap, ...
const DecoderTable& WgmmaDecoders();  // wgmma.cc

// Sets instruction.execute and the other fields of the decoder. Throws Stop if the instruction is
// unknown.
void Decode(Instruction& instruction);

}  // namespace ptx
