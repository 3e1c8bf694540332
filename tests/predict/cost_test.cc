// The closed forms: the book's figures, and collectives whose messages are timed one by one.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <vector>

#include "kernels/predict/cost.h"

namespace agmm::test {
namespace {

constexpr LinkRates kNoLatency = {.one_way = 45, .two_way = 90, .latency_ns = 0};
constexpr LinkRates kLongLatency = {.one_way = 45, .two_way = 90, .latency_ns = 1e6};
constexpr LinkRates kBookLinks = {.one_way = 45, .two_way = 90, .latency_ns = 1000};
constexpr double kArrayBytes = 1 << 25;

// A message that a link takes once the message before it, an index, has arrived; -1: at once.
struct TimedMessage {
  int link = 0;
  double bytes = 0;
  int after = -1;
};

// Returns the time at which the last message has arrived. A link sends one message at a time, in
// the order in which they are ready.
double LastArrivalNs(const std::vector<TimedMessage>& messages, double rate, double latency_ns) {
  constexpr double kUnknown = std::numeric_limits<double>::infinity();
  std::vector<double> ready(messages.size(), kUnknown), free;
  std::vector<bool> sent(messages.size());
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].after < 0) ready[i] = 0;
    free.resize(std::max<size_t>(free.size(), messages[i].link + 1));
  }
  double last = 0;
  for (size_t count = 0; count < messages.size(); ++count) {
    int next = -1;
    for (int i = 0; i < static_cast<int>(messages.size()); ++i)
      if (!sent[i] && ready[i] < kUnknown && (next < 0 || ready[i] < ready[next])) next = i;
    sent[next] = true;
    double& link = free[messages[next].link];
    link = std::max(link, ready[next]) + messages[next].bytes / rate;
    const double arrival = link + latency_ns;
    last = std::max(last, arrival);
    for (size_t i = 0; i < messages.size(); ++i)
      if (messages[i].after == next) ready[i] = arrival;
  }
  return last;
}

// A torus of devices, each with two links along each axis: up (0) and down (1).
class LinkedTorus {
 public:
  explicit LinkedTorus(std::vector<int> sizes) : sizes_(std::move(sizes)) {
    for (int size : sizes_) devices_ *= size;
  }
  int devices() const { return devices_; }
  int Link(int device, int axis, int down) const {
    return (device * static_cast<int>(sizes_.size()) + axis) * 2 + down;
  }
  int Neighbour(int device, int axis, int down) const {
    int stride = 1;
    for (int i = 0; i < axis; ++i) stride *= sizes_[i];
    const int size = sizes_[axis], at = device / stride % size;
    return device + ((at + (down ? size - 1 : 1)) % size - at) * stride;
  }
  int Coordinate(int device, int axis) const {
    for (int i = 0; i < axis; ++i) device /= sizes_[i];
    return device % sizes_[axis];
  }
  int size(int axis) const { return sizes_[axis]; }
  int axes() const { return static_cast<int>(sizes_.size()); }

 private:
  std::vector<int> sizes_;
  int devices_ = 1;
};

struct WayAround {
  int down = 0, hops = 0;
};
std::vector<WayAround> WaysAround(Passing passing, int size, int at) {
  switch (passing) {
    case Passing::kOneWay: return {{0, size - 1}};
    case Passing::kBothWays: return {{0, size / 2}, {1, (size - 1) / 2}};
    case Passing::kHalvesBothWays: return {{0, size - 1}, {1, size - 1}};
    case Passing::kLine: break;
  }
  return {{0, size - 1 - at}, {1, at}};
}

