// Bounds clients' use of HTTP/2 itself, because gRPC does not bound it. A client that begins calls
// and then resets them, or closes its connection, faster than the server can end them ("rapid
// reset") would take its memory and its threads. So would one that sends headers without end.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "daemon/rpc/header_size.h"

namespace agmm {

// Permits `most` things at once, and `per_second` more each second. Thread-safe.
class Allowance {
 public:
  Allowance(int64_t most, int64_t per_second)
      : most_(most), per_second_(per_second), left_(static_cast<double>(most)) {}
  // Takes `count`. If less was left, takes everything and returns false.
  bool Take(int64_t count, int64_t now_ns);
  // Takes `count` even if less is left; at most half of `most` is then owed.
  void Charge(int64_t count, int64_t now_ns);
  // May be negative.
  int64_t Left(int64_t now_ns);
  // Changes the rate from now on.
  void SetPerSecond(int64_t per_second, int64_t now_ns);

  int64_t most() const { return most_; }
  int64_t per_second();

 private:
  // With the lock.
  void Refill(int64_t now_ns);

  const int64_t most_;
  std::mutex mutex_;  // guards what follows
  int64_t per_second_;
  double left_;
  int64_t refilled_ns_ = 0;
};

// The headers of all unanswered calls of one server: at most three times `most_bytes`.
struct HeldHeaders {
  // Returns how many bytes a host may hold now: `max_held`; a sixteenth of it once the total
  // exceeds `most_bytes`; also at most `most_bytes` / `most_connections` once the total exceeds
  // twice `most_bytes`.
  int64_t MostOfHost(int64_t max_held) const;

  const int64_t most_bytes;
  const int64_t most_connections;  // of the server
  std::atomic<int64_t> bytes = 0;
};

// Counts the requests of all clients at one host to one server. Thread-safe.
struct HostLoad {
  Allowance control;               // resets, pings, settings; calls left behind by a connection
  Allowance headers;               // bytes, counted by HeaderSize, like those below
  const int64_t max_open;          // calls that the server has not answered
  const int64_t max_held;          // bytes of their headers
  HeldHeaders* const held_by_all;  // outlives this
  std::atomic<int64_t> open = 0, held = 0;
  std::atomic<int> connections = 0;
};

// The header of a frame (RFC 9113, 4.1).
struct FrameHeader {
  uint32_t size = 0;  // of the payload
  unsigned char type = 0, flags = 0;
  uint32_t stream = 0;
};

// Finds frames in a stream of bytes.
class FrameWalk {
 public:
  // `skip`: bytes before the first frame.
  explicit FrameWalk(size_t skip) : skip_(skip) {}
  // Calls `see`(header) for each frame whose header is complete with `bytes`, and `read`(header,
  // part) for each part of its payload.
  template <typename See, typename Read>
  void Walk(absl::string_view bytes, See see, Read read);

 private:
  static constexpr size_t kHeaderBytes = 9;
  size_t skip_;  // bytes before the next header
  unsigned char bytes_[kHeaderBytes];
  size_t header_bytes_ = 0;
  FrameHeader header_;
};

// Follows one connection of a server. Thread-safe.
class FrameMeter {
 public:
  explicit FrameMeter(std::shared_ptr<HostLoad> host);
  ~FrameMeter();
  // Called when the client has sent `bytes`. Returns why the connection has to break, because the
  // client has exceeded a bound; empty otherwise.
  std::string Received(absl::string_view bytes, int64_t now_ns);
  // Called when the server has sent `bytes`.
  void Sent(absl::string_view bytes);
  // Called when the connection has ended. The server may still read bytes that arrived before.
  void Close(int64_t now_ns);
  // Lifts all bounds for the connection.
  void Trust();
  bool trusted() const;

 private:
  // A header block: the frames HEADERS and CONTINUATION of one stream.
  struct Block {
    uint32_t stream = 0;
    uint32_t skip = 0;  // bytes before the fields
    int64_t bytes = 0;
  };

  struct Counts;

  // All require the lock.
  void Count(const FrameHeader& header, Counts* counts);
  // Takes the counts from the allowances. Returns why the connection has to break, or "".
  std::string ReasonToBreak(const Counts& counts, int64_t now_ns);
  void EndCall(uint32_t stream);
  void EndAllCalls();
  // Returns the bytes to add for a part of block_.
  int64_t Measure(absl::string_view part);
  void Hold(int64_t bytes);

  const std::shared_ptr<HostLoad> host_;
  mutable std::mutex mutex_;  // guards what follows
  FrameWalk received_, sent_;
  Allowance calls_;
  // The bytes of the headers, by stream, of calls that were begun here, and neither answered nor
  // reset.
  absl::flat_hash_map<uint32_t, int64_t> open_;
  Block block_;
  HeaderSize headers_;
  bool trusted_ = false, closed_ = false;
};

}  // namespace agmm
