// The pinned memory that pending operations read, which the host must leave as it is.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "tests/model/memory.h"
#include "tests/model/races.h"

namespace model {

// Compares the bytes at the submission of an operation with those at its run, so it notices that
// the host has written to them meanwhile. Used under the model's lock.
class PinnedReads {
 public:
  explicit PinnedReads(const Memory& memory) : memory_(memory) {}

  // An operation with this number has been submitted.
  void Add(uint64_t number, const std::vector<Access>& accesses);
  // Returns false if bytes that the operation reads have changed. It is pending.
  bool AreWhole(uint64_t number) const;
  // The operation has ended.
  void Remove(uint64_t number) { pending_.erase(number); }
  // An operation has written to these bytes: their new values are those to keep.
  void Written(const Rectangle& bytes);
  // A kernel that runs as PTX may have written anywhere.
  void WrittenAnywhere() { pending_.clear(); }

 private:
  struct Read {
    Rectangle bytes;
    uint64_t sum = 0;
  };
  uint64_t Sum(const Rectangle& bytes) const;

  const Memory& memory_;
  std::map<uint64_t, std::vector<Read>> pending_;  // by the operation's number
};

}  // namespace model
