#include "daemon/measure/measurer.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/measure/epoch_times.h"
#include "kernels/base/large_pages.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "proto/convert/rpc_status.h"
#include "proto/convert/time.h"

namespace agmm {
namespace {

using measure::CheckedWorld;
using measure::MachineOf;
using measure::PresetOf;
using measure::Probe;
using measure::Survey;

// Plans, launches and tensors of jobs have lower ids, which begin at 1.
constexpr uint64_t kFirstId = uint64_t{1} << 62;
// Epochs of a launch take about this long together.
constexpr double kLaunchNs = 8e6;
constexpr int kMaxEpochs = 64;
// A launch has at most this many times the epochs of the one before, because few epochs may take
// much less time each: links let short bursts through, and a message may arrive early.
constexpr int kMostGrowth = 4;
// Launches of a probe: the first one packs and connects, and tells how long an epoch takes.
constexpr int kLaunches = 6;
// The launches of products whose times are subtracted from each other, in each of their rounds.
constexpr int kRowsLaunches = 9;
// Launches go on up to this number while the middle half of their times spreads by more than the
// factor, because another program disturbs them.
constexpr int kMostLaunches = 30;
constexpr double kMostSpread = 1.2;
// A probe that hangs ends with an error.
constexpr absl::Duration kTimeout = absl::Seconds(2);
// The world is idle for so long before a measurement that was asked for.
constexpr absl::Duration kShortQuiet = absl::Milliseconds(100);
// The part of the free memory that a probe may take.
constexpr int64_t kMemoryShare = 4;
constexpr int64_t kFillColumns = 1024;
// Memory is placed and filled in pieces, because a job may have to wait for one. They end where
// large pages do: a page that belongs to two tensors is never a large one.
constexpr int64_t kPieceBytes = kLargePageBytes;

bool IsRows(const Probe& probe) { return probe.width > 0; }

int LaunchesOf(const Probe& probe) { return IsRows(probe) ? kRowsLaunches : kLaunches; }

bool IsSteady(std::vector<double> times_ns) {
  if (times_ns.empty()) return true;
  std::sort(times_ns.begin(), times_ns.end());
  return times_ns[times_ns.size() * 3 / 4] <= kMostSpread * times_ns[times_ns.size() / 4];
}

// Returns the median of a message's times, because links let short bursts through above their
// sustained rate, of times that are subtracted from each other, and of ranks that share a node,
// because one that has a core of both for itself is too fast. For other probes it returns the lower
// quartile, because other programs on a host only make times longer.
double UsualTime(const Probe& probe, bool shares_node, std::vector<double> times_ns) {
  const size_t part = measure::IsMessage(probe) || IsRows(probe) || shares_node ? 2 : 4;
  const auto usual = times_ns.begin() + static_cast<int64_t>(times_ns.size() / part);
  std::nth_element(times_ns.begin(), usual, times_ns.end());
  return *usual;
}

void SetVersion(int64_t version, CheckedWorld* checked) {
  checked->world.mutable_machine()->set_version(version);
  checked->machine.version = version;
}

}  // namespace

Measurer::Measurer(Parts parts)
    : parts_(std::move(parts)),
      probes_(parts_.metrics->counter("measure_probes_total")),
      dropped_(parts_.metrics->counter("measure_probes_dropped_total")),
      next_id_(kFirstId) {
  KnowPreset();
}

// Presets are part of the program, and valid.
void Measurer::KnowPreset() { Know(*measure::Check(PresetOf(parts_.preset))); }

void Measurer::Know(CheckedWorld checked) {
  known_ = std::move(checked.world);
  last_version_ = std::max(last_version_, checked.machine.version);
  machine_ = std::make_shared<const Machine>(std::move(checked.machine));
}

Measurer::~Measurer() { *alive_ = false; }

bool Measurer::MakeWay() {
  used_ns_ = parts_.clock->Nanos();
  if (run_ == nullptr) return true;
  if (!std::exchange(run_->dropped, true) && run_->stage == Run::Stage::kRunning)
    CancelLaunch("a call needs the devices");
  return !run_->offset_bytes.has_value();
}

void Measurer::CancelLaunch(const std::string& why) {
  v1::Command command;
  command.mutable_cancel_launch()->set_job_id(run_->launch);
  *command.mutable_cancel_launch()->mutable_reason() = ToProto(absl::CancelledError(why));
  for (int node : run_->awaited) parts_.members->Send(node, command);
}

v1::MachineStatus Measurer::Status() const {
  v1::MachineStatus status;
  *status.mutable_world() = known_;
  for (int node = 0; node < parts_.members->node_count(); ++node)
    status.add_node_names(parts_.members->node_name(node));
  status.set_state(v1::MachineStatus::STATE_IDLE);
  if (!due_) return status;
  if (survey_.has_value()) {
    status.set_probes_done(survey_->done());
    status.set_probe_count(survey_->count());
  }
  const bool measures = run_ != nullptr || computing_;
  status.set_state(measures ? v1::MachineStatus::STATE_MEASURING
                            : v1::MachineStatus::STATE_WAITING);
  if (!measures) {
    status.set_waits_for(!Complete()         ? "all nodes to join"
                         : !parts_.is_idle() ? "jobs to end"
                                             : "the world to be idle for a while");
  }
  return status;
}

void Measurer::Measure() {
  due_ = asked_ = true;
  Schedule(absl::ZeroDuration());
}

bool Measurer::Complete() const {
  std::vector<int> all;
  for (size_t rank = 0; rank < parts_.members->ranks().size(); ++rank)
    all.push_back(static_cast<int>(rank));
  return !all.empty() && parts_.members->Ready(all).ok();
}

// Ports are left out, because they say nothing about the hardware.
std::vector<std::string> Measurer::Hardware() const {
  std::vector<std::string> hardware = {absl::StrFormat(
      "world %s of %s", parts_.cluster, Counted(parts_.members->node_count(), "node"))};
  for (int node = 0; node < parts_.members->node_count(); ++node) {
    std::vector<std::string> words = {
        absl::StrFormat("node %s on %s", parts_.members->node_name(node), parts_.hosts[node])};
    for (const WorldRank& rank : parts_.members->ranks()) {
      if (rank.node != node) continue;
      if (words.size() == 1 && !rank.processor.empty()) words.push_back(rank.processor);
      words.push_back(absl::StrFormat("%s in island %d", rank.device, rank.island));
    }
    hardware.push_back(absl::StrJoin(words, "; "));
  }
  return hardware;
}

measure::Site Measurer::SiteNow() const {
  measure::Site site;
  int64_t free_bytes = INT64_MAX;
  const std::vector<WorldRank>& ranks = parts_.members->ranks();
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    site.node_of_rank.push_back(ranks[rank].node);
    site.island_of_rank.push_back(ranks[rank].island);
    site.kind_of_rank.push_back(ranks[rank].kind);
    free_bytes = std::min(free_bytes, parts_.placement->largest_free_bytes(static_cast<int>(rank)));
  }
  site.max_bytes = free_bytes / kMemoryShare;
  return site;
}