// The messages of a gather along the axes, beginning with a different one for each part.
std::vector<TimedMessage> GatherMessages(const LinkedTorus& torus, double bytes, Passing passing,
                                         int parts) {
  const int pieces = passing == Passing::kHalvesBothWays ? 2 : 1;
  const double size = bytes / torus.devices() / parts / pieces;
  std::vector<TimedMessage> messages;
  for (int source = 0; source < torus.devices(); ++source) {
    for (int part = 0; part < parts * pieces; ++part) {
      std::vector<std::pair<int, int>> reached = {{source, -1}};  // devices, and their message
      for (int i = 0; i < torus.axes(); ++i) {
        const int axis = (part / pieces + i) % torus.axes();
        const std::vector<std::pair<int, int>> starts = reached;
        for (const auto& [start, before] : starts) {
          std::vector<WayAround> directions =
              WaysAround(passing, torus.size(axis), torus.Coordinate(start, axis));
          if (pieces == 2) directions = {directions[part % 2]};
          for (const WayAround& direction : directions) {
            int at = start, after = before;
            for (int hop = 0; hop < direction.hops; ++hop) {
              messages.push_back({torus.Link(at, axis, direction.down), size, after});
              after = static_cast<int>(messages.size()) - 1;
              at = torus.Neighbour(at, axis, direction.down);
              reached.push_back({at, after});
            }
          }
        }
      }
    }
  }
  return messages;
}

constexpr Passing kPassings[] = {Passing::kOneWay, Passing::kBothWays, Passing::kHalvesBothWays,
                                 Passing::kLine};
constexpr Passing kRingPassings[] = {Passing::kOneWay, Passing::kBothWays,
                                     Passing::kHalvesBothWays};

TEST(ExactGather, IsTheTimeOfItsMessagesOnOneAxis) {
  for (const Passing passing : kPassings) {
    for (const int size : {2, 3, 4, 5, 8, 13}) {
      for (const LinkRates& links : {kNoLatency, kBookLinks, kLongLatency}) {
        const std::vector<TimedMessage> messages =
            GatherMessages(LinkedTorus({size}), kArrayBytes, passing, /*parts=*/1);
        const double time_ns = LastArrivalNs(messages, 45, links.latency_ns);
        EXPECT_NEAR(exact::GatherNs(kArrayBytes, {size}, links, passing), time_ns, time_ns * 1e-9)
            << size << " devices, passing " << static_cast<int>(passing);
      }
    }
  }
}

TEST(ExactGather, HasTheBytesOfTheBusiestLinkOnOneAxis) {
  for (const Passing passing : kPassings) {
    for (const int size : {2, 3, 4, 5, 8, 13}) {
      std::vector<double> links(2 * size);
      for (const TimedMessage& one :
           GatherMessages(LinkedTorus({size}), kArrayBytes, passing, /*parts=*/1))
        links[one.link] += one.bytes;
      EXPECT_NEAR(exact::GatherLinkBytes(kArrayBytes, size, passing),
                  *std::max_element(links.begin(), links.end()), 1e-3)
          << size << " devices, passing " << static_cast<int>(passing);
    }
  }
}

TEST(ExactGather, IsALowerBoundOnSeveralAxes) {
  for (const Passing passing : kPassings) {
    for (const std::vector<int>& sizes : {std::vector{4, 4}, {2, 4}, {3, 5}, {2, 2, 3}}) {
      for (const int parts : {1, 2, static_cast<int>(sizes.size())}) {
        const std::vector<TimedMessage> messages =
            GatherMessages(LinkedTorus(sizes), kArrayBytes, passing, parts);
        for (const LinkRates& links : {kNoLatency, kBookLinks, kLongLatency}) {
          EXPECT_LE(exact::GatherNs(kArrayBytes, sizes, links, passing, parts),
                    LastArrivalNs(messages, 45, links.latency_ns) * (1 + 1e-9));
        }
        const double time_ns =
            LastArrivalNs(GatherMessages(LinkedTorus(sizes), 1, passing, parts), 45, 1e6);
        EXPECT_NEAR(exact::GatherNs(1, sizes, kLongLatency, passing, parts), time_ns,
                    time_ns * 1e-6);
      }
    }
  }
}

