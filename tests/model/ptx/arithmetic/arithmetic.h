// The decoders of arithmetic.cc, in parts.
#pragma once

#include "tests/model/ptx/program/decode.h"

namespace ptx {

// By the type: the decoder finds it in instruction.type, and takes the other modifiers.
const DecoderTable& IntegerDecoders();  // u16 to u64, s16 to s64. arithmetic_integer.cc
const DecoderTable&
IntegerPairDecoders();                // u16x2, s16x2: the type is that of an element. Likewise
const DecoderTable& FloatDecoders();  // f32, f64. arithmetic_float.cc
const DecoderTable& HalfDecoders();   // f16, bf16, f16x2, bf16x2. arithmetic_half.cc

// By the name: the decoder takes all modifiers.
const DecoderTable& CarryDecoders();    // addc, subc, madc. arithmetic_carry.cc
const DecoderTable& BitDecoders();      // and, shl, bfe, prmt, ... arithmetic_bits.cc
const DecoderTable& CompareDecoders();  // setp, set, selp, slct, testp. arithmetic_compare.cc

// add.cc, sub.cc and mad.cc of instruction.type; .cc is taken.
Execute DecodeCarryOut(Instruction& instruction, Modifiers& modifiers);

}  // namespace ptx