void Measurer::OnReady() {
  if (!Complete()) return;
  if (std::vector<std::string> hardware = Hardware(); hardware != hardware_) {
    hardware_ = std::move(hardware);
    KnowPreset();
    survey_.reset();
    due_ = asked_;
    Load();
  }
  if (due_) Schedule(asked_ ? kShortQuiet : parts_.quiet);
}

void Measurer::Load() {
  if (!parts_.folder.has_value()) return;
  parts_.worker->Post(
      [this, alive = alive_, loop = parts_.loop, folder = *parts_.folder, hardware = hardware_] {
        absl::StatusOr<CheckedWorld> loaded = folder.Load(hardware);
        loop->Post([this, alive, hardware, loaded = std::move(loaded)]() mutable {
          if (*alive && hardware == hardware_) OnLoaded(std::move(loaded));
        });
      });
}

void Measurer::OnLoaded(absl::StatusOr<CheckedWorld> loaded) {
  if (known_.has_measure_time()) return;  // measured meanwhile
  if (loaded.ok()) {
    // Plans are kept by name and version.
    if (loaded->machine.version <= last_version_) SetVersion(last_version_ + 1, &*loaded);
    Know(*std::move(loaded));
    spdlog::info("the world's machine is version {}, from {}", known_.machine().version(),
                 parts_.folder->FileOf(hardware_));
    return;
  }
  if (!absl::IsNotFound(loaded.status())) {
    spdlog::warn("the machine on disk is measured again and replaced: {}",
                 std::string(loaded.status().message()));
  }
  due_ = true;
  Schedule(parts_.quiet);
}

