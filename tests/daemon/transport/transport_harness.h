// Transports of several nodes in one process, with receivers and stores that record their calls.
#pragma once

#include <array>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "daemon/transport/ucx_transport.h"
#include "gtest/gtest.h"
#include "kernels/device/heap.h"
#include "tests/support/patience.h"
#include "tests/support/seed.h"
#include "tests/support/transport_port.h"

namespace agmm {

inline constexpr std::array<uint8_t, 16> kKey = {1, 2,  3,  4,  5,  6,  7,  8,
                                                 9, 10, 11, 12, 13, 14, 15, 16};
inline constexpr std::byte kPoison{0xa5};

// Statuses of callbacks, and waiting for them. Callbacks may outlive it.
class Outcomes {
 public:
  std::function<void(absl::Status)> Next() {
    return [state = state_](absl::Status status) { state->Add(std::move(status)); };
  }
  void Add(absl::Status status) { state_->Add(std::move(status)); }
  // Returns false if fewer have come after kPatience.
  bool Wait(size_t count) const {
    std::unique_lock lock(state_->mutex);
    return state_->changed.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                                    [&] { return state_->all.size() >= count; });
  }
  std::vector<absl::Status> all() const {
    std::lock_guard lock(state_->mutex);
    return state_->all;
  }

 private:
  struct State {
    std::mutex mutex;
    std::condition_variable changed;
    std::vector<absl::Status> all;
    void Add(absl::Status status) {
      std::lock_guard lock(mutex);
      all.push_back(std::move(status));
      changed.notify_all();
    }
  };
  const std::shared_ptr<State> state_ = std::make_shared<State>();
};

using MessageKey = std::tuple<uint64_t, uint64_t, int, int, int>;
inline MessageKey KeyOf(const Message& m) { return {m.plan, m.epoch, m.source, m.step, m.part}; }

// Receives expected messages; parks or drops the others.
class MapReceiver : public Receiver {
 public:
  void Expect(const Message& message, Rows to) {
    std::lock_guard lock(mutex_);
    expected_[KeyOf(message)] = to;
  }
  void DropTheRest() {
    std::lock_guard lock(mutex_);
    rest_ = Verdict::kDrop;
  }
  // Receives all messages, into fresh memory.
  void TakeAll() {
    std::lock_guard lock(mutex_);
    take_all_ = true;
  }

  // Runs `next` on the transport's thread when the next message is offered. Before it is sent.
  void OnNext(std::function<void()> next) { next_ = std::move(next); }

  Verdict Accept(int, const Message& message, int64_t bytes, Arrival* arrival) override {
    if (const auto next = std::exchange(next_, nullptr)) next();
    std::lock_guard lock(mutex_);
    ++offered_;
    if (take_all_) {
      memory_.emplace_back(bytes);
      arrival->to = {memory_.back().data(), 1, bytes, bytes};
      return Verdict::kReceive;
    }
    auto it = expected_.find(KeyOf(message));
    if (it == expected_.end()) return rest_;
    arrival->to = it->second;
    return Verdict::kReceive;
  }
  void Lost(int, const Message&, const absl::Status& why) override { lost.Add(why); }
  void Arrived(int, const Message& message, const Arrival&, const absl::Status& status) override {
    {
      std::lock_guard lock(mutex_);
      ++arrivals_[KeyOf(message)];
    }
    arrived.Add(status);
  }
  int arrivals(const Message& message) {
    std::lock_guard lock(mutex_);
    return arrivals_[KeyOf(message)];
  }
  int offered() {
    std::lock_guard lock(mutex_);
    return offered_;
  }

  Outcomes arrived, lost;

 private:
  std::mutex mutex_;  // guards all below, except next_
  std::map<MessageKey, Rows> expected_;
  std::map<MessageKey, int> arrivals_;
  std::list<std::vector<std::byte>> memory_;
  Verdict rest_ = Verdict::kPark;
  bool take_all_ = false;
  int offered_ = 0;
  std::function<void()> next_;
};

// One tensor, id 7: a matrix of `rows` x `cols` bytes, `pitch` apart, on rank 0.
class MatrixStore : public BulkStore {
 public:
  MatrixStore(int64_t rows, int64_t cols, int64_t pitch)
      : rows_(rows), cols_(cols), pitch_(pitch), memory(rows * pitch, kPoison) {}
  absl::StatusOr<Rows> Resolve(int from_node, const BulkBlock& block, bool write) override {
    if (block.tensor != 7) return absl::NotFoundError("tensor 7 is the only one here");
    if (block.row_end > rows_ || block.col_end > cols_)
      return absl::OutOfRangeError("outside the shard");
    const HeapRows place{block.row_begin * pitch_ + block.col_begin,
                         block.row_end - block.row_begin, block.col_end - block.col_begin, pitch_};
    if (heap_ != nullptr) return RowsAt(heap_, place, /*padded=*/false);
    return Rows{memory.data() + place.offset_bytes, place.rows, place.row_bytes, pitch_};
  }
  // From here on the matrix is in `heap`, whose memory is the store's.
  void Hide(Heap* heap) { heap_ = heap; }

