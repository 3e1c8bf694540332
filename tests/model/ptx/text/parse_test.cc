#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {
namespace {

const std::string kHead = ".version 9.0\n.target sm_90a\n.address_size 64\n";  // three lines

// The text of Stop, or "".
std::string StopOf(const std::string& text) {
  try {
    ParseModule(text);
  } catch (const Stop& stop) {
    return stop.what();
  }
  return "";
}

const Kernel& KernelOf(const Module& module) { return *module.kernels.at("test"); }

// A module with a body for the kernel of test_kernel.h, which has four instructions before it.
struct Parsed {
  explicit Parsed(const std::string& body) : module(ParseModule(TestModule(body))) {}
  const Kernel& kernel() const { return KernelOf(*module); }
  const Instruction& at(size_t index) const { return kernel().instructions.at(index + 4); }
  const Operand& operand(size_t instruction, size_t index) const {
    return at(instruction).operands.at(index);
  }
  std::unique_ptr<Module> module;
};

int64_t BitsOf(double value) { return Bits(value); }

template <typename T>
std::vector<T> ValuesOf(const Module::Variable& variable) {
  std::vector<T> values(variable.bytes / sizeof(T));
  std::memcpy(values.data(), variable.data, variable.bytes);
  return values;
}

TEST(Types, HaveNamesAndSizes) {
  EXPECT_EQ(TypeNamed("bf16x2"), Type::kBF16x2);
  EXPECT_EQ(TypeNamed("e5m2x2"), Type::kE5M2x2);
  EXPECT_EQ(TypeNamed("pred"), Type::kPred);
  EXPECT_EQ(TypeNamed(""), Type::kNone);
  EXPECT_EQ(TypeNamed("u128"), Type::kNone);
  EXPECT_EQ(Bytes(Type::kB128), 16);
  EXPECT_EQ(Bytes(Type::kTF32), 4);
  EXPECT_EQ(Bytes(Type::kF16x2), 4);
  EXPECT_TRUE(IsSigned(Type::kS8));
  EXPECT_FALSE(IsSigned(Type::kF32));
  EXPECT_TRUE(IsFloat(Type::kBF16x2));
  EXPECT_FALSE(IsFloat(Type::kB32));
}

TEST(Parse, ModuleKeepsItsTargetAndItsFiles) {
  const auto module = ParseModule(
      ".version 9.0\n.target sm_90a, debug\n.address_size 64\n"
      ".file 2 \"b.cu\", 1700000000, 123\n.file 1 \"/folder\" \"a.cu\"\n");
  EXPECT_EQ(module->target, "sm_90a");
  EXPECT_EQ(module->files, (std::vector<std::string>{"", "/folder/a.cu", "b.cu"}));
}

TEST(Parse, CommentsAndSectionsAreSkipped) {
  const auto module =
      ParseModule("// .entry a() {\n" + kHead +
                  "/* .entry b() { */ .section .debug_info\n{ $L__x: .b8 1 // }\n .b64 $L__x }\n"
                  ".entry test() { .reg .b32 %r; mov/*a\nb*/.u32 %r,/**/1;// }\n }\n"
                  ".section .debug_loc { { } }\n.section .debug_str { .b8 0 }");
  ASSERT_EQ(module->kernels.size(), 1u);
  EXPECT_EQ(KernelOf(*module).instructions[0].text, "mov .u32 %r, 1");
}

TEST(Parse, TextEndsAtAZero) {
  EXPECT_EQ(ParseModule(kHead + std::string("\0 no PTX", 8))->target, "sm_90a");
}

TEST(Parse, LinesAreThoseOfTheText) {
  const auto module = ParseModule(kHead +
                                  "/* \n\n */ .entry test() {\r\n .reg .b32 %r<3>; .reg .pred %p;\n"
                                  "\n@!%p\n mov.b32\n\t%r1, // one\n %r2;\nret; ret;\n\n}");
  const Kernel& kernel = KernelOf(*module);
  ASSERT_EQ(kernel.instructions.size(), 4u);
  EXPECT_EQ(kernel.instructions[0].line, 9);
  EXPECT_EQ(kernel.instructions[0].text, "@!%p mov.b32 %r1, %r2");
  EXPECT_EQ(kernel.instructions[1].line, 13);
  EXPECT_EQ(kernel.instructions[2].line, 13);
  EXPECT_EQ(kernel.instructions[3].line, 15);
}

TEST(Parse, LocSetsTheSourceOfTheInstructionsAfterIt) {
  const Parsed parsed(R"(
    mov.u32 %r0, 0;
    .loc 1 118 0
    mov.u32 %r1, 0;
    .loc	2 388 5, function_name $L__info_string0, inlined_at 1 123 3
    mov.u32 %r2, 0; mov.u32 %r3, 0;
    .loc 2 389 5, function_name $L__info_string0+12, inlined_at 1 124 3 // .loc 3 4 5
    { mov.u32 %r4, 0; })");
  const std::vector<std::pair<int, int>> expected = {
      {-1, 0}, {1, 118}, {2, 388}, {2, 388}, {2, 389}};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(parsed.at(i).source_file, expected[i].first) << i;
    EXPECT_EQ(parsed.at(i).source_line, expected[i].second) << i;
  }
}

