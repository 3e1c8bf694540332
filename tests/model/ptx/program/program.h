// A PTX module as data: kernels, their instructions and operands.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace ptx {

// Ends a run, or the reading of a module, because of something that the model cannot continue
// after. The text names the kernel and the line.
struct Stop : std::runtime_error {
  using std::runtime_error::runtime_error;
};

enum class Type : uint8_t {
  kNone,
  kPred,
  kB8,
  kB16,
  kB32,
  kB64,
  kB128,
  kU8,
  kU16,
  kU32,
  kU64,
  kS8,
  kS16,
  kS32,
  kS64,
  kF16,
  kBF16,
  kF16x2,
  kBF16x2,
  kF32,
  kTF32,
  kF64,
  kE4M3,
  kE5M2,
  kE4M3x2,
  kE5M2x2,
};
// The type of a modifier ("f32", "bf16x2"), or kNone.
Type TypeNamed(std::string_view name);
int Bytes(Type type);
bool IsFloat(Type type);   // f16, bf16, f32, tf32, f64 and the packed ones
bool IsSigned(Type type);  // s8 to s64

enum class Space : uint8_t { kGeneric, kGlobal, kShared, kParam, kConst, kLocal };

// The lanes of a warp: one value each, in the low bits. The bits above a narrower value are zero.
using Lanes = std::array<uint64_t, 32>;
constexpr uint32_t kAllLanes = 0xffffffff;

struct Operand {
  enum Kind : uint8_t {
    kNone,
    kRegister,   // `index` in Warp::registers
    kPredicate,  // `index` in Warp::predicates
    kConstant,   // an immediate value: `bits`; `index` in Kernel::constants
    kSymbol,     // the address of a variable or parameter: `index` in Kernel::symbols, plus `bits`
    kSpecial,    // %tid.x, ...: `index` is a Special
    kLabel,      // `index` is the instruction that the label names
    kVector,     // {a, b, c}: `parts`
    kAddress,  // [base+offset] or [base, {x, y}]: `parts` are the base and the further ones; `bits`
               // is the offset
    kSink,     // _
  };
  Kind kind = kNone;
  Type type = Type::kNone;  // of a register: as declared; of a constant: kF32 for 0f, kF64 for 0d,
                            // else kNone
  bool negated = false;     // !p
  uint32_t index = 0;
  int64_t bits = 0;
  int second = -1;  // of d|p: the index of the predicate p, or -1
  std::vector<Operand> parts;
};

// The special registers that the model knows, in the order of kSpecialNames.
enum class Special : uint8_t {
  kTidX,
  kTidY,
  kTidZ,
  kNtidX,
  kNtidY,
  kNtidZ,
  kCtaidX,
  kCtaidY,
  kCtaidZ,
  kNctaidX,
  kNctaidY,
  kNctaidZ,
  kLaneid,
  kWarpid,
  kNwarpid,
  kClusterCtarank,
  kClusterNctarank,
  kClusterCtaidX,
  kClusterCtaidY,
  kClusterCtaidZ,
  kClusterNctaidX,
  kClusterNctaidY,
  kClusterNctaidZ,
  kClusteridX,
  kClusteridY,
  kClusteridZ,
  kNclusteridX,
  kNclusteridY,
  kNclusteridZ,
  kIsExplicitCluster,
  kSmid,
  kNsmid,
  kGlobaltimer,
  kClock,
  kClock64,
  kDynamicSmemSize,
  kTotalSmemSize,
  kLanemaskEq,
  kLanemaskLe,
  kLanemaskLt,
  kLanemaskGe,
  kLanemaskGt,
};

enum class Scope : uint8_t { kNone, kCta, kCluster, kGpu, kSystem };

struct Warp;
struct Instruction;

// The runs of an instruction, or of all with one opcode, by warps.
struct RunCounts {
  int64_t runs = 0;
  int64_t taken = 0;    // runs in which the guard let a lane through
  int64_t lanes = 0;    // that the guard let through, in all runs
  int64_t repeats = 0;  // runs that polled without success
};

