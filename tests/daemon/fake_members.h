// A fake world that records the sequencer's commands; tests answer for the nodes.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "daemon/sequencer/members.h"
#include "kernels/base/reason.h"

namespace agmm {

class FakeMembers : public Members {
 public:
  struct Sent {
    int node;
    v1::Command command;
  };

  FakeMembers(int nodes, int ranks_per_node, int64_t heap_bytes) : nodes_(nodes) {
    for (int node = 0; node < nodes; ++node)
      for (int i = 0; i < ranks_per_node; ++i) ranks_.push_back({node, heap_bytes});
  }

  const std::string& incarnation() const override { return incarnation_value; }
  uint64_t generation() const override { return generation_value; }
  absl::Status Ready(const std::vector<int>& ranks) const override {
    for (int rank : ranks)
      if (complete.ok() && ranks_[rank].node == missing)
        return WithReason(absl::UnavailableError(absl::StrCat("n", missing, " is missing")),
                          kReasonWorldIncomplete);
    return complete;
  }
  int node_count() const override { return nodes_; }
  std::string node_name(int node) const override { return absl::StrCat("n", node); }
  const std::vector<WorldRank>& ranks() const override { return ranks_; }
  void Send(int node, v1::Command command) override { sent.push_back({node, std::move(command)}); }

  void Lose(int node, const std::string& why) override { lost.emplace_back(node, why); }

  // Removes and returns the commands of one kind, in the order of sending.
  std::vector<Sent> Take(v1::Command::CommandCase kind) {
    std::vector<Sent> taken, rest;
    for (Sent& one : sent)
      (one.command.command_case() == kind ? taken : rest).push_back(std::move(one));
    sent = std::move(rest);
    return taken;
  }

  std::vector<WorldRank>& mutable_ranks() { return ranks_; }

  std::string incarnation_value = "the sequencer";
  uint64_t generation_value = 1;
  absl::Status complete;  // OK if commands can be sent
  int missing = -1;       // a node
  std::vector<Sent> sent;
  std::vector<std::pair<int, std::string>> lost;

 private:
  const int nodes_;
  std::vector<WorldRank> ranks_;
};

// `ranks` over one axis x, from rank `first`.
inline v1::Mesh MeshOf(int ranks, int first = 0) {
  v1::Mesh mesh;
  v1::MeshAxis* axis = mesh.add_axes();
  axis->set_name("x");
  axis->set_size(ranks);
  for (int i = 0; i < ranks; ++i) mesh.add_ranks(first + i);
  return mesh;
}

inline v1::CreateTensorRequest TensorRequest(const std::string& name, const std::string& sharding,
                                             int64_t rows, int64_t cols, const v1::Mesh& mesh,
                                             v1::DType dtype = v1::DTYPE_F32) {
  v1::CreateTensorRequest request;
  request.set_name(name);
  request.mutable_spec()->set_sharding(sharding);
  request.mutable_spec()->set_rows(rows);
  request.mutable_spec()->set_cols(cols);
  request.mutable_spec()->set_dtype(dtype);
  *request.mutable_spec()->mutable_mesh() = mesh;
  return request;
}

inline v1::Report PlacedReport(uint64_t tensor_id) {
  v1::Report report;
  report.mutable_tensor_placed()->set_tensor_id(tensor_id);
  return report;
}

}  // namespace agmm