TEST(Parse, ParametersAreAlignedAndPacked) {
  const auto module = ParseModule(kHead + R"(.weak .entry test(
    .param .u8 a, .param .u64 .ptr .global .align 1 b, .param .f32 c,
    .param .align 64 .b8 d[640], .param .u16 e[3], .param .b64 .ptr f) { ret; })");
  const Kernel& kernel = KernelOf(*module);
  const std::vector<std::pair<uint64_t, uint64_t>> expected = {{0, 1},    {8, 8},   {16, 4},
                                                               {64, 640}, {704, 6}, {712, 8}};
  ASSERT_EQ(kernel.parameters.size(), expected.size());
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(kernel.parameters[i].address, expected[i].first) << i;
    EXPECT_EQ(kernel.parameters[i].bytes, expected[i].second) << i;
    EXPECT_EQ(kernel.parameters[i].space, Space::kParam);
    EXPECT_EQ(kernel.parameters[i].name, std::string(1, "abcdef"[i]));
  }
  EXPECT_EQ(kernel.parameter_bytes, 720u);
}

TEST(Parse, KernelKeepsItsLimits) {
  const auto module = ParseModule(kHead + R"(.visible .entry test()
    .maxntid 128, 3, 1 .reqntid 32, 2 .minnctapersm 1 .maxnreg 168
    .explicitcluster .reqnctapercluster 2, 1 .pragma "nounroll"; { .pragma "a", "b"; ret; })");
  const Kernel& kernel = KernelOf(*module);
  EXPECT_EQ(kernel.max_threads, 384u);
  EXPECT_EQ(kernel.required_threads, 64u);
  EXPECT_EQ(kernel.max_registers, 168u);
  EXPECT_EQ(kernel.cluster[0], 2u);
  EXPECT_EQ(kernel.cluster[1], 1u);
  EXPECT_EQ(kernel.cluster[2], 1u);
}

TEST(Parse, KernelCanBeDeclaredBeforeItIsDefined) {
  const auto module =
      ParseModule(kHead + ".entry test(.param .u32 n);\n.entry test(.param .u32 n) { ret; }");
  EXPECT_EQ(KernelOf(*module).parameters.size(), 1u);
}

TEST(Parse, RetIsAppended) {
  const auto module = ParseModule(kHead + ".entry test {\n bra L;\n L:\n}");
  const Kernel& kernel = KernelOf(*module);
  ASSERT_EQ(kernel.instructions.size(), 2u);
  EXPECT_EQ(kernel.instructions[0].operands[0].index, 1u);
  EXPECT_EQ(kernel.instructions[1].text, "ret");
  EXPECT_EQ(kernel.instructions[1].line, 7);
  EXPECT_NE(kernel.instructions[1].execute, nullptr);
}