 private:
  const int64_t rows_, cols_, pitch_;
  Heap* heap_ = nullptr;

 public:
  std::vector<std::byte> memory;
};

struct Node {
  MapReceiver receiver;
  MatrixStore store{1000, 1000, 1024};
  std::unique_ptr<UcxTransport> transport;

  explicit Node(TransportOptions options = {}) {
    auto made = UcxTransport::Create(options, &receiver, &store);
    EXPECT_TRUE(made.ok()) << made.status();
    transport = *std::move(made);
    port = Renewed(*transport);
  }

  TransportPort port;
};

// `count` nodes, each connected to all others, in generation 1.
struct Cluster {
  std::vector<std::unique_ptr<Node>> nodes;

  explicit Cluster(int count, TransportOptions options = {}) {
    for (int i = 0; i < count; ++i) nodes.push_back(std::make_unique<Node>(options));
    SetWorld(1);
    Connect();
  }
  // Returns once every node has answered every other one.
  void Connect() {
    const int count = static_cast<int>(nodes.size());
    for (int i = 0; i < count; ++i) {
      for (int j = 0; j < count; ++j) {
        if (i == j) continue;
        const absl::Status status = nodes[i]->transport->Connect(j, nodes[j]->port.address);
        EXPECT_TRUE(status.ok()) << status;
      }
    }
    Outcomes answers;
    for (int i = 0; i < count; ++i)
      for (int j = 0; j < count; ++j)
        if (i != j) nodes[i]->transport->Ping(j, answers.Next());
    EXPECT_TRUE(answers.Wait(count * (count - 1)));
    for (const absl::Status& status : answers.all()) EXPECT_TRUE(status.ok()) << status;
  }
  void SetWorld(uint64_t generation) {
    for (size_t i = 0; i < nodes.size(); ++i) nodes[i]->transport->SetWorld(generation, i, kKey);
  }
  UcxTransport& operator[](int node) { return *nodes[node]->transport; }
  MapReceiver& receiver(int node) { return nodes[node]->receiver; }
};

// A place of rows in poisoned memory with a margin on both sides.
class Patch {
 public:
  static constexpr int64_t kMargin = 192;
  Patch(int64_t rows, int64_t row_bytes, int64_t pitch, bool padded = false)
      : memory_(2 * kMargin + std::max(rows * pitch, rows * row_bytes), kPoison) {
    rows_ = {memory_.data() + kMargin, rows, row_bytes, pitch, padded};
  }
  const Rows& rows() const { return rows_; }
  absl::Span<std::byte> memory() {
    return absl::MakeSpan(memory_);
  }  // kMargin in front of the rows
  void Fill(uint64_t seed) {
    for (int64_t i = 0; i < rows_.rows; ++i) {
      for (int64_t j = 0; j < rows_.row_bytes; ++j)
        rows_.data[i * rows_.pitch_bytes + j] = Value(seed, i, j);
    }
  }
  // Returns the first wrong byte. The rows must be those of Fill(seed), with poison around them,
  // and between them unless they are padded.
  std::optional<int64_t> Wrong(uint64_t seed) const {
    for (int64_t at = 0; at < static_cast<int64_t>(memory_.size()); ++at) {
      const int64_t offset = at - kMargin;
      const int64_t pitch = std::max<int64_t>(rows_.pitch_bytes, 1);
      const int64_t row = offset < 0 ? -1 : offset / pitch, col = offset < 0 ? 0 : offset % pitch;
      std::byte want = kPoison;
      if (row >= 0 && row < rows_.rows) {
        if (col < rows_.row_bytes) {
          want = Value(seed, row, col);
        } else if (rows_.padded && row + 1 < rows_.rows) {
          continue;
        }
      }
      if (memory_[at] != want) return offset;
    }
    return std::nullopt;
  }

 private:
  static std::byte Value(uint64_t seed, int64_t row, int64_t col) {
    return static_cast<std::byte>((seed * 31 + row * 7 + col * 13 + (col >> 8)) & 0xff);
  }
  std::vector<std::byte> memory_;
  Rows rows_;
};

}  // namespace agmm
