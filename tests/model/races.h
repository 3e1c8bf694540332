// The race check: the order of operations, and the bytes that each of them touches.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace model {

// The part of each stream that has happened before a point: by stream number, a count of its
// operations.
using Clock = std::vector<uint64_t>;
void Join(Clock& into, const Clock& other);
// Returns true if operation `count` of `stream` is before `clock`.
bool Covers(const Clock& clock, int stream, uint64_t count);

// `rows` pieces of `row_bytes`, `pitch_bytes` apart.
struct Rectangle {
  uint64_t address = 0;
  int64_t rows = 1, row_bytes = 0, pitch_bytes = 0;

  // From the first byte to the end of the last one.
  int64_t extent_bytes() const { return (rows - 1) * pitch_bytes + row_bytes; }
  uint64_t end() const { return address + extent_bytes(); }
};
// Returns true if they share a byte.
bool Overlap(const Rectangle& a, const Rectangle& b);

struct Access {
  Rectangle bytes;
  bool writes = false;
};

// The operations that touched each byte. Addresses are physical, so that two mappings of one memory
// meet. The host's clock has all operations whose end the host has seen.
class Races {
 public:
  // An operation of `stream`, its count there, and its name.
  struct Operation {
    int stream = 0;
    uint64_t count = 0;
    std::string name;
  };

  // Adds the touches of `operation`, whose clock covers itself. Returns a race, or "". In a race,
  // an earlier operation that `clock` does not cover touches one of its bytes, and one of the two
  // writes.
  [[nodiscard]] std::string Add(const Operation& operation, const Clock& clock, const Clock& host,
                                const std::vector<Access>& accesses);
  // Returns the name of an operation on these bytes whose end the host has not seen, or "".
  std::string Unseen(const Rectangle& bytes, const Clock& host) const;
  // Removes a stream whose GPU is lost, because none of its work runs.
  void ForgetStream(int stream);
  // Removes freed memory.
  void Forget(uint64_t address, int64_t bytes);

 private:
  struct Touch {
    Access access;
    Operation by;
  };
  // The touches that a later operation can conflict with, by region: a GPU's memory, or the host's.
  std::map<uint64_t, std::vector<Touch>> touches_;
};

}  // namespace model