TEST(Parse, RegistersAndPredicatesAreCountedApart) {
  const auto module = ParseModule(kHead + R"(.entry test() {
    .reg .b32 %r<5>, x, %r1b<12>; .reg .pred %p<3>, q; .reg .b64 %rd<2>;
    mov.b32 %r4, x; mov.b32 %r1b11, %r0; mov.b64 %rd1, %rd0;
    @q bra L; @!%p2 bra L; L: })");
  const Kernel& kernel = KernelOf(*module);
  EXPECT_EQ(kernel.register_count, 20u);
  EXPECT_EQ(kernel.predicate_count, 4u);
  const auto registers = [&](size_t i) { return kernel.instructions[i].registers; };
  EXPECT_EQ(registers(0), (std::vector<uint32_t>{4, 5}));
  EXPECT_EQ(registers(1), (std::vector<uint32_t>{0, 17}));
  EXPECT_EQ(registers(2), (std::vector<uint32_t>{18, 19}));
  EXPECT_EQ(registers(3), (std::vector<uint32_t>{}));
  EXPECT_EQ(kernel.instructions[0].operands[1].type, Type::kB32);
  EXPECT_EQ(kernel.instructions[2].operands[1].type, Type::kB64);
  EXPECT_EQ(kernel.instructions[2].guard, -1);
  EXPECT_EQ(kernel.instructions[3].guard, 3);
  EXPECT_FALSE(kernel.instructions[3].guard_negated);
  EXPECT_EQ(kernel.instructions[4].guard, 2);
  EXPECT_TRUE(kernel.instructions[4].guard_negated);
}

TEST(Parse, BlocksHideTheRegistersAndLabelsOutside) {
  const Parsed parsed(R"(
    .reg .b32 x; .reg .pred P1;
    { .reg .b32 x; .reg .pred P1; LAB_WAIT: mov.b32 x, %r1; @P1 bra DONE; bra LAB_WAIT; DONE: }
    { .reg .pred P1; LAB_WAIT: { mov.b32 x, %r1; @P1 bra DONE; } bra LAB_WAIT; DONE: }
    mov.b32 x, %r1; @P1 bra DONE; bra END;
    DONE: END:)");
  const uint32_t outer = parsed.operand(6, 0).index;
  EXPECT_NE(parsed.operand(0, 0).index, outer);
  EXPECT_EQ(parsed.operand(3, 0).index, outer);
  EXPECT_NE(parsed.at(1).guard, parsed.at(7).guard);
  EXPECT_NE(parsed.at(4).guard, parsed.at(7).guard);
  EXPECT_NE(parsed.at(1).guard, parsed.at(4).guard);
  const auto target = [&](size_t i) { return parsed.operand(i, 0).index - 4; };
  EXPECT_EQ(target(1), 3u);
  EXPECT_EQ(target(2), 0u);
  EXPECT_EQ(target(4), 6u);
  EXPECT_EQ(target(5), 3u);
  EXPECT_EQ(target(7), 9u);
  EXPECT_EQ(target(8), 9u);
}

TEST(Parse, LabelOfABlockIsUnknownOutside) {
  EXPECT_NE(StopOf(TestModule("{ L: mov.b32 %r1, %r2; }\n bra L;")).find("nothing is named `L`"),
            std::string::npos);
}

TEST(Parse, VariablesOfTheModuleHaveStorageAndValues) {
  const auto module = ParseModule(kHead + R"(
    .global .align 4 .u32 one, many[2][3];
    .visible .const .align 256 .b8 bytes[6] = {104, 0x65, 0154, 0b1101100, -1};
    .global .f32 floats[] = {0f3F800000, 1.5, -2.0};
    .weak .const .f64 real = 0d3FF8000000000000;
    .global .s16 shorts[2] = {-32768, 65535};
    .global .v4 .b32 vectors[2];)");
  const auto& variables = module->variables;
  ASSERT_EQ(variables.size(), 7u);
  EXPECT_EQ(ValuesOf<uint32_t>(variables[0]), std::vector<uint32_t>{0});
  EXPECT_EQ(ValuesOf<uint32_t>(variables[1]), std::vector<uint32_t>(6));
  EXPECT_EQ(variables[2].name, "bytes");
  EXPECT_EQ(ValuesOf<uint8_t>(variables[2]), (std::vector<uint8_t>{'h', 'e', 'l', 'l', 255, 0}));
  EXPECT_EQ(reinterpret_cast<uint64_t>(variables[2].data) % 256, 0u);
  EXPECT_EQ(ValuesOf<float>(variables[3]), (std::vector<float>{1, 1.5, -2}));
  EXPECT_EQ(reinterpret_cast<uint64_t>(variables[3].data) % 128, 0u);
  EXPECT_EQ(ValuesOf<double>(variables[4]), std::vector<double>{1.5});
  EXPECT_EQ(ValuesOf<int16_t>(variables[5]), (std::vector<int16_t>{-32768, -1}));
  EXPECT_EQ(variables[6].bytes, 32u);
}

