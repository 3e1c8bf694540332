// Settings of the programs in this folder, from the environment, and their reports.
//
//   PTX_FILE       the PTX
//   PTX_SEED       1
//   PTX_MODE       random, late or eager
//   PTX_RESIDENT   CTAs that are resident on a GPU
//   PTX_STARVED    GPU:CTA that goes on only when no other can
//   PTX_RACES      0: without the race check
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

inline RunOptions OptionsFromEnvironment() {
  RunOptions options;
  options.seed = std::strtoull(Setting("PTX_SEED", "1").c_str(), nullptr, 10);
  options.resident_ctas = std::atoi(Setting("PTX_RESIDENT", "4").c_str());
  options.mode = ModeNamed(Setting("PTX_MODE", "random"));
  options.instruction_limit = 20'000'000;
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

}  // namespace ptx
