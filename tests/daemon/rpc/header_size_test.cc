// Headers count as at least the memory that gRPC needs for them, for any bytes from a client.
#include "daemon/rpc/header_size.h"

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>

#include "daemon/rpc/frame_meter.h"
#include "gtest/gtest.h"
#include "tests/daemon/rpc/http2_frames.h"
#include "tests/support/seed.h"

namespace agmm {
namespace {

// Fields of each form.
const std::string kTableSize = Bytes({0x3f, 0xe1, 0x1f}), kNoValue = Bytes({0, 1, 'a', 0}),
                  kLongValue =
                      Bytes({0x0f, 0x21, 0x7f, 0x81, 1}) + std::string(0x7f + 0x81, '\x80');

TEST(HeaderSize, CountsFieldsOfEachFormInAnyParts) {
  const std::string block = kTableSize + kIndexed + kNewName + kLongValue + kNoValue + kIndexed;
  for (size_t step = 1; step <= block.size(); ++step) {
    HeaderSize size;
    int64_t bytes = 0;
    for (size_t at = 0; at < block.size(); at += step) bytes += size.Read(block.substr(at, step));
    EXPECT_EQ(bytes, 6 * kFieldBytes + static_cast<int64_t>(block.size()))
        << "in parts of " << step;
    EXPECT_TRUE(size.complete());
  }
}

TEST(HeaderSize, AnIntegerMayHaveMoreBytesThanItNeeds) {
  HeaderSize size;
  const std::string length = Bytes({0x7f}) + std::string(10, '\x80') + Bytes({0});
  size.Read(Bytes({0, 1, 'a'}) + length + std::string(0x7f, 'v'));
  ASSERT_TRUE(size.complete());
  EXPECT_EQ(size.Read(std::string(1000, '\xa0')), 1000 * (1 + kFieldBytes));
}

// gRPC copies the names of its table for each field that refers to them.
TEST(HeaderSize, AReferenceCountsTheLargestEntryOfTheTable) {
  HeaderSize size;
  const std::string latest = Bytes({0x80 | 62});
  EXPECT_EQ(size.Read(latest), 1 + kFieldBytes);
  size.Read(Bytes({0x40, 100}) + std::string(100, 'n') + Bytes({20}) + std::string(20, 'v'));
  EXPECT_EQ(size.Read(latest), 1 + kFieldBytes + 120);
  EXPECT_EQ(size.Read(Bytes({0x40 | 62, 0})), 2 + kFieldBytes + 120);
  EXPECT_EQ(size.Read(kIndexed), 1 + kFieldBytes);
}

TEST(HeaderSize, HuffmanCodesCountAsTheLongestTextThatTheyMayBe) {
  HeaderSize size;
  EXPECT_EQ(size.Read(Bytes({0, 0x80 | 5, 1, 2, 3, 4, 5, 0x80})), 8 + kFieldBytes + 3);
}

// A reference for the memory that gRPC 1.51 holds for the frames of one connection, after its
// sources: it parses fields from all bytes that have arrived, ignores the flag of padding, and
// waits for the rest of an incomplete field.
class Grpc {
 public:
  // Returns false once gRPC has closed the connection.
  bool Frame(char type, char flags, uint32_t stream, const std::string& payload) {
    const bool continued = type == kContinuation, end = (flags & kEndHeaders) != 0;
    if (continued ? stream != open_ : open_ != 0) return false;
    open_ = end ? 0 : stream;
    if (!continued) eof_ = (flags & kEndStream) != 0;
    if (!continued && !streams_.contains(stream) && stream % 2 == 1 && stream > last_) {
      last_ = stream;
      streams_[stream];
    }
    const auto call = streams_.find(stream);
    const bool skip = call == streams_.end() || call->second.closed || call->second.blocks == 2;
    if (!skip && call->second.blocks == 1 && !eof_) return false;
    // A bug of gRPC: reversed for headers that it skips.
    const bool boundary = end != skip;
    unparsed_ += payload;
    size_t at = 0;
    if (!continued && (flags & kHasPriority) != 0) {
      if (unparsed_.size() < 5) return !boundary;
      at = 5;
    }
    while (at < unparsed_.size()) {
      const size_t begin = at;
      const std::optional<int64_t> bytes = Field(&at);
      if (!bytes.has_value()) {
        at = begin;
        if (failed_ || boundary) return false;
        break;
      }
      if (skip || *bytes == 0) continue;
      held_ += *bytes;
      ++fields_;
    }
    unparsed_.erase(0, at);
    if (!skip && boundary) {
      ++call->second.blocks;
      call->second.closed = eof_;
    }
    return true;
  }
  int64_t held() const { return held_; }
  int64_t fields() const { return fields_; }