TEST(Parse, VariablesOfABodyHaveTheirPlaces) {
  const Parsed parsed(R"(
    .shared .b8 first; .shared .align 16 .b8 second[20]; .local .align 8 .b8 depot[24];
    { .shared .v2 .f32 second; .local .u8 small; mov.u32 %r1, second; mov.u64 %rd1, small; }
    .global .u32 counter = 7;
    mov.u32 %r1, first; mov.u32 %r1, second; mov.u64 %rd1, depot; mov.u64 %rd1, counter;)");
  const auto symbol = [&](size_t i) { return parsed.kernel().symbols[parsed.operand(i, 1).index]; };
  EXPECT_EQ(symbol(0).address, 40u);
  EXPECT_EQ(symbol(0).bytes, 8u);
  EXPECT_EQ(symbol(1).address, 24u);
  EXPECT_EQ(symbol(1).space, Space::kLocal);
  EXPECT_EQ(symbol(2).address, 0u);
  EXPECT_EQ(symbol(3).address, 16u);
  EXPECT_EQ(symbol(3).space, Space::kShared);
  EXPECT_EQ(symbol(4).address, 0u);
  EXPECT_EQ(symbol(5).address, reinterpret_cast<uint64_t>(parsed.module->variables[0].data));
  EXPECT_EQ(parsed.kernel().static_shared_bytes, 48u);
  EXPECT_EQ(parsed.kernel().local_bytes, 25u);
}

TEST(Parse, SharedMemoryOfTheModuleCountsForTheKernelsThatNameIt) {
  const auto module = ParseModule(kHead + R"(
    .shared .align 8 .b8 a[12]; .shared .u32 b; .extern .shared .align 16 .b8 dynamic[];
    .entry none() { ret; }
    .entry test() { .shared .u8 own; .reg .b32 %r; mov.u32 %r, b; mov.u32 %r, dynamic;
                    mov.u32 %r, b; mov.u32 %r, a; })");
  EXPECT_EQ(module->kernels.at("none")->static_shared_bytes, 0u);
  const Kernel& kernel = KernelOf(*module);
  ASSERT_EQ(kernel.symbols.size(), 3u);
  EXPECT_EQ(kernel.symbols[0].address, 4u);
  EXPECT_FALSE(kernel.symbols[0].dynamic);
  EXPECT_TRUE(kernel.symbols[1].dynamic);
  EXPECT_EQ(kernel.symbols[2].address, 8u);
  EXPECT_EQ(kernel.static_shared_bytes, 20u);
}

TEST(Parse, ImmediatesKeepTheirBits) {
  struct Case {
    const char* text;
    int64_t bits;
    Type type = Type::kNone;
  };
  const Case cases[] = {
      {"10", 10},
      {"-1", -1},
      {"- 5", -5},
      {"0x1F", 31},
      {"0X1e", 30},
      {"017", 15},
      {"0b101", 5},
      {"0", 0},
      {"4294967295U", 4294967295},
      {"0xffffffffffffffff", -1},
      {"18446744073709551615U", -1},
      {"-9223372036854775808", INT64_MIN},
      {"WARP_SZ", 32},
      {"0f3F800000", 0x3f800000, Type::kF32},
      {"0FBF800000", 0xbf800000, Type::kF32},
      {"-0f3f800000", 0xbf800000, Type::kF32},
      {"0d3FF0000000000000", 0x3ff0000000000000, Type::kF64},
      {"0D3FF0000000000001", 0x3ff0000000000001, Type::kF64},
      {"1.0", BitsOf(1.0), Type::kF64},
      {"-2.5", BitsOf(-2.5), Type::kF64},
      {"1e-3", BitsOf(1e-3), Type::kF64},
      {"1.5E+2", BitsOf(150.0), Type::kF64},
  };
  for (const Case& test : cases) {
    const std::string move = test.type == Type::kF32   ? "mov.f32 %f1, "
                             : test.type == Type::kF64 ? "mov.f64 %d1, "
                                                       : "mov.b64 %rd1, ";
    const Parsed parsed(move + test.text + ";");
    const Operand& operand = parsed.operand(0, 1);
    EXPECT_EQ(operand.kind, Operand::kConstant) << test.text;
    EXPECT_EQ(operand.bits, test.bits) << test.text;
    EXPECT_EQ(operand.type, test.type) << test.text;
    const Lanes& lanes = parsed.kernel().constants.at(operand.index);
    for (const uint64_t lane : lanes) EXPECT_EQ(lane, static_cast<uint64_t>(test.bits));
  }
}

