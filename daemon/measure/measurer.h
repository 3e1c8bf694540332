// Measures the world while no job runs, and knows its machine. On the loop only.
//
// A probe is a plan like any other: the nodes prepare it and run its epochs on memory that is free.
// They see no difference, but no client sees the plan, its memory or its launches, and their ids
// never collide with those of jobs. One probe runs at a time, and takes memory only then.
//
// Calls that may need the devices or their memory go first: the measurement ends after the stage in
// progress, and only then does the call proceed. A stage places a piece of the probe's memory,
// fills it, or launches the probe. The first two take some milliseconds, and a launch is cancelled.
// The measurement continues once the world has been idle for a while.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "agmm/v1/machine.pb.h"
#include "daemon/link/call_context.h"
#include "daemon/measure/machine_folder.h"
#include "daemon/measure/survey.h"
#include "daemon/measure/world_machine.h"
#include "daemon/observe/metrics.h"
#include "daemon/sequencer/members.h"
#include "daemon/sequencer/placement.h"
#include "daemon/sequencer/plan_cache.h"
#include "daemon/sequencer/planning.h"
#include "kernels/base/clock.h"
#include "kernels/base/loop.h"
#include "kernels/predict/machine.h"

namespace agmm {

class Measurer : public WorldListener {
 public:
  // All must outlive the measurer, except the loops, which end before it, the worker first.
  struct Parts {
    Loop* loop = nullptr;
    Loop* worker = nullptr;  // plans probes, and reads and writes files
    const Clock* clock = Clock::Real();
    Members* members = nullptr;
    Placement* placement = nullptr;
    Metrics* metrics = nullptr;
    std::function<bool()> is_idle;  // true if no job is queued or runs
    // Keeps results, and has a new world measured by itself; none: only on request.
    std::optional<measure::MachineFolder> folder;
    // The figures before and beside all measurements.
    v1::Machine preset;
    std::string cluster;
    std::vector<std::string> hosts;           // by node
    std::string transport;                    // the path between nodes: "tcp"
    absl::Duration quiet = absl::Seconds(2);  // the world is idle for so long before a measurement
    // A node that does not end a stage within it is dropped, because calls wait for the stage.
    absl::Duration stage_limit = absl::Seconds(10);
  };
  explicit Measurer(Parts parts);
  ~Measurer() override;

  // To be called before a call that may need devices. Returns true if it can proceed, because no
  // memory is taken for measurements.
  bool MakeWay();
  // Runs `call` as soon as it can proceed, after MakeWay has returned false. Calls keep their
  // order.
  void Await(std::function<void()> call) { waiting_.push_back(std::move(call)); }

  v1::MachineStatus Status() const;
  // Makes a measurement due.
  void Measure();
  // The figures of the world as it is now, never null. Another machine has another
  // name or version, also on other hardware.
  const std::shared_ptr<const Machine>& machine() const { return machine_; }

  void OnGenerationEnded(const std::vector<int>& lost_nodes, const absl::Status& reason) override;
  void OnReady() override;
  void OnReport(int node, const v1::Report& report) override;

 private:
  // A probe on its way through the nodes, each stage of which ends with all nodes' reports.
  struct Run {
    enum class Stage { kPlanning, kPreparing, kPlacing, kFilling, kRunning };
    measure::Probe probe;
    JobSpec job;
    Planned planned;
    Stage stage = Stage::kPlanning;
    uint64_t id = 0;      // of its plan
    uint64_t launch = 0;  // of the launch in progress
    std::set<int> nodes, awaited;
    Loop::Timer limit;  // of a stage that holds memory
    measure::Layout layout;
    std::optional<int64_t> offset_bytes;  // of its memory; none: it has none yet
    std::vector<uint64_t> pieces;         // tensors in its memory
    int64_t placed_bytes = 0;             // of all pieces together
    uint64_t next_epoch = 1;
    int epoch_count = 0;                          // of the last launch
    int launches = 0;                             // that are over
    std::map<int, std::vector<double>> epoch_ns;  // by world rank: means of the timed launches
    double latest_ns = 0, last_ns = 0;  // the longest epoch of this launch, and of the last one
    std::set<std::string> device_paths;
    absl::Status error;
    bool dropped = false;  // ends after this stage, without a result
  };

  void KnowPreset();
  void Know(measure::CheckedWorld checked);
  bool Complete() const;
  std::vector<std::string> Hardware() const;
  measure::Site SiteNow() const;
  void Load();
  void OnLoaded(absl::StatusOr<measure::CheckedWorld> loaded);
  // Begins or continues a measurement after `delay`, if one is due and the world is idle then.
  void Schedule(absl::Duration delay);
  void Continue();
  void StartProbe(const measure::Probe& probe);
  void OnPlanned(uint64_t id, JobSpec job, Planned planned);
  void Await(Run::Stage stage, const v1::Command& command);
  void OnStageOver();
  void OnStageLimit();
  void TakeMemory();
  // Places the next piece of the memory, which is then filled.
  void PlacePiece();
  void Fill();
  void Launch();
  // Tells the nodes that are in the launch in progress to end it.
  void CancelLaunch(const std::string& why);
  bool HasEnoughLaunches() const;
  void OnLaunchDone(int node, const v1::LaunchDone& done);
  // Ends the probe: releases its plan and memory, keeps its times, and starts the next one.
  void EndRun();
  void FreeMemory(const Run& run);
  // Computes the machine of the survey, which is done, on the worker.
  void Finish();
  // `errors` are those of single figures.
  void OnComputed(int figures, absl::StatusOr<measure::CheckedWorld> measured,
                  std::vector<std::string> errors);
  std::string PathOf(const Run& run) const;

  const Parts parts_;
  Metrics::Counter* const probes_;
  Metrics::Counter* const dropped_;
  v1::WorldMachine known_;
  std::shared_ptr<const Machine> machine_;  // known_.machine()
  int64_t last_version_ = 0;                // of all machines since the start
  std::vector<std::string> hardware_;  // of known_, or whose file is being read; empty: none yet
  bool due_ = false;
  bool asked_ = false;                     // for the measurement that is due
  std::optional<measure::Survey> survey_;  // of a measurement that has begun
  std::unique_ptr<Run> run_;               // null: no probe
  bool computing_ = false;                 // the machine of a survey that is done
  std::vector<std::function<void()>> waiting_;
  bool scheduled_ = false;
  Loop::Timer timer_;
  int64_t used_ns_ = 0;  // of the last MakeWay; 0: none
  uint64_t next_id_;
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

}  // namespace agmm
