// One instruction on a table of values.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "tests/model/ptx/engine/test_kernel.h"

namespace ptx {

// The bits of up to three sources and of the result. Narrower values are in the low bits.
struct Row {
  uint64_t sources[3] = {};
  uint64_t result = 0;
};

// Loads source 1 into %h1, %r1, %f1, %rd1 and %d1, and sources 2 and 3 likewise. The registers of
// number 4 are free, those of number 5 are for the result. %p5 counts as 1 or 0.
inline std::string LoadSources() {
  std::string text =
      "mul.wide.u32 %rd60, %tid, 8; add.u64 %rd61, %in, %rd60; add.u64 %rd62, %out, %rd60;\n";
  for (int i = 1; i <= 3; ++i) {
    const std::string number = std::to_string(i),
                      place = "[%rd61+" + std::to_string((i - 1) * 256) + "];\n";
    text += "ld.global.b16 %h" + number + ", " + place + "ld.global.b32 %r" + number + ", " + place;
    text +=
        "ld.global.b32 %f" + number + ", " + place + "ld.global.b64 %rd" + number + ", " + place;
    text += "ld.global.b64 %d" + number + ", " + place;
  }
  return text;
}

inline std::string StoreResult(const std::string& result, int at) {
  const std::string place = "[%rd62+" + std::to_string(at) + "], ";
  if (result[1] == 'p')
    return "selp.b64 %rd63, 1, 0, " + result + "; st.global.b64 " + place + "%rd63;\n";
  const bool wide = result[1] == 'd' || result[2] == 'd';
  const std::string type = result[1] == 'h' ? "b16 " : wide ? "b64 " : "b32 ";
  return "st.global.b64 " + place + "0; st.global." + type + place + result + ";\n";
}
inline std::string ClearResult(const std::string& result) {
  if (result[1] == 'p') return "setp.ne.u32 " + result + ", 0, 0;\n";
  const bool wide = result[1] == 'd' || result[2] == 'd';
  return "mov." +
         std::string(result[1] == 'h' ? "b16 "
                     : wide           ? "b64 "
                                      : "b32 ") +
         result + ", 0;\n";
}

// With a guard before each instruction.
inline std::string Guarded(const std::string& instructions, const std::string& guard) {
  std::string text = guard + instructions;
  for (size_t at = text.find("; "); at != std::string::npos; at = text.find("; ", at + 2)) {
    text.insert(at + 2, guard);
  }
  return text;
}

// Runs an instruction, or several, for all lanes, and for the odd ones alone, and compares with the
// table, of up to 32 rows.
inline void CheckRows(const std::string& instruction, const std::vector<Row>& rows,
                      const std::string& result = "%r5") {
  SCOPED_TRACE(instruction);
  ASSERT_LE(rows.size(), 32u);
  TestLaunch launch;
  launch.in.resize(3 * 64);
  launch.out_words = 2 * 64;
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    for (size_t i = 0; i < 3; ++i) {
      launch.in[i * 64 + lane * 2] = static_cast<uint32_t>(rows[lane].sources[i]);
      launch.in[i * 64 + lane * 2 + 1] = static_cast<uint32_t>(rows[lane].sources[i] >> 32);
    }
  }
  const TestRun run =
      RunBody(LoadSources() + instruction + "\n" + StoreResult(result, 0) + ClearResult(result) +
                  "and.b32 %r60, %tid, 1; setp.ne.u32 %p15, %r60, 0;\n" +
                  Guarded(instruction, "@%p15 ") + "\n" + StoreResult(result, 256),
              launch);
  ASSERT_EQ(run.stop, "");
  for (size_t lane = 0; lane < rows.size(); ++lane) {
    const auto at = [&](size_t word) { return run.out[word] | uint64_t{run.out[word + 1]} << 32; };
    EXPECT_EQ(at(lane * 2), rows[lane].result)
        << "row " << lane << std::hex << " is " << at(lane * 2);
    EXPECT_EQ(at(64 + lane * 2), lane % 2 ? rows[lane].result : 0) << "row " << lane << ", guarded";
  }
}

// Expects that the model refuses the instruction when it reads the kernel.
inline void ExpectUnknown(const std::string& instruction) {
  const TestRun run = RunBody(instruction);
  EXPECT_NE(run.stop.find("unknown instruction"), std::string::npos)
      << instruction << ": " << run.stop;
}

}  // namespace ptx