void Measurer::Schedule(absl::Duration delay) {
  if (std::exchange(scheduled_, true)) parts_.loop->Cancel(timer_);
  timer_ = parts_.loop->PostAfter(delay, [this, alive = alive_] {
    if (!*alive) return;
    scheduled_ = false;
    Continue();
  });
}

void Measurer::Continue() {
  if (!due_ || run_ != nullptr || computing_) return;
  if (survey_.has_value() && !survey_->Next().has_value()) return Finish();
  // OnReady continues a measurement that waits for nodes.
  if (!Complete()) return;
  const absl::Duration quiet = asked_ ? kShortQuiet : parts_.quiet;
  const absl::Duration idle = absl::Nanoseconds(parts_.clock->Nanos() - used_ns_);
  if (!parts_.is_idle()) return Schedule(quiet);
  if (used_ns_ != 0 && idle < quiet) return Schedule(quiet - idle);
  // Begins again if tensors have since taken memory that the probes count on.
  const measure::Site site = SiteNow();
  if (!survey_.has_value() || site.max_bytes < survey_->site().max_bytes) survey_.emplace(site);
  StartProbe(*survey_->Next());
}

void Measurer::StartProbe(const Probe& probe) {
  run_ = std::make_unique<Run>();
  run_->probe = probe;
  run_->id = next_id_++;
  for (int rank : probe.ranks) run_->nodes.insert(parts_.members->ranks()[rank].node);
  parts_.worker->Post([this, alive = alive_, loop = parts_.loop, id = run_->id, probe,
                       site = survey_->site()] {
    absl::StatusOr<JobSpec> job = JobOf(probe, site.node_of_rank, site.island_of_rank);
    Planned planned;
    planned.status = job.status();
    if (job.ok()) planned = BeginPlan(*job);
    if (planned.status.ok()) FinishPlan(*job, planned);
    loop->Post([this, alive, id, job = job.ok() ? *job : JobSpec(), planned = std::move(planned)] {
      if (*alive) OnPlanned(id, job, planned);
    });
  });
}

void Measurer::OnPlanned(uint64_t id, JobSpec job, Planned planned) {
  if (run_ == nullptr || run_->id != id) return;
  run_->error = planned.status;
  if (!run_->error.ok() || run_->dropped) return EndRun();
  run_->layout = measure::LayOut(job.problem, planned.workspace_bytes);
  run_->job = std::move(job);
  run_->planned = std::move(planned);
  v1::Command command;
  *command.mutable_prepare_plan() = PrepareCommand(run_->id, run_->job, run_->planned);
  Await(Run::Stage::kPreparing, command);
}

void Measurer::Await(Run::Stage stage, const v1::Command& command) {
  run_->stage = stage;
  run_->awaited = run_->nodes;
  for (int node : run_->nodes) parts_.members->Send(node, command);
  // Calls do not wait for a plan, which has no memory yet.
  if (stage == Run::Stage::kPreparing) return;
  parts_.loop->Cancel(run_->limit);
  run_->limit = parts_.loop->PostAfter(parts_.stage_limit, [this, alive = alive_, id = run_->id] {
    if (*alive && run_ != nullptr && run_->id == id) OnStageLimit();
  });
}

