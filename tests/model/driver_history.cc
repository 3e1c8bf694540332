#include <vector>

#include "tests/model/history_calls.h"
#include "tests/model/stream.h"

using namespace model;

void agmmModelRecord(int slow_gpu) {
  const std::lock_guard lock(TheMachine().mutex);
  TheMachine().slow_gpu = slow_gpu;
  TheMachine().history.Record();
}

const agmmModelWait* agmmModelWaits(int* count) {
  static std::vector<agmmModelWait> waits;
  const std::lock_guard lock(TheMachine().mutex);
  waits = TheMachine().history.Waits();
  *count = static_cast<int>(waits.size());
  return waits.data();
}

agmmModelLoss agmmModelWithout(int wait) {
  const std::lock_guard lock(TheMachine().mutex);
  return TheMachine().history.Without(wait);
}
