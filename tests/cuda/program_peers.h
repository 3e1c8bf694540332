// Rank 0 of a plan, and its peers, for tests of programs that never run.
#pragma once

#include <gtest/gtest.h>

#include <functional>
#include <memory>
#include <vector>

#include "kernels/cuda/cuda_peer.h"
#include "kernels/device/rank_plan.h"
#include "kernels/schedule/plan.h"

namespace agmm {

class NoHeap final : public Heap {
 public:
  int64_t size_bytes() const override { return int64_t{1} << 30; }
  absl::Span<std::byte> host() override { return {}; }
  absl::Status Write(const HeapRows&, const Rows&) override { return absl::OkStatus(); }
  absl::Status Read(const HeapRows&, const Rows&) override { return absl::OkStatus(); }
  absl::Status Fill(const HeapRows&, const FillSpec&, DType, int64_t, int64_t,
                    absl::FunctionRef<bool()>) override {
    return absl::OkStatus();
  }
  int fd() const override { return -1; }
};

class NoExecutor final : public Executor {
 public:
  absl::Status Prepare(const Problem&, std::shared_ptr<const Schedule>, const Peers&) override {
    return absl::OkStatus();
  }
  int64_t size_bytes() const override { return 0; }
  void Run(uint64_t, const Operands&, Deadline, DoneCallback) override {}
  void Signal(int, uint64_t) override {}
  void Cancel(const absl::Status&) override {}
  void Observe(bool, StateCallback) override {}
};

class NoTransport final : public Transport {
 public:
  void Send(int, const Message&, Rows, std::function<void(absl::Status)>) override { FAIL(); }
};

// Each rank has a GPU of its own, and those of a node reach each other.
struct ProgramPeers {
  ProgramPeers(const Problem& problem, const Topology& topology, const PlanOptions& options)
      : problem(problem),
        schedule(std::make_shared<const Schedule>(Plan(problem, topology, options).value())) {
    peers.nodes = topology.node_of_rank;
    peers.transport = &transport;
    for (Rank rank = 0; rank < topology.rank_count(); ++rank) {
      const bool here = topology.SameNode(rank, 0);
      peers.heaps.push_back(here ? &heap : nullptr);
      peers.executors.push_back(here ? &executor : nullptr);
      cuda.push_back({here ? CUdeviceptr{1} << 40 : 0, rank, here});
    }
  }
  RankPlan plan() const { return {problem, schedule, peers}; }

  const Problem problem;
  const std::shared_ptr<const Schedule> schedule;
  NoHeap heap;
  NoExecutor executor;
  NoTransport transport;
  Peers peers;
  std::vector<CudaPeer> cuda;  // may be changed before the plan is lowered
};

}  // namespace agmm