TEST(ExactGather, IsExactOnSeveralAxesWithoutLatency) {
  for (const Passing passing : kPassings) {
    for (const std::vector<int>& sizes :
         {std::vector{4, 4}, {5, 3}, {4, 2}, {2, 2, 2}, {2, 3, 4}}) {
      for (const int parts : {1, 2, 3}) {
        const double time_ns = LastArrivalNs(
            GatherMessages(LinkedTorus(sizes), kArrayBytes, passing, parts), 45, /*latency_ns=*/0);
        EXPECT_NEAR(exact::GatherNs(kArrayBytes, sizes, kNoLatency, passing, parts), time_ns,
                    time_ns * 1e-9)
            << sizes.size() << " axes, " << parts << " parts, " << static_cast<int>(passing);
      }
    }
  }
}

// On lines, links at the end get the next shard while they send, so that the last latency counts.
TEST(ExactGather, AddsTheLastLatencyToTheBusiestLink) {
  const double time_ns = LastArrivalNs(
      GatherMessages(LinkedTorus({4, 4}), kArrayBytes, Passing::kLine, /*parts=*/2), 45, 1000);
  EXPECT_NEAR(exact::GatherNs(kArrayBytes, {4, 4}, kBookLinks, Passing::kLine, 2), time_ns,
              time_ns * 1e-9);
}

// The messages of an all-to-all on a ring in which everything that goes on shares a message.
std::vector<TimedMessage> RoundMessages(int size, double bytes, Passing passing) {
  const LinkedTorus torus({size});
  const double block = bytes / size / size / (passing == Passing::kHalvesBothWays ? 2 : 1);
  std::vector<TimedMessage> messages;
  for (int source = 0; source < size; ++source) {
    for (const WayAround& way : WaysAround(passing, size, source)) {
      int at = source;
      for (int hop = 0; hop < way.hops; ++hop) {
        const int after = hop == 0 ? -1 : static_cast<int>(messages.size()) - 1;
        messages.push_back({torus.Link(at, 0, way.down), block * (way.hops - hop), after});
        at = torus.Neighbour(at, 0, way.down);
      }
    }
  }
  return messages;
}

// The messages of an all-to-all whose blocks go along one axis after the other, each by itself.
std::vector<TimedMessage> BlockMessages(const LinkedTorus& torus, double bytes, Passing passing) {
  const int pieces = passing == Passing::kHalvesBothWays ? 2 : 1;
  const double block = bytes / torus.devices() / torus.devices() / pieces;
  std::vector<TimedMessage> messages;
  for (int source = 0; source < torus.devices(); ++source) {
    for (int to = 0; to < torus.devices(); ++to) {
      for (int piece = 0; piece < pieces; ++piece) {
        int at = source, after = -1;
        for (int axis = 0; axis < torus.axes(); ++axis) {
          const int size = torus.size(axis);
          const int distance = torus.Coordinate(to, axis) - torus.Coordinate(at, axis);
          const int up = (distance + size) % size;
          int down = 0;
          if (passing == Passing::kBothWays) down = up > size / 2;
          if (passing == Passing::kLine) down = distance < 0;
          if (passing == Passing::kHalvesBothWays) down = piece;
          while (torus.Coordinate(at, axis) != torus.Coordinate(to, axis)) {
            messages.push_back({torus.Link(at, axis, down), block, after});
            after = static_cast<int>(messages.size()) - 1;
            at = torus.Neighbour(at, axis, down);
          }
        }
      }
    }
  }
  return messages;
}

TEST(ExactAllToAll, IsTheTimeOfItsRounds) {
  for (const Passing passing : kRingPassings) {
    for (const int size : {2, 3, 4, 5, 8, 13}) {
      for (const LinkRates& links : {kNoLatency, kBookLinks, kLongLatency}) {
        const double time_ns =
            LastArrivalNs(RoundMessages(size, kArrayBytes, passing), 45, links.latency_ns);
        EXPECT_NEAR(exact::AllToAllNs(kArrayBytes, size, links, passing), time_ns, time_ns * 1e-9)
            << size << " devices, passing " << static_cast<int>(passing);
      }
    }
  }
}