TEST(Parse, EqualConstantsAreShared) {
  const Parsed parsed("add.u32 %r1, %r2, 7; add.u32 %r1, %r2, 0x7; add.u32 %r1, %r2, 8;");
  EXPECT_EQ(parsed.operand(0, 2).index, parsed.operand(1, 2).index);
  EXPECT_NE(parsed.operand(0, 2).index, parsed.operand(2, 2).index);
  EXPECT_EQ(parsed.kernel().constants.size(), 2u);
}

TEST(Parse, AddressesHaveABaseAndAnOffset) {
  const Parsed parsed(R"(
    .shared .b32 buffer[4];
    ld.global.u32 %r1, [%rd1]; ld.global.u32 %r1, [%rd1+4]; ld.global.u32 %r1, [ %rd1 + -8 ];
    ld.global.u32 %r1, [%rd1-0x10]; ld.shared.u32 %r1, [buffer+8]; ld.shared.u32 %r1, [2048];)");
  const int64_t offsets[] = {0, 4, -8, -16, 8, 0};
  for (size_t i = 0; i < std::size(offsets); ++i) {
    const Operand& address = parsed.operand(i, 1);
    EXPECT_EQ(address.kind, Operand::kAddress);
    EXPECT_EQ(address.bits, offsets[i]) << i;
    EXPECT_EQ(address.parts.size(), 1u);
  }
  EXPECT_EQ(parsed.operand(0, 1).parts[0].kind, Operand::kRegister);
  EXPECT_EQ(parsed.operand(4, 1).parts[0].kind, Operand::kSymbol);
  EXPECT_EQ(parsed.operand(4, 1).parts[0].bits, 0);
  EXPECT_EQ(parsed.operand(5, 1).parts[0].kind, Operand::kConstant);
  EXPECT_EQ(parsed.operand(5, 1).parts[0].bits, 2048);
}

TEST(Parse, TensorAddressesHaveCoordinates) {
  const Parsed parsed(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes\n"
      "  [%r1], [%rd1, {%r2, 5}], [%r3+8];");
  const Instruction& instruction = parsed.at(0);
  const std::vector<std::string> opcode = {
      "cp", "async",           "bulk",   "tensor",
      "2d", "shared::cluster", "global", "mbarrier::complete_tx::bytes"};
  EXPECT_EQ(instruction.opcode, opcode);
  ASSERT_EQ(instruction.operands.size(), 3u);
  const Operand& map = instruction.operands[1];
  ASSERT_EQ(map.parts.size(), 2u);
  EXPECT_EQ(map.parts[0].type, Type::kB64);
  EXPECT_EQ(map.parts[1].kind, Operand::kVector);
  ASSERT_EQ(map.parts[1].parts.size(), 2u);
  EXPECT_EQ(map.parts[1].parts[0].kind, Operand::kRegister);
  EXPECT_EQ(map.parts[1].parts[1].bits, 5);
  EXPECT_EQ(instruction.operands[2].bits, 8);
  // Registers inside of addresses and vectors count.
  EXPECT_EQ(instruction.registers.size(), 4u);
}

TEST(Parse, VectorsHaveParts) {
  const Parsed parsed("mov.b64 {%r1, _}, %rd1; st.global.v4.b32 [%rd1], {%r1, 2, %r2, %r1};");
  const Operand& first = parsed.operand(0, 0);
  ASSERT_EQ(first.parts.size(), 2u);
  EXPECT_EQ(first.parts[1].kind, Operand::kSink);
  EXPECT_EQ(parsed.operand(1, 1).parts.size(), 4u);
  EXPECT_EQ(parsed.at(1).registers.size(), 3u);
}

