#include <string>

#include "tests/model/history_calls.h"
#include "tests/model/stream.h"

using namespace model;

namespace {

// "stream 5 operation 3 of 8": of those of the stretch.
std::string Place(const StretchPlace& place) {
  return Format("stream %d operation %llu of %llu", place.stream,
                (unsigned long long)place.operation, (unsigned long long)place.operations);
}

}  // namespace

void agmmModelRecord(int slow_gpu) {
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().slow_gpu = slow_gpu;
  TheMachine().history.Record();
}

const char* agmmModelVerdicts() {
  static std::string text;
  const std::lock_guard lock(TheMachine().mutex);
  text.clear();
  for (const WaitVerdict& verdict : TheMachine().history.Verdicts()) {
    text += Format("%s %s, %s\n", verdict.needed ? "needed" : "spare", Place(verdict.waits).c_str(),
                   Place(verdict.awaited).c_str());
  }
  return text.c_str();
}
