// A product or a collective on a connected world: its tensors, and jobs on them. Shared by job,
// matmul, bench and tune.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "client/connect/connection.h"
#include "kernels/schedule/plan.h"

namespace agmm {

// A mesh and its place in the world.
struct Site {
  v1::GetStatusResponse status;
  Mesh mesh;
  Topology topology;
};

// Returns the place of `mesh`, such as "x=4", in the world; the default mesh has one axis x over
// all ranks. Errors: UNAVAILABLE if the world is not ready; INVALID_ARGUMENT.
absl::StatusOr<Site> FindSite(Connection* connection, const std::string& mesh);

bool TakesPart(const Mesh& mesh, const v1::DeviceStatus& device);

// True if two CPU devices of the mesh are on one host: on one node, or on nodes of one address.
// Pure.
bool SharesHost(const Site& site);

// Checks that the tensors of `problem` and a workspace fit on every rank, by the sums of free
// memory; fragments may still be too small. Errors: RESOURCE_EXHAUSTED, one line. Pure.
absl::Status CheckRoom(const Site& site, const Problem& problem, int64_t workspace_bytes);

// Time after the job's own timeout in which a daemon must report the job's end.
inline constexpr absl::Duration kDaemonGrace = absl::Seconds(15);

// Returns a request with a random id, without a mesh and tensors.
v1::SubmitJobRequest RequestJob(const std::string& spec, const PlanOptions& options, int repeat,
                                absl::Duration timeout, bool ignore_tuning);

// Returns OK for a job that succeeded, else its error, which names the job.
absl::Status NamedOutcomeOf(const v1::Job& job);
// Returns `error` with "job 7: " in front, unless it names the job already.
absl::Status NamingJob(const absl::Status& error, uint64_t job);

// Checks that clients can send the inputs and fetch the result of `problem`, whose spec is `spec`.
// Errors: INVALID_ARGUMENT for an operand with an open sum.
absl::Status CheckClosed(const Problem& problem, const std::string& spec);

class ProductRun {
 public:
  // `problem` is `spec` on a mesh of the world. Tensors and jobs belong to `session`; `timeout`
  // bounds each job. `ignore_tuning`: as in SubmitJobRequest.
  ProductRun(Connection* connection, std::string session, std::string spec, Problem problem,
             absl::Duration timeout, bool ignore_tuning);

  const Problem& problem() const { return problem_; }

  // Lets a tensor that exists stand for an operand. Call before Create, which then makes none.
  void Use(Operand operand, const v1::Tensor& tensor) { used_[operand] = tensor; }
  // Creates the tensors of the operands without contents. Errors: RESOURCE_EXHAUSTED.
  absl::Status Create();
  // Deletes the created ones before the session ends.
  absl::Status Delete();
  // Requires Create.
  const v1::Tensor& tensor(Operand operand) const { return tensors_[operand]; }
  // Writes small integers to the inputs, of another seed for each. An input whose sum is open
  // receives the terms of a product of integers. Requires Create.
  absl::Status FillInputs();

  // Runs a job to its end, and cancels it where the wait fails, for example after Ctrl-C. Errors:
  // that of a job that did not succeed.
  absl::StatusOr<v1::Job> Run(const PlanOptions& options, int repeat);

 private:
  // Writes `input`, whose sum is open.
  absl::Status FillOpen(Operand input);

  Connection* const connection_;
  const std::string session_, spec_;
  const Problem problem_;
  const absl::Duration timeout_;
  const bool ignore_tuning_;
  std::map<Operand, v1::Tensor> used_;
  std::vector<v1::Tensor> tensors_;  // by operand
};

// Writes generated values. The message of an error says that an operand was not filled.
absl::Status FillOperand(Connection* connection, const v1::Tensor& tensor, const v1::Fill& fill);

// Returns the checksum of the contents of a tensor. `what` begins the message of an error.
absl::StatusOr<uint64_t> TensorChecksum(Connection* connection, const v1::Tensor& tensor,
                                        const std::string& what);

}  // namespace agmm