// The node may still write to the memory, which is used again only after it has drained. The
// measurement ends, because another probe could cost another generation.
void Measurer::OnStageLimit() {
  const int node = *run_->awaited.begin();
  const std::string why =
      absl::StrFormat("it did not end a probe (%s) within %s", Describe(run_->probe),
                      absl::FormatDuration(parts_.stage_limit));
  due_ = asked_ = false;
  survey_.reset();
  known_.clear_errors();
  known_.add_errors(
      absl::StrFormat("node %s was dropped: %s", parts_.members->node_name(node), why));
  // Ends the generation, and with it the probe.
  parts_.members->Lose(node, why);
}

void Measurer::OnReport(int node, const v1::Report& report) {
  if (run_ == nullptr) return;
  if (report.has_launch_done()) return OnLaunchDone(node, report.launch_done());
  const uint64_t piece = run_->pieces.empty() ? 0 : run_->pieces.back();
  absl::Status error;
  if (report.has_plan_prepared() && report.plan_prepared().plan_id() == run_->id) {
    const v1::PlanPrepared& prepared = report.plan_prepared();
    error = FromProto(prepared.error());
    run_->device_paths.insert(prepared.device_paths().begin(), prepared.device_paths().end());
  } else if (report.has_tensor_placed() && report.tensor_placed().tensor_id() == piece) {
    error = FromProto(report.tensor_placed().error());
  } else if (report.has_tensor_filled() && report.tensor_filled().tensor_id() == piece) {
    error = FromProto(report.tensor_filled().error());
  } else {
    return;
  }
  if (run_->error.ok()) run_->error = std::move(error);
  if (run_->awaited.erase(node) > 0 && run_->awaited.empty()) OnStageOver();
}

void Measurer::OnStageOver() {
  // A job that has come since waits for nothing but the stage.
  if (!run_->error.ok() || run_->dropped || !parts_.is_idle()) {
    run_->dropped |= run_->error.ok();
    return EndRun();
  }
  switch (run_->stage) {
    case Run::Stage::kPlanning: break;
    case Run::Stage::kPreparing: return TakeMemory();
    case Run::Stage::kPlacing: return Fill();
    case Run::Stage::kFilling:
      return run_->placed_bytes < run_->layout.bytes ? PlacePiece() : Launch();
    case Run::Stage::kRunning: return HasEnoughLaunches() ? EndRun() : Launch();
  }
}

// Idle workspaces of jobs are left where they are.
void Measurer::TakeMemory() {
  const Mesh& mesh = run_->job.problem.mesh;
  const int64_t bytes = run_->layout.bytes;
  run_->error = parts_.placement->CheckRoom(mesh.ranks, bytes, {});
  if (!run_->error.ok()) return EndRun();
  run_->offset_bytes =
      parts_.placement->Allocate(mesh.ranks, bytes, MemoryClass::kWorkspace).value();
  PlacePiece();
}

void Measurer::PlacePiece() {
  const Mesh& mesh = run_->job.problem.mesh;
  const int64_t begin = *run_->offset_bytes + run_->placed_bytes;
  const int64_t end =
      std::min(RoundUp(begin + 1, kPieceBytes), *run_->offset_bytes + run_->layout.bytes);
  const int64_t bytes = end - begin;
  const DType dtype = run_->probe.dtype;
  const absl::StatusOr<Tensor> tensor =
      ParseTensor("[M, K]", mesh, bytes / (kFillColumns * SizeOf(dtype)), kFillColumns, dtype);
  run_->pieces.push_back(next_id_++);
  v1::Command command;
  v1::Tensor* const piece = command.mutable_place_tensor()->mutable_tensor();
  piece->set_tensor_id(run_->pieces.back());
  piece->set_offset_bytes(begin);
  piece->set_shard_bytes(bytes);
  *piece->mutable_spec() = ToProto(mesh, *tensor);
  run_->placed_bytes += bytes;
  Await(Run::Stage::kPlacing, command);
}

