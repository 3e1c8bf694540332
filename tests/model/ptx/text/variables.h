// Declarations of variables, in modules and in bodies of kernels.
#pragma once

#include <cstdint>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tests/model/ptx/program/program.h"
#include "tests/model/ptx/text/scanner.h"

namespace ptx {

struct Variable {
  std::string_view name;  // in the text
  Symbol symbol;          // of shared and local memory: without its address
  uint64_t alignment = 1;
  bool external = false;  // defined in another module
};
using ModuleVariables = std::unordered_map<std::string_view, Variable>;

inline uint64_t AlignUp(uint64_t value, uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}
// Takes the number after .align.
uint64_t ExpectAlignment(Scanner& scanner);
// Takes "[4][2]", if it is there. Returns the number of elements: 1 without brackets, 0 for "[]".
uint64_t TakeDimensions(Scanner& scanner);
// True if the directive begins a declaration that ParseVariables knows or refuses by name.
bool BeginsVariable(std::string_view directive);
// Takes a declaration up to its ';'. Those in global and const memory get storage in the module,
// with the values of the initialiser.
std::vector<Variable> ParseVariables(Scanner& scanner, Module& module);

}  // namespace ptx
