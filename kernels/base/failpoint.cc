#include "kernels/base/failpoint.h"

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>

#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"

namespace agmm::failpoint {
namespace {

struct Armed {
  int64_t left = 0, hits = 0;
};

struct Registry {
  std::mutex mutex;  // guards counts
  std::map<std::string, Armed, std::less<>> counts;
  std::atomic<int> armed{0};

  Registry() {
    const char* list = std::getenv("AGMM_FAILPOINTS");
    if (list == nullptr) return;
    for (absl::string_view item : absl::StrSplit(list, ',', absl::SkipEmpty())) {
      std::pair<std::string, std::string> entry = absl::StrSplit(item, absl::MaxSplits('=', 1));
      int64_t count = -1;
      if (entry.second != "*" && !absl::SimpleAtoi(entry.second, &count)) count = 1;
      counts[entry.first] = {count, 0};
    }
    armed = static_cast<int>(counts.size());
  }
};

Registry& Global() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

void Arm(absl::string_view name, int64_t count) {
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  registry.counts[std::string(name)] = {count, 0};
  registry.armed = static_cast<int>(registry.counts.size());
}

void Disarm(absl::string_view name) {
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  registry.counts.erase(std::string(name));
  registry.armed = static_cast<int>(registry.counts.size());
}

bool AnyIsArmed() { return Global().armed.load(std::memory_order_relaxed) > 0; }

bool Hit(absl::string_view name) {
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  auto it = registry.counts.find(std::string(name));
  if (it == registry.counts.end() || it->second.left == 0) return false;
  if (it->second.left > 0) --it->second.left;
  ++it->second.hits;
  return true;
}

int64_t Hits(absl::string_view name) {
  Registry& registry = Global();
  std::lock_guard lock(registry.mutex);
  const auto it = registry.counts.find(std::string(name));
  return it == registry.counts.end() ? 0 : it->second.hits;
}

}  // namespace agmm::failpoint