 private:
  static constexpr int64_t kMeasuredBytes = 240;  // of a field
  struct Call {
    int blocks = 0;
    bool closed = false;
  };
  struct Entry {
    int64_t name, value;
    int64_t size() const { return name + value + 32; }
  };

  std::nullopt_t Fail() {
    failed_ = true;
    return std::nullopt;
  }
  std::optional<int64_t> Integer(size_t* at, int most, int first) {
    int64_t value = first & most;
    if (value < most) return value;
    for (int shift = 0; *at < unparsed_.size(); shift += 7) {
      const int byte = static_cast<unsigned char>(unparsed_[(*at)++]);
      if (shift > 28 ? (byte & 0x7f) != 0 : ((int64_t{byte & 0x7f} << shift) + value) >> 32 != 0)
        return Fail();
      if (shift <= 28) value += int64_t{byte & 0x7f} << shift;
      if ((byte & 0x80) == 0) return value;
    }
    return std::nullopt;
  }
  std::optional<int64_t> Text(size_t* at) {
    if (*at >= unparsed_.size()) return std::nullopt;
    const int first = static_cast<unsigned char>(unparsed_[(*at)++]);
    const std::optional<int64_t> length = Integer(at, 0x7f, first);
    if (!length.has_value() || unparsed_.size() - *at < static_cast<size_t>(*length))
      return std::nullopt;
    *at += static_cast<size_t>(*length);
    return (first & 0x80) != 0 ? *length * 8 / 5 : *length;
  }
  // Returns the bytes held; 0 for none.
  std::optional<int64_t> Field(size_t* at) {
    const int first = static_cast<unsigned char>(unparsed_[(*at)++]);
    const bool resize = (first & 0xe0) == 0x20, indexed = (first & 0x80) != 0;
    const bool added = (first & 0xc0) == 0x40;
    const int most = indexed ? 0x7f : added ? 0x3f : resize ? 0x1f : 0x0f;
    const std::optional<int64_t> index = Integer(at, most, first);
    if (!index.has_value()) return std::nullopt;
    if (resize) {
      if (*index > 4096) return Fail();
      most_ = *index;
      Evict(0);
      return 0;
    }
    const auto dynamic = static_cast<size_t>(*index - 62);
    if (indexed ? *index == 0 || (*index > 61 && dynamic >= table_.size())
                : *index > 61 && dynamic >= table_.size())
      return Fail();
    Entry entry = *index > 61 ? table_[dynamic] : Entry{0, 0};
    if (!indexed) {
      if (*index == 0) {
        const std::optional<int64_t> name = Text(at);
        if (!name.has_value()) return std::nullopt;
        entry.name = *name;
      }
      const std::optional<int64_t> value = Text(at);
      if (!value.has_value()) return std::nullopt;
      entry.value = *value;
    }
    if (added) {
      Evict(entry.size());
      if (entry.size() <= most_) table_.push_front(entry);
    }
    return kMeasuredBytes + entry.name + entry.value;
  }
  void Evict(int64_t more) {
    int64_t used = more;
    for (const Entry& entry : table_) used += entry.size();
    for (; used > most_ && !table_.empty(); table_.pop_back()) used -= table_.back().size();
  }

  std::string unparsed_;
  std::deque<Entry> table_;  // the latest first
  int64_t most_ = 4096;
  std::map<uint32_t, Call> streams_;
  uint32_t open_ = 0, last_ = 0;  // the stream whose headers continue, and the highest one
  bool eof_ = false, failed_ = false;
  int64_t held_ = 0, fields_ = 0;
};

// Connections that mix fields of each form with everything that could confuse a parser.
class Connection {
 public:
  explicit Connection(uint64_t seed) : random_(seed) {}

  int Draw(int below) { return static_cast<int>(random_() % static_cast<uint64_t>(below)); }
  bool Rarely() { return Draw(12) == 0; }
  std::string Block() {
    std::string block;
    for (int i = 1 + Draw(6); i > 0; --i) block += Field();
    return block;
  }