TEST(ExactAllToAll, OfSingleBlocksTakesAtLeastItsBound) {
  for (const Passing passing : kPassings) {
    for (const std::vector<int>& sizes : {std::vector{2}, {3}, {4}, {5}, {8}, {2, 4}, {3, 3}}) {
      const std::vector<TimedMessage> messages =
          BlockMessages(LinkedTorus(sizes), kArrayBytes, passing);
      for (const LinkRates& links : {kNoLatency, kBookLinks, kLongLatency}) {
        EXPECT_LE(exact::AllToAllPipelinedNs(kArrayBytes, sizes, links, passing),
                  LastArrivalNs(messages, 45, links.latency_ns) * (1 + 1e-9));
      }
      const double time_ns =
          LastArrivalNs(BlockMessages(LinkedTorus(sizes), 1, passing), 45, kLongLatency.latency_ns);
      EXPECT_NEAR(exact::AllToAllPipelinedNs(1, sizes, kLongLatency, passing), time_ns,
                  time_ns * 1e-6);
      // Without latency no ring waits, because it always has a block to send on.
      if (sizes.size() > 1 || passing == Passing::kLine) continue;
      const double fast_ns = LastArrivalNs(messages, 45, 0);
      EXPECT_NEAR(exact::AllToAllPipelinedNs(kArrayBytes, sizes, kNoLatency, passing), fast_ns,
                  fast_ns * 1e-9);
    }
  }
  // The last block is seen a latency after the link has sent it.
  const double bytes = exact::AllToAllLinkBytes(kArrayBytes, {5}, Passing::kOneWay);
  EXPECT_DOUBLE_EQ(exact::AllToAllPipelinedNs(kArrayBytes, {5}, kBookLinks, Passing::kOneWay),
                   bytes / 45 + 1000);
}

TEST(ExactAllToAll, HasTheBytesOfTheBusiestLink) {
  for (const Passing passing : kPassings) {
    for (const std::vector<int>& sizes : {std::vector{2}, {3}, {4}, {5}, {8}, {2, 4}, {3, 3}}) {
      std::vector<double> links(64);
      for (const TimedMessage& one : BlockMessages(LinkedTorus(sizes), kArrayBytes, passing))
        links[one.link] += one.bytes;
      const double busiest = *std::max_element(links.begin(), links.end());
      EXPECT_NEAR(exact::AllToAllLinkBytes(kArrayBytes, sizes, passing), busiest, 1e-3);
    }
  }
}

TEST(ExactForms, OfOneDeviceTakeNoTime) {
  for (const Passing passing : kPassings) {
    EXPECT_EQ(exact::GatherNs(kArrayBytes, {1}, kBookLinks, passing), 0);
    EXPECT_EQ(exact::AllToAllPipelinedNs(kArrayBytes, {1}, kBookLinks, passing), 0);
    EXPECT_EQ(exact::AllToAllNs(kArrayBytes, 1, kBookLinks, passing), 0);
  }
  EXPECT_EQ(exact::SwitchGatherNs(kArrayBytes, 1, kBookLinks), 0);
  EXPECT_EQ(exact::PairwiseGatherNs(kArrayBytes, 1, kBookLinks), 0);
  EXPECT_EQ(exact::HierarchicalGatherNs(kArrayBytes, 1, 1, kBookLinks, kBookLinks), 0);
}

TEST(ExactForms, ShareARateThatBothDirectionsDoNotReach) {
  const LinkRates half_duplex = {.one_way = 45, .two_way = 45, .latency_ns = 0};
  EXPECT_DOUBLE_EQ(exact::GatherNs(kArrayBytes, {5}, half_duplex, Passing::kOneWay),
                   exact::GatherNs(kArrayBytes, {5}, kNoLatency, Passing::kOneWay));
  for (const Passing passing : {Passing::kBothWays, Passing::kHalvesBothWays, Passing::kLine}) {
    EXPECT_DOUBLE_EQ(exact::GatherNs(kArrayBytes, {5}, half_duplex, passing),
                     2 * exact::GatherNs(kArrayBytes, {5}, kNoLatency, passing));
  }
  EXPECT_DOUBLE_EQ(exact::SwitchGatherNs(kArrayBytes, 5, half_duplex),
                   2 * exact::SwitchGatherNs(kArrayBytes, 5, kNoLatency));
}