TEST(Parse, SecondDestinationIsAPredicate) {
  const Parsed parsed(R"(
    setp.eq.s32 %p1|%p2, %r1, %r2; shfl.sync.idx.b32 %r1 | %p3, %r2, 0, 31, -1;
    elect.sync _|%p4, 0xffffffff; setp.eq.s32 %p5|_, %r1, %r2;)");
  const int first = parsed.operand(0, 0).index;  // of %p1
  EXPECT_EQ(parsed.operand(0, 0).kind, Operand::kPredicate);
  EXPECT_EQ(parsed.operand(0, 0).second, first + 1);
  EXPECT_EQ(parsed.operand(1, 0).kind, Operand::kRegister);
  EXPECT_EQ(parsed.operand(1, 0).second, first + 2);
  EXPECT_EQ(parsed.operand(2, 0).kind, Operand::kSink);
  EXPECT_EQ(parsed.operand(2, 0).second, first + 3);
  EXPECT_EQ(parsed.operand(3, 0).second, -1);
}

TEST(Parse, PredicatesCanBeNegated) {
  const Parsed parsed("selp.b32 %r1, %r2, %r3, %p1; setp.eq.and.s32 %p1, %r1, %r2, !%p2;");
  EXPECT_FALSE(parsed.operand(0, 3).negated);
  EXPECT_TRUE(parsed.operand(1, 3).negated);
  EXPECT_EQ(parsed.operand(1, 3).kind, Operand::kPredicate);
}

TEST(Parse, SymbolsAreValues) {
  const Parsed parsed(R"(
    .shared .b32 buffer[4];
    mov.b64 %rd1, test_in; mov.u32 %r1, buffer+8; mov.u32 %r1, buffer - 4; mov.u32 %r1, buffer;)");
  EXPECT_EQ(parsed.operand(0, 1).kind, Operand::kSymbol);
  EXPECT_EQ(parsed.kernel().symbols[parsed.operand(0, 1).index].address, 8u);
  EXPECT_EQ(parsed.operand(1, 1).bits, 8);
  EXPECT_EQ(parsed.operand(2, 1).bits, -4);
  EXPECT_EQ(parsed.operand(3, 1).index, parsed.operand(1, 1).index);
  EXPECT_EQ(parsed.kernel().symbols.size(), 3u);  // two parameters and the buffer
}

TEST(Parse, SpecialRegistersAreInTheOrderOfTheirEnum) {
  const std::pair<const char*, Special> cases[] = {
      {"%tid.x", Special::kTidX},
      {"%nctaid.z", Special::kNctaidZ},
      {"%nwarpid", Special::kNwarpid},
      {"%cluster_ctarank", Special::kClusterCtarank},
      {"%cluster_nctaid.y", Special::kClusterNctaidY},
      {"%clusterid.x", Special::kClusteridX},
      {"%is_explicit_cluster", Special::kIsExplicitCluster},
      {"%clock", Special::kClock},
      {"%total_smem_size", Special::kTotalSmemSize},
      {"%lanemask_gt", Special::kLanemaskGt},
  };
  for (const auto& [name, special] : cases) {
    const Parsed parsed(std::string("mov.u32 %r1, ") + name + ";");
    EXPECT_EQ(parsed.operand(0, 1).kind, Operand::kSpecial) << name;
    EXPECT_EQ(parsed.operand(0, 1).index, static_cast<uint32_t>(special)) << name;
  }
}

TEST(Parse, OpcodeIsSplitAtItsDots) {
  const Parsed parsed(
      "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r1], %r2; add .u32 %r1, %r2, %r3;");
  EXPECT_EQ(parsed.at(0).opcode,
            (std::vector<std::string>{"mbarrier", "try_wait", "parity", "shared::cta", "b64"}));
  EXPECT_EQ(parsed.at(1).opcode, (std::vector<std::string>{"add", "u32"}));
}

TEST(Parse, ErrorsNameTheKernelTheLineAndTheText) {
  EXPECT_EQ(StopOf(kHead + ".entry test() {\n.reg .b32 %r<2>;\n  mov.b32 %r1,\n  %r2;\n}"),
            "kernel test, line 6: no register or special register is named `%r2`: "
            "`mov.b32 %r1, %r2`");
  EXPECT_EQ(StopOf(kHead + "\n.func f() { ret; }"),
            "line 5: the model does not have .func: `.func f() { ret`");
  const std::string longer = StopOf(kHead + ".entry test() { foo " + std::string(200, 'x') + "; }");
  EXPECT_NE(longer.find("`foo " + std::string(116, 'x') + "...`"), std::string::npos) << longer;
  EXPECT_EQ(longer.find("kernel test, "), 0u) << longer;
}