// Pages that nothing has written are all one page, which stays in the cache.
void Measurer::Fill() {
  v1::Command command;
  command.mutable_fill_shards()->set_tensor_id(run_->pieces.back());
  command.mutable_fill_shards()->mutable_fill()->set_kind(v1::Fill::KIND_INTEGERS);
  Await(Run::Stage::kFilling, command);
}

void Measurer::Launch() {
  v1::Command command;
  v1::LaunchJob* launch = command.mutable_launch_job();
  const int64_t begin = *run_->offset_bytes;
  int count = 1;
  if (run_->launches > 0) {
    // Two at least, because the first one waits for the other nodes to begin.
    const double most = std::min(kMaxEpochs, kMostGrowth * run_->epoch_count);
    count = static_cast<int>(std::clamp(kLaunchNs / std::max(run_->last_ns, 1.0), 2.0, most));
  }
  run_->epoch_count = count;
  run_->launch = next_id_++;
  launch->set_job_id(run_->launch);
  launch->set_plan_id(run_->id);
  launch->set_first_epoch(run_->next_epoch);
  launch->set_epoch_count(count);
  launch->set_workspace_offset_bytes(begin + run_->layout.workspace_offset_bytes);
  *launch->mutable_timeout() = ToProto(kTimeout);
  for (const int64_t offset : run_->layout.offset_bytes) {
    launch->add_offset_bytes(begin + offset);
    launch->add_versions(run_->id);
  }
  run_->next_epoch += count;
  Await(Run::Stage::kRunning, command);
}

bool Measurer::HasEnoughLaunches() const {
  if (run_->launches < LaunchesOf(run_->probe)) return false;
  if (run_->launches >= kMostLaunches) return true;
  for (const auto& [rank, epoch_ns] : run_->epoch_ns)
    if (!IsSteady(epoch_ns)) return false;
  return true;
}

void Measurer::OnLaunchDone(int node, const v1::LaunchDone& done) {
  if (run_->stage != Run::Stage::kRunning || done.job_id() != run_->launch ||
      run_->awaited.erase(node) == 0)
    return;
  const bool timed = run_->launches > 0;
  for (const auto& [rank, mean_ns] : measure::MeanEpochNs(done)) {
    if (timed) run_->epoch_ns[rank].push_back(mean_ns);
    run_->latest_ns = std::max(run_->latest_ns, mean_ns);
  }
  if (absl::Status error = FromProto(done.error()); !error.ok() && run_->error.ok()) {
    run_->error = Annotate(error, absl::StrCat("node ", parts_.members->node_name(node)));
    if (!run_->dropped)
      CancelLaunch(absl::StrCat("the probe failed on node ", parts_.members->node_name(node)));
  }
  if (!run_->awaited.empty()) return;
  ++run_->launches;
  run_->last_ns = std::exchange(run_->latest_ns, 0);
  OnStageOver();
}

void Measurer::EndRun() {
  const std::unique_ptr<Run> over = std::move(run_);
  parts_.loop->Cancel(over->limit);
  if (over->stage != Run::Stage::kPlanning) {
    v1::Command command;
    command.mutable_release_plan()->set_plan_id(over->id);
    for (int node : over->nodes) parts_.members->Send(node, command);
  }
  if (over->offset_bytes.has_value()) FreeMemory(*over);
  if (over->dropped) {
    dropped_->Add();
  } else if (!over->error.ok()) {
    survey_->Fail(std::string(over->error.message()));
  } else {
    probes_->Add();
    measure::EpochTimes times;
    const bool shares_node = over->nodes.size() < over->probe.ranks.size();
    for (const auto& [rank, epoch_ns] : over->epoch_ns)
      times[rank] = UsualTime(over->probe, shares_node, epoch_ns);
    survey_->Add(times, PathOf(*over));
  }
  if (!waiting_.empty()) {
    spdlog::debug("a call waited {} us for the {} of a measurement: {}, {} launches",
                  (parts_.clock->Nanos() - used_ns_) / 1000,
                  over->stage == Run::Stage::kRunning ? "launch" : "memory", Describe(over->probe),
                  over->launches);
  }
  for (const std::function<void()>& call : std::exchange(waiting_, {})) call();
  if (over->dropped) return Schedule(asked_ ? kShortQuiet : parts_.quiet);
  parts_.loop->Post([this, alive = alive_] {
    if (*alive) Continue();
  });
}