TEST(ExactForms, SendStraightThroughPortsOrLinks) {
  std::vector<TimedMessage> ports, pairs;
  for (int from = 0; from < 8; ++from) {
    for (int to = 0; to < 8; ++to) {
      if (from == to) continue;
      ports.push_back({from, kArrayBytes / 8});
      pairs.push_back({from * 8 + to, kArrayBytes / 8});
    }
  }
  EXPECT_DOUBLE_EQ(exact::SwitchGatherNs(kArrayBytes, 8, kBookLinks),
                   LastArrivalNs(ports, 45, 1000));
  EXPECT_DOUBLE_EQ(exact::SwitchAllToAllNs(kArrayBytes * 8, 8, kBookLinks),
                   LastArrivalNs(ports, 45, 1000));
  EXPECT_DOUBLE_EQ(exact::PairwiseGatherNs(kArrayBytes, 8, kBookLinks),
                   LastArrivalNs(pairs, 45, 1000));
  EXPECT_DOUBLE_EQ(exact::PairwiseAllToAllNs(kArrayBytes * 8, 8, kBookLinks),
                   LastArrivalNs(pairs, 45, 1000));
}

// Shards of 100 bytes on 3 nodes of 4 ranks.
TEST(ExactForms, FillANodesPortAndThenFanOut) {
  const LinkRates between = {.one_way = 1, .two_way = 2, .latency_ns = 50};
  const LinkRates within = {.one_way = 10, .two_way = 20, .latency_ns = 5};
  // 8 shards through the port, and the last one to 3 ranks.
  EXPECT_DOUBLE_EQ(exact::HierarchicalGatherNs(1200, 3, 4, between, within), 800 + 50 + 30 + 5);
  // Each rank sends its own shard and two others to 3 ranks, which takes longer than the port.
  const LinkRates slow = {.one_way = 1, .two_way = 2, .latency_ns = 5};
  const LinkRates fast = {.one_way = 100, .two_way = 200, .latency_ns = 5};
  EXPECT_DOUBLE_EQ(exact::HierarchicalGatherNs(1200, 3, 4, fast, slow), 900 + 5);
  EXPECT_DOUBLE_EQ(exact::HierarchicalGatherNs(400, 1, 4, between, within),
                   exact::SwitchGatherNs(400, 4, within));
  EXPECT_DOUBLE_EQ(exact::HierarchicalGatherNs(400, 4, 1, between, within),
                   exact::SwitchGatherNs(400, 4, between));
}

// Each rank sends its shard to one rank of each other node, one node after the other, and every
// rank sends what it has and gets to the others of its node. Links are ports: of nodes, then ranks.
TEST(ExactForms, AreTheTimeOfAGatherOverNodes) {
  constexpr double kLatencyNs = 1000;
  for (const auto& [nodes, ranks] : {std::pair{2, 1}, {2, 4}, {3, 2}, {4, 8}}) {
    for (const double within : {45.0, 90.0, 450.0}) {
      const double shard = kArrayBytes / nodes / ranks, scaled = shard * 45 / within;
      std::vector<TimedMessage> messages;
      const auto fan_out = [&, ranks = ranks, nodes = nodes](int rank, int after) {
        for (int i = 1; i < ranks; ++i) messages.push_back({nodes + rank, scaled, after});
      };
      for (int rank = 0; rank < nodes * ranks; ++rank) fan_out(rank, -1);
      for (int distance = 1; distance < nodes; ++distance) {
        for (int rank = 0; rank < nodes * ranks; ++rank) {
          messages.push_back({rank / ranks, shard, -1});
          fan_out((rank + distance * ranks) % (nodes * ranks),
                  static_cast<int>(messages.size()) - 1);
        }
      }
      const double time_ns = LastArrivalNs(messages, 45, kLatencyNs);
      const LinkRates inside = {.one_way = within, .two_way = 2 * within, .latency_ns = kLatencyNs};
      EXPECT_NEAR(exact::HierarchicalGatherNs(kArrayBytes, nodes, ranks, kBookLinks, inside),
                  time_ns, time_ns * 1e-9)
          << nodes << " nodes of " << ranks << " at " << within;
    }
  }
}