TEST(Parse, TextThatIsNotPtxIsRefused) {
  const std::string module = ".target sm_90a\n";
  EXPECT_NE(StopOf(""), "");
  EXPECT_NE(StopOf("int main() {}"), "");
  EXPECT_NE(StopOf(module + ".address_size 32"), "");
  EXPECT_NE(StopOf(module + ".entry test() { ret; } .entry test() { ret; }"), "");
  EXPECT_NE(StopOf(module + ".entry test(.param .u32 a, .param .u32 a) { ret; }"), "");
  EXPECT_NE(StopOf(module + ".entry test(.param .u32 a[40000]) { ret; }"), "");
  EXPECT_NE(StopOf(module + ".entry test(.param .align 3 .b8 a[4]) { ret; }"), "");
}

TEST(Parse, DirectivesOutsideOfTheModelAreRefusedByName) {
  const char* const cases[][2] = {
      {".extern .func (.param .b32 r) vprintf (.param .b64 a);", ".func"},
      {".common .global .u32 x;", ".common"},
      {".global .texref t;", ".texref"},
      {".global .attribute(.managed) .u32 x;", ".attribute"},
      {".alias a, b;", ".alias"},
      {".local .u32 x;", "local memory of a module"},
      {".shared .align 2048 .b8 x[4096];", "1024"},
      {".entry test() .maxclusterrank 4 { ret; }", ".maxclusterrank"},
      {".entry test() .blocksareclusters { ret; }", ".blocksareclusters"},
      {".entry test() .explicitcluster { ret; }", ".explicitcluster"},
      {".entry test() .noreturn { ret; }", ".noreturn"},
  };
  for (const auto& [text, name] : cases) {
    const std::string stop = StopOf(kHead + text);
    EXPECT_NE(stop.find(name), std::string::npos) << stop;
    EXPECT_NE(stop.find("line 4: "), std::string::npos) << stop;
  }
}

TEST(Parse, InitialisersOutsideOfTheModelAreRefused) {
  for (const char* const text : {
           ".global .u64 x = y;",
           ".global .u64 x = generic(y);",
           ".global .u64 x[2] = {0, y+4};",
           ".global .b8 x[2] = {1, 2, 3};",
           ".global .b8 x = 256;",
           ".global .s8 x = -129;",
           ".global .f32 x = 1;",
           ".global .u32 x = 1.0;",
           ".global .u32 x[2][1] = {{1}, {2}};",
           ".global .f16 x = 1.0;",
           ".global .u32 x[];",
           ".shared .u32 x = 1;",
           ".extern .global .u32 x = 1;",
       }) {
    EXPECT_NE(StopOf(kHead + text).find("line 4: "), std::string::npos) << text;
  }
}

TEST(Parse, StatementsOutsideOfTheModelAreRefusedByName) {
  const char* const cases[][2] = {
      {"call.uni (%r1), f, (%r2);", "call"},
      {"brx.idx %r1, targets;", "brx"},
      {"targets: .branchtargets A, B;", ".branchtargets"},
      {"prototype: .callprototype _ (.param .b32 _);", ".callprototype"},
      {".param .b32 x;", ".param"},
      {".reg .b128 %q;", ".b128"},
      {".reg .v4 .f32 %v;", ".v4"},
      {".reg .b32 %r<4>;", "declared twice"},
      {".reg .b32 %tid;", "declared twice"},
      {"L: L: ret;", "declared twice"},
      {"mov.u32 %r1, %pm0;", "%pm0"},
      {"mov.u32 %r1, %r64;", "%r64"},
      {"mov.u32 %r1, %r01;", "%r01"},
      {"mov.u32 %r1, nothing;", "nothing"},
      {"mov.b64 {%r1, missing}, %rd1;", "missing"},
      {"ld.global.u32 %r1, [missing];", "missing"},
      {"mov.u32 %r1, (1+2)*3;", "no operand"},
      {"mov.u32 %r1, 0x;", "0x"},
      {"mov.u32 %r1, 08;", "08"},
      {"mov.u32 %r1, 0f3F8000;", "0f3F8000"},
      {"mov.u32 %r1, 99999999999999999999;", "99999999999999999999"},
      {"mov.u32 %r1, 12abc;", "12abc"},
      {"mov.u32 %r1, 1.5.2;", "1.5.2"},
      {"ld.global.u32 %r1, [%rd1+1.5];", "offset"},
      {"mov.b32 %r1, !%r2;", "predicate"},
      {"setp.eq.s32 %p1|%r1, %r2, %r3;", "predicate"},
      {"@%r1 bra L; L:", "no predicate"},
      {"mov.b64 {{%r1}, %r2}, %rd1;", "no operand"},
      {"frobnicate.b32 %r1, %r2;", "frobnicate.b32 %r1, %r2"},
      {"mov.b32 %r1 %r2;", "';'"},
  };
  for (const auto& [text, name] : cases) {
    const std::string stop = StopOf(TestModule(text));
    EXPECT_NE(stop.find(name), std::string::npos) << text << "\n" << stop;
    EXPECT_EQ(stop.find("kernel test, line 18: "), 0u) << text << "\n" << stop;
  }
}

