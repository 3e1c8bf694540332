#include "daemon/node/runner.h"

#include <future>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "kernels/base/failpoint.h"
#include "kernels/base/memory.h"
#include "kernels/device/message_slot.h"
#include "proto/convert/rpc_status.h"

namespace agmm {
namespace {
// A message for an epoch more than this many after the next one is dropped, because no peer can be
// so far ahead.
constexpr uint64_t kMaxMessageEpochsAhead = uint64_t{1} << 20;
}  // namespace

Runner::Runner(int self_node, int first_rank, std::vector<LocalDevice> devices,
               std::vector<int> node_of_rank, Metrics* metrics, ReportFn report)
    : node_{self_node, first_rank, std::move(devices), std::move(node_of_rank)},
      report_(std::move(report)),
      prepared_(metrics->counter("runner_plans_prepared_total")),
      launched_(metrics->counter("runner_launches_total")),
      dropped_(metrics->counter("runner_messages_dropped_total")),
      parked_total_(metrics->counter("runner_messages_parked_total")),
      launches_(
          self_node, node_.devices.size(), &calls_, &plans_,
          [this](v1::Report report) { Report(std::move(report)); }, [this] { OfferParked(); }) {}

Runner::~Runner() {
  auto drained = std::make_shared<std::promise<void>>();
  EndGeneration(absl::CancelledError("the daemon is stopping"),
                [drained] { drained->set_value(); });
  drained->get_future().wait();
}

absl::Status Runner::status() const {
  return helper_.status().ok() ? large_helper_.status() : helper_.status();
}

void Runner::SetTransport(Transport* transport, std::function<void()> offer_again) {
  node_.transport = transport;
  offer_again_ = std::move(offer_again);
}

PlanPtr Runner::NewPlan(Loop* helper) {
  ++live_plans_;
  return PlanPtr(new LocalPlan, [this, helper](LocalPlan* plan) {
    helper->Post([this, plan] {
      plan_bytes_ -= plan->size_bytes;
      delete plan;
      calls_.Do([this] {
        --live_plans_;
        FinishIfDrained();
      });
    });
  });
}

void Runner::Prepare(const v1::PreparePlan& command) {
  calls_.Do([&] {
    if (ending_) return;
    Loop& helper = command.large() ? large_helper_ : helper_;
    helper.Post([this, command, plan = NewPlan(&helper)] { PrepareNow(command, plan); });
  });
}

void Runner::PrepareNow(const v1::PreparePlan& command, const PlanPtr& plan) {
  while (command.large() && AGMM_FAILPOINT("runner.hold_large_plan"))
    absl::SleepFor(absl::Milliseconds(1));
  v1::Report report;
  v1::PlanPrepared* answer = report.mutable_plan_prepared();
  answer->set_plan_id(command.plan_id());
  const absl::Status status = WithinMemory(
      "the plan", [&] { return plan->Prepare(node_, command, answer->mutable_plan_hash()); });
  // Returns the memory that planning needed in addition to the plan.
  if (command.large()) ReturnFreedMemory();
  plan_bytes_ += plan->size_bytes;
  answer->set_plan_bytes(plan->size_bytes);
  for (const std::string& path : plan->device_paths) answer->add_device_paths(path);
  for (const std::string& product : plan->device_products) answer->add_device_products(product);
  if (!status.ok()) *answer->mutable_error() = ToProto(status);
  if (status.ok()) prepared_->Add();
  calls_.Do([&] {
    if (status.ok() && !ending_) plans_[plan->id] = plan;
    Report(std::move(report));
  });
}

void Runner::Launch(const v1::LaunchJob& command) {
  launched_->Add();
  calls_.Do([&] {
    if (!ending_) launches_.Add(command, FindPlan(command.plan_id()));
  });
}

void Runner::Cancel(const v1::CancelLaunch& command) {
  absl::Status reason = FromProto(command.reason());
  if (reason.ok())
    reason = absl::CancelledError(absl::StrFormat("job %d was cancelled", command.job_id()));
  calls_.Do([&] { launches_.Cancel(command.job_id(), reason); });
}

void Runner::Release(const v1::ReleasePlan& command) {
  calls_.Do([&] {
    const PlanPtr plan = FindPlan(command.plan_id());
    if (plan == nullptr) return;
    plan->released = true;
    EraseIfOver(plan, &plans_);
  });
}

void Runner::ReportProgress(const v1::ReportProgress& query, std::vector<v1::NodePath> paths) {
  calls_.Do([&] { launches_.Observe(query, paths); });
}

void Runner::EndGeneration(const absl::Status& reason, std::function<void()> drained) {
  calls_.Do([&] {
    ending_ = true;
    drained_.push_back(std::move(drained));
    parked_ = false;  // the transport drops the messages with the generation
    for (const auto& [id, plan] : Plans(plans_)) {
      plan->released = true;
      launches_.Fail(plan, reason);
      launches_.Advance(plan);
    }
    FinishIfDrained();
  });
}

void Runner::FinishIfDrained() {
  if (!ending_ || live_plans_ > 0) return;
  ending_ = false;
  for (std::function<void()>& drained : std::exchange(drained_, {}))
    calls_.AddLast(std::move(drained));
}

void Runner::Report(v1::Report report) {
  if (ending_) return;
  calls_.Add([this, report = std::move(report)]() mutable { report_(std::move(report)); });
}

Receiver::Verdict Runner::Accept(int from_node, const Message& message, int64_t bytes,
                                 Arrival* arrival) {
  Verdict verdict = Verdict::kDrop;
  calls_.Do([&] { verdict = Resolve(from_node, message, bytes, arrival); });
  if (verdict == Verdict::kDrop) dropped_->Add();
  if (verdict == Verdict::kPark) parked_total_->Add();
  return verdict;
}

Receiver::Verdict Runner::Resolve(int from_node, const Message& message, int64_t bytes,
                                  Arrival* arrival) {
  const PlanPtr plan = FindPlan(message.plan);
  if (plan == nullptr || plan->released || !plan->failure.ok() || message.epoch == 0 ||
      message.epoch > plan->next_epoch + kMaxMessageEpochsAhead)
    return Verdict::kDrop;
  const LocalLaunch* launch = LocalLaunches::Find(*plan, message.epoch);
  const ArrivalContext context{plan->problem,     *plan->schedule,
                               plan->peers.nodes, node_.index,
                               plan->peers.heaps, launch == nullptr ? nullptr : &launch->operands,
                               &plan->names};
  absl::StatusOr<Arrival> resolved = ResolveArrival(context, from_node, message, bytes);
  // The message is valid but early: its bytes have no destination before the epoch is launched
  // here.
  if (absl::IsFailedPrecondition(resolved.status()) && message.epoch >= plan->next_epoch) {
    parked_ = true;
    return Verdict::kPark;
  }
  if (!resolved.ok()) return Verdict::kDrop;
  ++plan->receives;
  *arrival = *std::move(resolved);
  arrival->plan = plan;
  return Verdict::kReceive;
}

// Fails the epoch, because the step that waits for the message would wait until its deadline.
void Runner::Lost(int, const Message& message, const absl::Status& why) {
  calls_.Do([&] {
    const PlanPtr plan = FindPlan(message.plan);
    if (plan == nullptr) return;
    launches_.Fail(plan, why);
    launches_.Advance(plan);
  });
}

void Runner::Arrived(int from_node, const Message& message, const Arrival& arrival,
                     const absl::Status& status) {
  const auto plan = std::static_pointer_cast<LocalPlan>(arrival.plan);
  if (status.ok()) Signal(arrival, message.epoch, plan->peers.executors);
  calls_.Do([&] {
    --plan->receives;
    if (!status.ok() && plan->failure.ok()) {
      launches_.FailEpoch(plan, message.epoch,
                          absl::AbortedError(absl::StrFormat(
                              "bytes of epoch %d from node %d did not arrive: %s", message.epoch,
                              from_node, std::string(status.message()))));
    }
    launches_.Advance(plan);
  });
}

void Runner::OfferParked() {
  if (std::exchange(parked_, false) && offer_again_) calls_.Add(offer_again_);
}

PlanPtr Runner::FindPlan(uint64_t id) const {
  const auto it = plans_.find(id);
  return it == plans_.end() ? nullptr : it->second;
}

std::vector<const Device*> Runner::devices() const {
  std::vector<const Device*> devices;
  for (const LocalDevice& local : node_.devices) devices.push_back(local.device);
  return devices;
}

}  // namespace agmm