 private:
  std::string Integer(int first, int most, int value) {
    if (value < most) return Bytes({first | value});
    std::string bytes = Bytes({first | most});
    value -= most;
    const int spare = Rarely() ? Draw(12) : 0;
    for (; value > 0x7f || (spare > 0 && bytes.size() < 5); value >>= 7)
      bytes += Bytes({0x80 | (value & 0x7f)});
    bytes += Bytes({spare > 0 ? 0x80 | value : value});
    if (spare > 0) bytes += std::string(static_cast<size_t>(spare), '\x80') + Bytes({0});
    return bytes;
  }
  std::string Text() {
    const int size = Rarely() ? Draw(3000) : Draw(150);
    std::string text = Integer(Draw(4) == 0 ? 0x80 : 0, 0x7f, size);
    // Mostly bytes that would be fields.
    for (int i = 0; i < size; ++i) text += static_cast<char>(Draw(3) == 0 ? Draw(256) : 0xa0);
    return text;
  }
  std::string Field() {
    const int index = Draw(5) == 0 ? 62 + Draw(4) : 1 + Draw(61);
    switch (Draw(8)) {
      case 0: return Bytes({0x40}) + Text() + Text();
      case 1: return Bytes({Draw(2) << 4}) + Text() + Text();
      case 2: return Integer(Draw(2) << 4, 0x0f, index) + Text();
      case 3: return Integer(0x40, 0x3f, index) + Text();
      case 4: return Rarely() ? Integer(0x20, 0x1f, Draw(4097)) : Integer(0x80, 0x7f, index);
      case 5: return Rarely() ? Bytes({Draw(256), Draw(256), Draw(256)}) : std::string();
      default: return std::string(static_cast<size_t>(1 + Draw(8)), '\xa0');
    }
  }

  std::mt19937_64 random_;
};

TEST(HeaderSize, CountsAtLeastWhatGrpcHoldsForAnyFrames) {
  constexpr int64_t kMany = int64_t{1} << 40;
  int64_t fields = 0, refused = 0;
  for (uint64_t trial = 0; trial < 3'000; ++trial) {
    HeldHeaders all{.most_bytes = kMany, .most_connections = 1};
    const std::shared_ptr<HostLoad> host{new HostLoad{.control = {kMany, kMany},
                                                      .headers = {kMany, kMany},
                                                      .max_open = kMany,
                                                      .max_held = kMany,
                                                      .held_by_all = &all}};
    FrameMeter meter(host);
    std::string why = meter.Received(kPreface, 1);
    Connection client(TestSeed() * 1'000'003 + trial);
    Grpc grpc;
    bool open = true;
    uint32_t newest = 1, stream = 1;
    const auto send = [&](char type, char flags, const std::string& payload) {
      const std::string frame = FrameOf(type, payload, flags, stream);
      for (size_t at = 0; at < frame.size() && why.empty();) {
        const auto step = static_cast<size_t>(1 + client.Draw(client.Rarely() ? 4 : 20'000));
        why = meter.Received(frame.substr(at, step), 1);
        at += step;
      }
      if (!why.empty()) return false;  // gRPC does not read it
      open = grpc.Frame(type, flags, stream, payload);
      EXPECT_GE(host->held, grpc.held()) << "trial " << trial;
      return open;
    };
    for (int blocks = 0; blocks < 20 && open && why.empty(); ++blocks) {
      if (client.Draw(4) != 0) newest += 2;
      // gRPC skips the headers of even streams.
      const bool skipped = client.Draw(6) == 0;
      stream = newest + (skipped ? 1 : 0);
      std::string block = client.Block();
      if (skipped || client.Rarely())
        block.resize(static_cast<size_t>(client.Draw(static_cast<int>(block.size()) + 1)));
      auto flags = static_cast<char>(client.Draw(2) * kEndStream | (client.Rarely() ? kPadded : 0));
      if (client.Draw(4) == 0) {
        flags |= kHasPriority;
        if (!client.Rarely()) block.insert(0, Bytes({0, 0x7f, 0xff, 0xff, 0xff}));
      }
      char type = kHeaders;
      while (client.Draw(3) == 0) {
        const auto cut = std::min<size_t>(static_cast<size_t>(client.Draw(12)), block.size());
        if (!send(type, flags, block.substr(0, cut))) break;
        block.erase(0, cut);
        type = kContinuation;
        if (!client.Rarely()) flags &= ~kHasPriority;
      }
      if (open && why.empty()) send(type, flags | kEndHeaders, block);
    }
    fields += grpc.fields();
    refused += why.empty() ? 0 : 1;
  }
  EXPECT_GT(fields, 20'000);
  EXPECT_LT(refused, 2'000);
}

}  // namespace
}  // namespace agmm
