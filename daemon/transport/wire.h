// Active-message headers, little-endian, each of which ends with a keyed check of the preceding
// bytes.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <memory>
#include <type_traits>

#include "absl/status/statusor.h"

namespace agmm::wire {

static_assert(std::endian::native == std::endian::little, "headers are sent as they are in memory");

constexpr uint16_t kVersion = 1;

// The active-message id, repeated in the header so that the check covers it.
enum Kind : uint16_t {
  kPlan = 1,   // a message of a plan, with or without bytes
  kWrite = 2,  // bytes for a block; answered by kWritten
  kRead = 3,   // asks for a block; answered by kReadBack
  kWritten = 4,
  // Carries the requested bytes; or, like kWritten, a status code with its message as payload.
  kReadBack = 5,
  kPing = 6,  // answered by kPong
  kPong = 7,
  kGreet = 8,  // the first message of a connection, which `rank` numbers
};
constexpr Kind kKinds[] = {kPlan, kWrite, kRead, kWritten, kReadBack, kPing, kPong, kGreet};

struct Envelope {
  uint16_t version = 0;
  uint16_t kind = 0;
  int32_t source_node = 0;
  uint64_t generation = 0;
};

struct PlanHeader {
  Envelope envelope;
  uint64_t plan = 0, epoch = 0;
  int32_t source_rank = 0, step = 0, part = 0, reserved = 0;
  int64_t bytes = 0;  // from the sender's schedule; the receiver compares it with its own
  uint64_t check = 0;
};

struct BulkHeader {
  Envelope envelope;
  uint64_t request = 0, tensor = 0;
  int32_t rank = 0;
  int32_t code = 0;  // of answers: absl::StatusCode
  int64_t row_begin = 0, row_end = 0, col_begin = 0, col_end = 0;
  int64_t bytes = 0;  // of the block
  uint64_t check = 0;
};

static_assert(sizeof(Envelope) == 16 && sizeof(PlanHeader) == 64 && sizeof(BulkHeader) == 88);
static_assert(std::has_unique_object_representations_v<PlanHeader> &&
              std::has_unique_object_representations_v<BulkHeader>);

// SipHash-2-4 under one key. Thread-compatible.
class HeaderKey {
 public:
  // Errors: FAILED_PRECONDITION if OpenSSL has no SIPHASH.
  static absl::StatusOr<std::unique_ptr<HeaderKey>> Make(const std::array<uint8_t, 16>& key);
  ~HeaderKey();
  HeaderKey(const HeaderKey&) = delete;
  HeaderKey& operator=(const HeaderKey&) = delete;

  template <typename Header>
  bool Seal(Header* header) const {
    return Sum(header, sizeof(Header) - sizeof(header->check), &header->check);
  }
  template <typename Header>
  bool Holds(const Header& header) const {
    uint64_t sum = 0;
    return Sum(&header, sizeof(Header) - sizeof(header.check), &sum) && sum == header.check;
  }

 private:
  HeaderKey(void* context, const std::array<uint8_t, 16>& key) : context_(context), key_(key) {}
  bool Sum(const void* data, size_t size, uint64_t* sum) const;

  void* const context_;  // EVP_MAC_CTX
  const std::array<uint8_t, 16> key_;
};

}  // namespace agmm::wire
