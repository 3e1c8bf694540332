// Text files that are part of the program, as proto/CMakeLists.txt compiles them in.
#pragma once

#include <vector>

namespace agmm {

struct ShippedText {
  const char* name;  // of the file, without .textproto
  const char* text;
};

// The files of deploy/machines, in the order of names.
const std::vector<ShippedText>& PresetTexts();
// The files of deploy/tuning, likewise; there may be none.
const std::vector<ShippedText>& TuningTexts();

}  // namespace agmm
