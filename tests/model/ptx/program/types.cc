// Facts about the types of PTX.
#include <iterator>
#include <string_view>

#include "tests/model/ptx/program/program.h"

namespace ptx {
namespace {

struct TypeFacts {
  std::string_view name;
  int bytes;
  bool is_float = false;
  bool is_signed = false;
};

// In the order of Type.
constexpr TypeFacts kTypes[] = {
    {"", 0},
    {"pred", 0},
    {"b8", 1},
    {"b16", 2},
    {"b32", 4},
    {"b64", 8},
    {"b128", 16},
    {"u8", 1},
    {"u16", 2},
    {"u32", 4},
    {"u64", 8},
    {.name = "s8", .bytes = 1, .is_signed = true},
    {.name = "s16", .bytes = 2, .is_signed = true},
    {.name = "s32", .bytes = 4, .is_signed = true},
    {.name = "s64", .bytes = 8, .is_signed = true},
    {.name = "f16", .bytes = 2, .is_float = true},
    {.name = "bf16", .bytes = 2, .is_float = true},
    {.name = "f16x2", .bytes = 4, .is_float = true},
    {.name = "bf16x2", .bytes = 4, .is_float = true},
    {.name = "f32", .bytes = 4, .is_float = true},
    {.name = "tf32", .bytes = 4, .is_float = true},
    {.name = "f64", .bytes = 8, .is_float = true},
    {"e4m3", 1},
    {"e5m2", 1},
    {"e4m3x2", 2},
    {"e5m2x2", 2},
};
static_assert(std::size(kTypes) == static_cast<size_t>(Type::kE5M2x2) + 1);

const TypeFacts& FactsOf(Type type) { return kTypes[static_cast<int>(type)]; }

}  // namespace

Type TypeNamed(std::string_view name) {
  for (size_t i = 1; i < std::size(kTypes); ++i) {
    if (kTypes[i].name == name) return static_cast<Type>(i);
  }
  return Type::kNone;
}

int Bytes(Type type) { return FactsOf(type).bytes; }
bool IsFloat(Type type) { return FactsOf(type).is_float; }
bool IsSigned(Type type) { return FactsOf(type).is_signed; }

}  // namespace ptx
