// Knows the tuned plans that jobs run: the stored ones of node 0, and the shipped ones. On the loop
// only.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agmm/v1/tuning.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/measure/tuning_file.h"
#include "daemon/sequencer/members.h"
#include "kernels/base/loop.h"
#include "kernels/predict/machine.h"
#include "kernels/predict/tuning.h"

namespace agmm {

class Tuner {
 public:
  // All must outlive the tuner, except the loops, which end before it, the worker first.
  struct Parts {
    Loop* loop = nullptr;
    Loop* worker = nullptr;  // reads and writes the file
    Members* members = nullptr;
    std::function<std::shared_ptr<const Machine>()> machine;     // of the world now
    std::string folder;                                          // of the file; empty: none
    std::function<const TuningText&()> shipped = ShippedTuning;  // called on the worker
  };
  // Begins to read the file. Jobs do not wait for that.
  explicit Tuner(Parts parts);
  ~Tuner();

  // Replies once the file has been read.
  void GetTuning(const CallContext&, const v1::GetTuningRequest&, Reply<v1::TuningStatus>);
  // Replies once the file has been written. Errors: INVALID_ARGUMENT for ranks that the world does
  // not have, or nodes that are not those of ranks_per_node; UNAVAILABLE for missing nodes; those
  // of TuningFile::Add. Then no plan is stored.
  void StoreTuning(const CallContext&, const v1::StoreTuningRequest&, Reply<v1::TuningStatus>);
  // The plans that jobs run which are submitted now, stored ones first; null: none.
  const std::shared_ptr<const TuningTable>& table() const { return table_; }

 private:
  // A table, and what clients see of it.
  struct Known {
    std::vector<TunedPlan> plans;
    v1::TuningStatus status;
  };
  Known KnownOf(const TuningText& stored) const;
  void Know(Known known);

  const Parts parts_;
  // Touched on the worker only.
  const std::shared_ptr<measure::TuningFile> file_;
  std::shared_ptr<const v1::TuningStatus> status_;  // null until the file has been read
  std::shared_ptr<const TuningTable> table_;
  std::vector<Reply<v1::TuningStatus>> waiting_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace agmm