TEST(RuleForms, AreTheExactOnesWithoutTheShorterOfLatencyAndBytes) {
  for (const int size : {2, 4, 8, 16}) {
    for (const LinkRates& links : {kNoLatency, kLongLatency}) {
      for (const Passing passing : {Passing::kOneWay, Passing::kBothWays, Passing::kLine}) {
        const double bytes = links.latency_ns > 0 ? 1 : kArrayBytes;
        const double exact_ns = exact::GatherNs(bytes, {size}, links, passing);
        EXPECT_NEAR(rule::GatherNs(bytes, {size}, links, passing), exact_ns, exact_ns * 1e-6);
      }
    }
  }
}

TEST(RuleForms, ApproachTheExactOnesOnManyDevices) {
  for (const int size : {255, 256}) {
    for (const Passing passing : kRingPassings) {
      const double gather_ns = exact::GatherNs(kArrayBytes, {size}, kNoLatency, passing);
      EXPECT_NEAR(rule::GatherNs(kArrayBytes, {size}, kNoLatency, passing), gather_ns,
                  gather_ns * 0.01);
      const double exchange_ns = exact::AllToAllNs(kArrayBytes, size, kNoLatency, passing);
      EXPECT_NEAR(rule::AllToAllNs(kArrayBytes, {size}, kNoLatency, passing), exchange_ns,
                  exchange_ns * 0.01);
    }
  }
}

TEST(RuleForms, AreTheBooks) {
  EXPECT_DOUBLE_EQ(rule::HopNs(kArrayBytes, 4, kBookLinks), 2 * kArrayBytes / (4 * 90));
  EXPECT_DOUBLE_EQ(rule::HopNs(1, 4, kBookLinks), 1000);
  EXPECT_DOUBLE_EQ(rule::GatherNs(kArrayBytes, {4, 8}, kBookLinks), kArrayBytes / (90 * 2));
  EXPECT_DOUBLE_EQ(rule::GatherNs(1, {4, 8}, kBookLinks), 6000);
  EXPECT_DOUBLE_EQ(rule::GatherNs(1, {4, 8}, kBookLinks, Passing::kOneWay), 10000);
  EXPECT_DOUBLE_EQ(rule::GatherNs(kArrayBytes, {4}, kBookLinks, Passing::kLine),
                   3 * kArrayBytes / 4 / 45);
  EXPECT_DOUBLE_EQ(rule::GatherNs(kArrayBytes, {2, 2}, kBookLinks, Passing::kLine),
                   3 * kArrayBytes / 4 / (45 * 2));
  EXPECT_DOUBLE_EQ(rule::AllReduceNs(kArrayBytes, {4, 8}, kBookLinks), kArrayBytes / 90);
  EXPECT_DOUBLE_EQ(rule::AllToAllNs(kArrayBytes, {8}, kBookLinks), kArrayBytes / (4 * 90));
  EXPECT_DOUBLE_EQ(rule::AllToAllNs(kArrayBytes, {4, 8, 2}, kBookLinks),
                   kArrayBytes * 8 / (4 * 64 * 90));
  EXPECT_DOUBLE_EQ(rule::AllToAllNs(kArrayBytes, {8}, kBookLinks, Passing::kOneWay),
                   rule::GatherNs(kArrayBytes, {8}, kBookLinks, Passing::kOneWay) / 2);
  // A line takes twice as long as a ring both ways.
  EXPECT_DOUBLE_EQ(rule::AllToAllNs(kArrayBytes, {8}, kBookLinks, Passing::kLine),
                   kArrayBytes / (2 * 90));
  EXPECT_DOUBLE_EQ(rule::LatencyBoundBytes(kBookLinks), 45e3);
}

