// Settings of the programs in this folder, from the environment, and their reports.
//
//   PTX_FILE       the PTX
//   PTX_SEED       1
//   PTX_MODE       random, late or eager
//   PTX_RESIDENT   CTAs that are resident on a GPU
//   PTX_STARVED    GPU:CTA that goes on only when no other can
//   PTX_RACES      0: without the race check
//   PTX_COUNTS     1: reports say what was run, by opcode
//   PTX_LIMIT      instructions after which a run stops; 0: none
//
// Exit status: 0 right and without findings, 1 wrong, 2 findings, 3 a stop.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <string>

#include "tests/model/ptx/state/state.h"

namespace ptx {

inline std::string Setting(const char* name, const char* otherwise) {
  const char* const value = std::getenv(name);
  return value ? value : otherwise;
}

inline Mode ModeNamed(const std::string& name) {
  if (name == "late") return Mode::kLate;
  if (name == "eager") return Mode::kEager;
  if (name == "random") return Mode::kRandom;
  throw Stop("no mode " + name);
}

inline int64_t InstructionLimit() { return std::atoll(Setting("PTX_LIMIT", "20000000").c_str()); }
inline bool ChecksRaces() { return Setting("PTX_RACES", "1") == "1"; }

inline RunOptions OptionsFromEnvironment() {
  RunOptions options;
  options.seed = std::strtoull(Setting("PTX_SEED", "1").c_str(), nullptr, 10);
  options.resident_ctas = std::atoi(Setting("PTX_RESIDENT", "4").c_str());
  options.mode = ModeNamed(Setting("PTX_MODE", "random"));
  options.instruction_limit = InstructionLimit();
  std::sscanf(Setting("PTX_STARVED", "").c_str(), "%d:%d", &options.starved_gpu,
              &options.starved_cta);
  return options;
}

inline std::unique_ptr<Module> ModuleFromFile(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw Stop("cannot read " + path);
  std::stringstream text;
  text << file.rdbuf();
  return ParseModule(text.str());
}

// A line for each finding, and one with the counts.
inline std::string ReportOf(const World& world) {
  std::string report = "instructions: " + std::to_string(world.counts.instructions) + "\n";
  for (const auto& [text, count] : world.races.findings()) {
    report += "finding (" + std::to_string(count) + " times): " + text + "\n";
  }
  return report;
}

// With PTX_COUNTS: a line for the bytes of bulk copies, and one for each opcode.
inline std::string CountsOf(const World& world, const Module& module) {
  if (Setting("PTX_COUNTS", "0") != "1") return "";
  std::string report = "bytes: " + std::to_string(world.counts.bulk_loaded_bytes) + " " +
                       std::to_string(world.counts.bulk_stored_bytes) + "\n";
  for (const auto& [opcode, counts] : CountOpcodes(module)) {
    report += "count: " + opcode + " " + std::to_string(counts.runs) + " " +
              std::to_string(counts.taken) + " " + std::to_string(counts.lanes) + " " +
              std::to_string(counts.repeats) + "\n";
  }
  return report;
}

}  // namespace ptx
