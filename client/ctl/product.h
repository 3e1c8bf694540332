// A product on a connected world: its tensors, and jobs on them. What the verbs that run products
// of their own have in common.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "client/connection.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// A mesh, and how it lies in the world.
struct Site {
  v1::GetStatusResponse status;
  Mesh mesh;
  Topology topology;
};

// Where `mesh`, such as "x=4" (empty: one axis x over all ranks), lies in the world as it is now.
// Errors: UNAVAILABLE where jobs cannot run in it; INVALID_ARGUMENT.
absl::StatusOr<Site> FindSite(Connection* connection, const std::string& mesh);

// True when two CPU devices of the mesh are on one host: on one node, or on nodes of one address.
// Pure.
bool SharesHost(const Site& site);

// OK if the tensors of `problem` and a workspace find room on every rank, as far as sums can tell:
// pieces of free memory may still be too small. Errors: RESOURCE_EXHAUSTED, one line. Pure.
absl::Status CheckRoom(const Site& site, const Problem& problem, int64_t workspace_bytes);

class Product {
 public:
  // `problem` is `spec` on the site's mesh; what runs belongs to `session`, and `timeout` is each
  // job's.
  Product(Connection* connection, std::string session, std::string spec, Problem problem,
          Topology topology, absl::Duration timeout);

  const Problem& problem() const { return problem_; }

  // Makes A, B and C, without contents. Errors: RESOURCE_EXHAUSTED.
  absl::Status Create();
  // Gives their memory back before the session ends.
  absl::Status Delete();
  // Once they are made.
  const v1::Tensor& tensor(Operand operand) const { return tensors_[operand]; }

  // Runs a job to its end; one that did not succeed is an error. Where nobody waits for it any
  // more, as after Ctrl-C, it is cancelled.
  absl::StatusOr<v1::Job> Run(const PlanOptions& options, int repeat);

  // What the job's concrete options mean, planned here.
  absl::StatusOr<Schedule> PlanOf(const v1::Job& job) const;
  // Whether that is the plan that ran.
  bool Agrees(const v1::Job& job, const Schedule& schedule) const;

 private:
  Connection* const connection_;
  const std::string session_, spec_;
  const Problem problem_;
  const Topology topology_;
  const absl::Duration timeout_;
  std::vector<v1::Tensor> tensors_;
};

}  // namespace agmm
