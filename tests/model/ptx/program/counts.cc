#include "tests/model/ptx/program/program.h"

namespace ptx {

std::map<std::string, RunCounts> CountOpcodes(const Module& module) {
  std::map<std::string, RunCounts> counts;
  for (const auto& [name, kernel] : module.kernels) {
    for (const Instruction& instruction : kernel->instructions) {
      if (instruction.counts.runs == 0) continue;
      std::string opcode;
      for (const std::string& part : instruction.opcode)
        opcode += (opcode.empty() ? "" : ".") + part;
      RunCounts& sum = counts[opcode];
      sum.runs += instruction.counts.runs;
      sum.taken += instruction.counts.taken;
      sum.lanes += instruction.counts.lanes;
      sum.repeats += instruction.counts.repeats;
    }
  }
  return counts;
}

}  // namespace ptx