TEST(ProductForms, AreTheGuides) {
  EXPECT_DOUBLE_EQ(ShardBytes(4096, {2, 8}), 256);
  EXPECT_DOUBLE_EQ(TotalBytes(4096, {2, 8}, 32), 8192);
  DeviceRates device;
  device.memory = 8;
  EXPECT_DOUBLE_EQ(LoadNs(4096, device), 512);
  EXPECT_DOUBLE_EQ(RingProductBoundNs(43e3, 8), 386e3);
  EXPECT_DOUBLE_EQ(HiddenColumnsOfAll(8, 900e3, 450), 16000);
}

// A rank receives the shards of the others in the time of its own products.
TEST(ProductForms, HideTheGatherFromTheColumnsOn) {
  const double flops_per_ns = 900e3, bytes_per_ns = 450;
  const double columns = HiddenColumns(8, 2, flops_per_ns, bytes_per_ns);
  const double m = 8192, k = 4096;
  EXPECT_DOUBLE_EQ(2 * m * columns / 8 * k / flops_per_ns, 7 * (m / 8) * k * 2 / bytes_per_ns);
  EXPECT_DOUBLE_EQ(columns, HiddenColumnsOfAll(7, flops_per_ns, bytes_per_ns));
}

// The strategies take equally long at each threshold.
TEST(Strategies, ChangePlacesAtTheThresholds) {
  for (const double element_bytes : {1.0, 2.0, 4.0}) {
    StrategyQuestion question = {.batch = 1024,
                                 .depth = 8192,
                                 .width = 16384,
                                 .size = 16,
                                 .element_bytes = element_bytes,
                                 .flops_per_ns = 459e3,
                                 .bytes_per_ns = 180};
    const StrategyThresholds thresholds = ThresholdsOf(question);
    question.batch = thresholds.comm_bound_batch;
    EXPECT_DOUBLE_EQ(GatherThenMultiply(question).compute_ns, GatherThenMultiply(question).comm_ns);
    question.batch = thresholds.comm_bound_batch / 2;
    question.depth = ThresholdsOf(question).depth_small_batch;
    EXPECT_DOUBLE_EQ(GatherThenMultiply(question).TotalNs(),
                     MultiplyThenAllReduce(question).TotalNs());
    question.batch = thresholds.comm_bound_batch * 2;
    question.depth = thresholds.depth_large_batch;
    EXPECT_DOUBLE_EQ(GatherThenMultiply(question).TotalNs(),
                     MultiplyThenAllReduce(question).TotalNs());
  }
}

TEST(Strategies, SpendTheBooksTimes) {
  const StrategyQuestion question = {
      .batch = 8, .depth = 16, .width = 32, .size = 4, .flops_per_ns = 100, .bytes_per_ns = 10};
  EXPECT_DOUBLE_EQ(GatherThenMultiply(question).compute_ns, 2 * 8 * 16 * 32 / 100.0);
  EXPECT_DOUBLE_EQ(GatherThenMultiply(question).comm_ns, 2 * 16 * 32 / 10.0);
  EXPECT_DOUBLE_EQ(MultiplyThenAllReduce(question).compute_ns, 2 * 8 * 16 * 32 / 4 / 100.0);
  EXPECT_DOUBLE_EQ(MultiplyThenAllReduce(question).comm_ns, 4 * 8 * 32 / 10.0);
  EXPECT_DOUBLE_EQ(GatherThenMultiply(question).TotalNs(), 2 * 16 * 32 / 10.0);
}

}  // namespace
}  // namespace agmm::test