// The next action of the warp after an instruction.
enum class Outcome : uint8_t {
  kNext,
  kJump,     // the lanes of the mask go to the label of operand 0
  kBlocked,  // to the next instruction, once Warp::wait is over
  kAgain,    // the instruction ran without success (a poll): others go first
  kExit,     // the lanes of the mask end
};
// Runs the instruction for the lanes of `mask`, which is never empty.
using Execute = Outcome (*)(Warp& warp, const Instruction& instruction, uint32_t mask);

struct Instruction {
  // From the text.
  std::string text;                       // as written, without the guard's line breaks
  int line = 0;                           // in the PTX, from 1
  int source_file = -1, source_line = 0;  // from .loc; -1: unknown
  std::vector<std::string>
      opcode;  // "ld.global.v4.f32": {"ld", "global", "v4", "f32"}; "::" stays inside a part
  std::vector<Operand> operands;
  int guard = -1;  // a predicate's index, or -1
  bool guard_negated = false;

  // From the decoder of its family. Each family says what it keeps in `variant` and `flags`.
  Execute execute = nullptr;
  bool converges = false;  // all live lanes of the warp (or of the member mask) run it together
  int members = -1;        // the operand with the member mask, or -1: all live lanes
  bool registers_async =
      false;  // wgmma.mma_async: its registers may be used by the next one without a fence
  Type type = Type::kNone,
       from = Type::kNone;  // of the result or the data; of the source, if it has another
  Space space = Space::kGeneric;
  Scope scope = Scope::kNone;  // of a strong access or a fence; kNone: weak
  bool acquires = false, releases = false;
  int count = 1;  // elements of a vector, matrices, N of a wgmma
  int variant = 0;
  uint32_t flags = 0;
  std::vector<uint32_t>
      registers;  // indices of all that it names, for the check of wgmma in flight

  RunCounts counts;
};

struct Symbol {
  std::string name;
  Space space = Space::kGeneric;
  uint64_t address =
      0;  // global and const: the address; shared: offset in the static part; param, local: offset
  uint64_t bytes = 0;
  bool dynamic = false;  // extern shared memory: begins after the static part
};

struct Kernel {
  std::string name;
  std::vector<Instruction> instructions;
  std::vector<Symbol> symbols;  // all that its operands name
  std::vector<Symbol> parameters;
  uint32_t parameter_bytes = 0;
  uint32_t static_shared_bytes = 0;
  uint32_t local_bytes = 0;      // a thread's
  std::vector<Lanes> constants;  // every lane holds the constant
  uint32_t register_count = 0, predicate_count = 0;
  uint32_t max_registers = 0;       // .maxnreg, or 0
  uint32_t required_threads = 0;    // .reqntid, or 0; of a CTA
  uint32_t max_threads = 0;         // .maxntid, or 0
  uint32_t cluster[3] = {0, 0, 0};  // .reqnctapercluster, or 0
};

struct Module {
  std::string target;  // "sm_90a"
  std::map<std::string, std::unique_ptr<Kernel>> kernels;
  std::vector<std::string> files;  // of .file, by number
  // The module's own variables in global and const memory. The addresses of their symbols are
  // addresses of these bytes.
  struct Variable {
    std::string name;
    std::unique_ptr<std::byte[]> storage;
    std::byte* data = nullptr;  // aligned as declared, at least to 128
    uint64_t bytes = 0;
  };
  std::vector<Variable> variables;
};

// Returns what warps have run so far of the module's kernels, by opcode ("ld.global.v4.f32").
std::map<std::string, RunCounts> CountOpcodes(const Module& module);

// Reads a module and decodes its instructions. Throws Stop for a text that is not PTX, and for an
// instruction that the model does not know, with its line.
std::unique_ptr<Module> ParseModule(std::string_view text);

}  // namespace ptx