TEST(Parse, ExternalVariablesAreRefusedIfAKernelNamesThem) {
  const std::string module = kHead + ".extern .global .u32 x;\n.entry test() { .reg .b64 %rd;\n";
  EXPECT_EQ(StopOf(module + "}"), "");
  EXPECT_EQ(StopOf(module + "mov.u64 %rd, x; }"),
            "kernel test, line 6: the module does not define `x`: `mov.u64 %rd, x`");
}

const char* const kRich = R"(.version 9.0
.target sm_90a
.address_size 64
.file 1 "a.cu"
.global .align 4 .b8 table[4] = {1, 2, 0x3};
.extern .shared .align 16 .b8 dynamic[];
.visible .entry test(.param .u64 .ptr .global .align 1 out, .param .align 64 .b8 map[128])
.maxntid 128, 1, 1
{ /* comment */ .reg .b32 %r<5>; .reg .b64 %rd<3>; .reg .pred %p<2>; .reg .f32 %f;
  .loc 1 2 3, function_name f, inlined_at 1 4 5
  { .reg .pred P; L: setp.eq.s32 P|%p1, %r1, -0x7U; @!P bra L; } // end
  mov.b64 {%r1, %r2}, %rd1; ld.param.u64 %rd1, [out+8]; mov.f32 %f, 0f3F800000;
  mov.u32 %r3, dynamic+16; st.global.v2.b32 [%rd1+-4], {%r1, 5};
  cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes
    [%r1], [%rd1, {%r2, %r3}], [%r4];
  mov.f64 %rd2, 1.5e-3;
}
.section .debug_str { .b8 1 })";

TEST(Parse, DamagedTextsParseOrStop) {
  const std::string whole = kRich;
  for (size_t length = 0; length < whole.size(); ++length) {
    const std::string stop = StopOf(whole.substr(0, length));
    const bool in_body = length > whole.find("{ /*") && length <= whole.find(".section") - 2;
    EXPECT_TRUE(!in_body || stop != "") << length;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (const char damage : {' ', '{', '}', ';', '.', '"', '-', '0', 'e', '/', '|', '\xff'}) {
      std::string text = whole;
      text[at] = damage;
      StopOf(text);
    }
    StopOf(whole.substr(0, at) + whole.substr(at + 1));
  }
}

TEST(Parse, RunsWithBlocksAndSymbols) {
  const TestRun run = RunBody(R"(
    .shared .align 4 .b32 buffer[32];
    .const .u32 factors[2] = {3, 5};
    .reg .b32 x, address;
    mov.b32 x, %tid;
    { .reg .b32 x; .reg .pred P; mov.b32 x, 0;
      LOOP: add.u32 x, x, 1; setp.lt.u32 P, x, 10; @P bra LOOP; @!P bra DONE; mov.b32 x, 99; DONE:
      mov.b32 %r1, x; }
    ld.const.u32 %r2, [factors+4];
    mad.lo.u32 x, x, %r2, %r1;
    mov.u32 address, buffer; mad.lo.u32 address, %tid, 4, address;
    st.shared.u32 [address], x;
    ld.shared.u32 %r3, [address];
    mul.wide.u32 %rd1, %tid, 4; add.u64 %rd1, %rd1, %out;
    st.global.u32 [%rd1], %r3;)");
  EXPECT_EQ(run.stop, "");
  for (uint32_t lane = 0; lane < 32; ++lane) EXPECT_EQ(run.out[lane], lane * 5 + 10);
}

}  // namespace
}  // namespace ptx
