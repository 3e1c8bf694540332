#include "daemon/measure/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "daemon/sequencer/hardware.h"
#include "kernels/base/status.h"
#include "kernels/base/units.h"
#include "proto/convert/tuning_messages.h"

namespace agmm {

using measure::TuningFile;

namespace {

// Returns the world ranks of the request's largest mesh.
absl::StatusOr<std::vector<int>> RanksOf(const v1::StoreTuningRequest& request, size_t world) {
  std::vector<int> ranks(request.ranks().begin(), request.ranks().end());
  if (ranks.empty()) {
    int most = 0;
    for (const v1::TunedPlan& plan : request.plans()) {
      const auto& counts = plan.ranks_per_node();
      most = std::max(most, std::accumulate(counts.begin(), counts.end(), 0));
    }
    ranks.resize(most);
    std::iota(ranks.begin(), ranks.end(), 0);
  }
  for (const int rank : ranks) {
    if (rank >= 0 && rank < static_cast<int>(world)) continue;
    return absl::InvalidArgumentError(absl::StrFormat(
        "the plans are for rank %d; the world has %d, 0 to %d", rank, world, world - 1));
  }
  if (std::set<int>(ranks.begin(), ranks.end()).size() < ranks.size()) {
    return absl::InvalidArgumentError(
        absl::StrFormat("ranks %s has one twice; give each once", FormatRanks(ranks)));
  }
  return ranks;
}

// Completes a plan that was measured on `ranks`.
absl::Status Place(const std::vector<int>& ranks, const std::vector<WorldRank>& world,
                   const Machine& machine, TunedPlan* plan) {
  Topology topology;
  for (const int rank : ranks) topology.node_of_rank.push_back(world[rank].node);
  TuningKey& key = plan->key;
  if (const std::vector<int> counts = RanksPerNode(topology); counts != key.ranks_per_node) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "ranks_per_node is %s, but ranks %s %s", absl::StrJoin(key.ranks_per_node, ", "),
        FormatRanks(ranks),
        counts.empty()
            ? "change between nodes; give the ranks of each node as neighbours"
            : absl::StrCat("are ", absl::StrJoin(counts, ", "), " on their nodes; give these")));
  }
  key.hardware = HardwareOf(ranks, world);
  key.between_bytes_per_ns = MeasuredBetween(topology, machine);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TunedPlan>> PlansOf(const v1::StoreTuningRequest& request,
                                               const std::vector<int>& ranks,
                                               const std::vector<WorldRank>& world,
                                               const Machine& machine) {
  std::vector<TunedPlan> plans;
  for (int i = 0; i < request.plans_size(); ++i) {
    const std::string field = absl::StrFormat("plans[%d]", i);
    const auto valid = FromProto(request.plans(i));
    if (!valid.ok()) return Annotate(valid.status(), field);
    TunedPlan& plan = plans.emplace_back(*valid);
    const std::vector<int>& counts = plan.key.ranks_per_node;
    const size_t size = std::accumulate(counts.begin(), counts.end(), 0);
    if (!request.ranks().empty() && ranks.size() != size) {
      return absl::InvalidArgumentError(
          absl::StrFormat("ranks has %d entries, but mesh %s of %s has %d; give its own",
                          ranks.size(), plan.key.mesh, field, size));
    }
    const std::vector<int> own(ranks.begin(), ranks.begin() + static_cast<int64_t>(size));
    AGMM_RETURN_IF_ERROR(Annotate(Place(own, world, machine, &plan), field));
  }
  return plans;
}

}  // namespace

Tuner::Tuner(Parts parts)
    : parts_(std::move(parts)), file_(std::make_shared<TuningFile>(parts_.folder)) {
  parts_.worker->Post([this, alive = alive_, loop = parts_.loop, file = file_] {
    absl::StatusOr<TuningText> read = file->Read();
    if (!read.ok()) {
      const std::string wrong(read.status().message());
      spdlog::warn("no stored tuned plan is used: {}", wrong);
      read = TuningText{{}, {wrong}};
    } else if (!read->skipped.empty()) {
      spdlog::warn("{} cannot be used; {}",
                   Counted(static_cast<int64_t>(read->skipped.size()), "stored tuned plan"),
                   read->skipped[0]);
    }
    auto known = std::make_shared<Known>(KnownOf(*read));
    loop->Post([this, alive, known] {
      if (*alive) Know(std::move(*known));
    });
  });
}

Tuner::~Tuner() { *alive_ = false; }

// On the worker.
Tuner::Known Tuner::KnownOf(const TuningText& stored) const {
  Known known;
  for (const TuningText::Entry& entry : stored.entries) {
    known.plans.push_back(entry.plan);
    *known.status.add_plans() = ToProto(entry.plan);
  }
  for (const TuningText::Entry& entry : parts_.shipped().entries) {
    known.plans.push_back(entry.plan);
    *known.status.add_shipped() = ToProto(entry.plan);
  }
  known.status.set_file(file_->path());
  *known.status.mutable_skipped() = {stored.skipped.begin(), stored.skipped.end()};
  return known;
}

void Tuner::Know(Known known) {
  table_ =
      known.plans.empty() ? nullptr : std::make_shared<const TuningTable>(std::move(known.plans));
  status_ = std::make_shared<const v1::TuningStatus>(std::move(known.status));
  for (const Reply<v1::TuningStatus>& reply : std::exchange(waiting_, {})) reply(*status_);
}

void Tuner::GetTuning(const CallContext&, const v1::GetTuningRequest&,
                      Reply<v1::TuningStatus> reply) {
  status_ == nullptr ? waiting_.push_back(std::move(reply)) : reply(*status_);
}

// The request is complete, and the nodes of its ranks are ready. The rest takes long for thousands
// of plans.
void Tuner::StoreTuning(const CallContext&, const v1::StoreTuningRequest& request,
                        Reply<v1::TuningStatus> reply) {
  const absl::StatusOr<std::vector<int>> ranks = RanksOf(request, parts_.members->ranks().size());
  if (!ranks.ok()) return reply(ranks.status());
  if (absl::Status ready = parts_.members->Ready(*ranks); !ready.ok()) return reply(ready);
  parts_.worker->Post([this, alive = alive_, loop = parts_.loop, file = file_, request,
                       world = parts_.members->ranks(), machine = parts_.machine(), ranks = *ranks,
                       reply = std::move(reply)] {
    const absl::StatusOr<std::vector<TunedPlan>> plans = PlansOf(request, ranks, world, *machine);
    if (!plans.ok()) return reply(plans.status());
    const absl::StatusOr<TuningText> stored = file->Add(*plans);
    if (!stored.ok()) return reply(stored.status());
    auto known = std::make_shared<Known>(KnownOf(*stored));
    loop->Post([this, alive, known, count = plans->size(), reply] {
      if (!*alive) return;
      Know(std::move(*known));
      spdlog::info("stored {}; {} in all", Counted(static_cast<int64_t>(count), "tuned plan"),
                   status_->plans_size());
      reply(*status_);
    });
  });
}

}  // namespace agmm
