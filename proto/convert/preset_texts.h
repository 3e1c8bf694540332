// The files of deploy/machines, as proto/CMakeLists.txt makes them part of the program.
#pragma once

#include <vector>

namespace agmm {

struct PresetText {
  const char* name;  // of the file, without .textproto
  const char* text;
};

// In the order of names.
const std::vector<PresetText>& PresetTexts();

}  // namespace agmm