void Measurer::FreeMemory(const Run& run) {
  // The nodes then also drop what they have packed of it.
  for (const uint64_t piece : run.pieces) {
    v1::Command command;
    command.mutable_drop_tensor()->set_tensor_id(piece);
    for (int node : run.nodes) parts_.members->Send(node, command);
  }
  parts_.placement->Free(run.job.problem.mesh.ranks, *run.offset_bytes, run.layout.bytes,
                         MemoryClass::kWorkspace);
}

std::string Measurer::PathOf(const Run& run) const {
  if (run.nodes.size() > 1) return parts_.transport;
  return run.device_paths.empty() ? "memory" : absl::StrJoin(run.device_paths, ", ");
}

void Measurer::Finish() {
  const auto survey = std::make_shared<const Survey>(*std::exchange(survey_, std::nullopt));
  computing_ = true;
  parts_.worker->Post([this, alive = alive_, loop = parts_.loop, survey, hardware = hardware_,
                       preset = parts_.preset, name = parts_.cluster] {
    v1::WorldMachine world = MachineOf(*survey, preset);
    world.mutable_machine()->set_name(name);
    *world.mutable_hardware() = {hardware.begin(), hardware.end()};
    const std::vector<std::string> errors(world.errors().begin(), world.errors().end());
    const auto measured =
        std::make_shared<absl::StatusOr<CheckedWorld>>(measure::Check(std::move(world)));
    loop->Post([this, alive, hardware, count = survey->count(), measured, errors] {
      if (!*alive) return;
      computing_ = false;
      if (hardware == hardware_) return OnComputed(count, std::move(*measured), errors);
      if (due_) Schedule(parts_.quiet);
    });
  });
}

void Measurer::OnComputed(int figures, absl::StatusOr<CheckedWorld> measured,
                          std::vector<std::string> errors) {
  due_ = asked_ = false;
  if (!measured.ok()) {
    spdlog::error("the world's machine is not valid, and is left out; this is a bug: {}",
                  std::string(measured.status().message()));
    errors.push_back(
        absl::StrCat("the figures are left out, because they are not those of a "
                     "machine: ",
                     measured.status().message()));
  } else if (!errors.empty()) {
    spdlog::warn("{} of {} figures could not be measured; {}", errors.size(), figures, errors[0]);
  }
  if (!measured.ok() || (measured->world.devices().empty() && measured->world.paths().empty())) {
    *known_.mutable_errors() = {errors.begin(), errors.end()};
    return;
  }
  SetVersion(last_version_ + 1, &*measured);
  *measured->world.mutable_measure_time() = ToProto(parts_.clock->Now());
  Know(*std::move(measured));
  spdlog::info("measured the world: machine version {}, {} of {} figures",
               known_.machine().version(), figures - known_.errors_size(), figures);
  if (!parts_.folder.has_value()) return;
  parts_.worker->Post([folder = *parts_.folder, machine = known_] {
    if (const absl::Status saved = folder.Save(machine); !saved.ok())
      spdlog::warn("the world's machine is not kept: {}", std::string(saved.message()));
  });
}

void Measurer::OnGenerationEnded(const std::vector<int>&, const absl::Status&) {
  if (run_ == nullptr) return;
  const std::unique_ptr<Run> over = std::move(run_);
  parts_.loop->Cancel(over->limit);
  // The nodes drop the rest themselves, and memory is used again only once they have drained.
  if (over->offset_bytes.has_value()) {
    parts_.placement->Free(over->job.problem.mesh.ranks, *over->offset_bytes, over->layout.bytes,
                           MemoryClass::kWorkspace);
  }
  for (const std::function<void()>& call : std::exchange(waiting_, {})) call();
}

}  // namespace agmm
