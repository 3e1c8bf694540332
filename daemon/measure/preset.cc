#include "daemon/measure/preset.h"

#include "proto/convert/machine_messages.h"
#include "proto/convert/machine_text.h"

namespace agmm::measure {

v1::Machine PresetFor(const std::string& kind) {
  // Both are part of the program.
  v1::Machine machine = ToProto(*Preset(kind == "cuda" ? "h100-nvlink" : "cpu-tcp"));
  machine.clear_heap_bytes();  // because the world knows its heaps
  return machine;
}

}  // namespace agmm::measure
