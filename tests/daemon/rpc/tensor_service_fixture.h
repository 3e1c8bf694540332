// A daemon's tensor service over one device, with a fake sequencer that the test controls.
#pragma once

#include <grpcpp/grpcpp.h>

#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "daemon/rpc/services.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "tests/support/hidden_heap.h"
#include "tests/support/patience.h"

namespace agmm {

inline constexpr uint64_t kTensor = 7, kAccess = 99;

// Grants leases on one tensor, at once or on request, and records their ends.
class FakeControl {
 public:
  // Returns the calls for a node's transfers.
  SequencerCalls calls() {
    SequencerCalls calls;
    calls.get_tensor = [this](const auto&, const auto&, auto reply) { reply(tensor_); };
    calls.begin_lease = std::bind_front(&FakeControl::BeginLease, this);
    calls.end_lease = std::bind_front(&FakeControl::EndLease, this);
    return calls;
  }
  void BeginLease(const CallContext&, const v1::BeginLeaseRequest& request,
                  Reply<v1::BeginLeaseResponse> reply) {
    {
      std::lock_guard lock(mutex_);
      begun_ = request;
      ++begins_;
      changed_.notify_all();
      waiting_ = std::move(reply);
      if (hold_) return;
    }
    Grant();
  }
  void EndLease(const CallContext& call, const v1::EndLeaseRequest& request,
                Reply<v1::EndLeaseResponse> reply) {
    if (IsTakenBack(request)) {
      reply(absl::AbortedError("it is not open yet"));
      if (!granted_meanwhile_) Take()(absl::CancelledError("taken back"));
      return;
    }
    EXPECT_GE(request.lease_id(), kAccess);
    EXPECT_EQ(call.deadline, Deadline::Infinite());
    EXPECT_TRUE(call.cancel->status().ok());
    {
      std::lock_guard lock(mutex_);
      commits_.push_back(request.commit());
      untouched_.push_back(request.untouched());
      pins_.push_back(request.pin());
      ending_ = std::move(reply);
      changed_.notify_all();
      if (hold_end_) return;
    }
    AnswerEnd();
  }

  // Answers the waiting EndLease.
  void AnswerEnd() {
    Reply<v1::EndLeaseResponse> reply;
    {
      std::lock_guard lock(mutex_);
      reply = std::exchange(ending_, nullptr);
    }
    if (!end_error_.ok()) return reply(end_error_);
    v1::EndLeaseResponse response;
    *response.mutable_tensor() = tensor_;
    response.mutable_tensor()->set_version(5);
    reply(response);
  }

  // Answers the waiting BeginLease.
  void Grant() {
    const Reply<v1::BeginLeaseResponse> reply = Take();
    if (!begin_error_.ok()) return reply(begin_error_);
    v1::BeginLeaseResponse response;
    response.set_lease_id(kAccess + begins());
    *response.mutable_tensor() = tensor_;
    reply(response);
  }

  v1::BeginLeaseRequest AwaitBegun() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                                  [this] { return begins_ > 0; }));
    return begun_;
  }
  // Waits for the end of a lease; returns true for each that was committed.
  std::vector<bool> AwaitEnded() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                                  [this] { return !commits_.empty(); }));
    return commits_;
  }
  int begins() {
    std::lock_guard lock(mutex_);
    return begins_;
  }
  std::vector<bool> commits() {
    std::lock_guard lock(mutex_);
    return commits_;
  }

  // For each ended lease, true if it was a write that ended before anything was written.
  std::vector<bool> untouched() {
    std::lock_guard lock(mutex_);
    return untouched_;
  }

  // For each ended lease, true if it became a pin.
  std::vector<bool> pins() {
    std::lock_guard lock(mutex_);
    return pins_;
  }

  void AwaitTakenBack() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, absl::ToChronoNanoseconds(kPatience),
                                  [this] { return taken_back_; }));
  }

  // To be set before a lease is requested.
  bool granted_meanwhile_ = false;  // too late to withdraw a lease
  v1::Tensor tensor_;
  bool hold_ = false, hold_end_ = false;
  absl::Status begin_error_, end_error_;

 private:
  // Returns true if `request` ends a waiting lease.
  bool IsTakenBack(const v1::EndLeaseRequest& request) {
    std::lock_guard lock(mutex_);
    if (waiting_ == nullptr || request.lease_id() != begun_.lease_id()) return false;
    EXPECT_TRUE(request.untouched());
    taken_back_ = true;
    changed_.notify_all();
    return true;
  }
  Reply<v1::BeginLeaseResponse> Take() {
    std::lock_guard lock(mutex_);
    return std::exchange(waiting_, nullptr);
  }

  std::mutex mutex_;  // guards all below
  std::condition_variable changed_;
  v1::BeginLeaseRequest begun_;
  Reply<v1::BeginLeaseResponse> waiting_;
  int begins_ = 0;
  bool taken_back_ = false;
  Reply<v1::EndLeaseResponse> ending_;
  std::vector<bool> commits_, untouched_, pins_;
};

class TensorContents : public ::testing::Test {
 protected:
  void SetUp() override {
    heap_ = *device_->CreateHeap(16 << 20);
    hidden_.emplace(heap_->host());
    store_ = std::make_unique<TensorStore>(
        0, std::vector<Heap*>{hides_ ? static_cast<Heap*>(&*hidden_) : heap_.get()});
    io_ = std::make_unique<TensorIo>(&loop_, store_.get(), nullptr, 0, std::vector<int>{0});
    const Mesh mesh = *ParseMesh("x=1");
    const Tensor tensor = *ParseTensor("[M_x, K]", mesh, kRows, kCols, DType::kF32);
    control_.tensor_.set_tensor_id(kTensor);
    *control_.tensor_.mutable_spec() = ToProto(mesh, tensor);
    control_.tensor_.set_shard_bytes(ShardBytes(mesh, tensor));
    ASSERT_EQ(store_->Place(control_.tensor_), absl::OkStatus());
    transfers_ = TransferMemory(transfer_bytes_);
    const TransferParts parts{&calls_, io_.get(), &loop_, kNode, transfers_};
    uploads_ = std::make_unique<Uploads>(parts, limits_);
    mappings_.emplace(parts, store_.get(), std::vector<std::string>{"n0"}, silence_);
    service_ = MakeContentService(parts, uploads_.get(), &*mappings_);
    grpc::ServerBuilder builder;
    builder.RegisterService(service_.get());
    Configure(&builder);
    server_ = builder.BuildAndStart();
    stub_ = v1::ContentService::NewStub(server_->InProcessChannel({}));
  }
  void TearDown() override {
    server_->Shutdown();
    // Stops while the objects that its tasks use still exist, such as members of derived fixtures.
    loop_.Stop();
  }
  virtual void Configure(grpc::ServerBuilder*) {}

  // Every element's byte pattern identifies its place.
  static std::string Contents() {
    std::string bytes(kRows * kCols * 4, '\0');
    for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
    return bytes;
  }
  // Returns the bytes on the device.
  std::string Stored() {
    std::string bytes(kTotal, '\0');
    absl::Status status;
    io_->Read(control_.tensor_, 0, absl::MakeSpan(bytes), io_->local_generation(),
              [&](absl::Status s) { status = s; });
    EXPECT_EQ(status, absl::OkStatus());
    return bytes;
  }

  static constexpr int64_t kRows = 1000, kCols = 700, kTotal = kRows * kCols * 4;  // 2.7 MiB
  static constexpr int kNode = 3;
  FakeControl control_;
  const SequencerCalls calls_ = control_.calls();
  UploadLimits limits_;
  int64_t transfer_bytes_ = int64_t{512} << 20;
  std::shared_ptr<OwnerQuota> transfers_;
  absl::Duration silence_ = absl::Seconds(60);
  Loop loop_{"a test"};
  std::unique_ptr<Device> device_ = *CreateCpuDevice(1);
  bool hides_ = false;  // to be set before SetUp: the host cannot address the store's heap
  std::unique_ptr<Heap> heap_;
  std::optional<test::HiddenHeap> hidden_;
  std::unique_ptr<TensorStore> store_;
  std::unique_ptr<TensorIo> io_;
  std::unique_ptr<Uploads> uploads_;
  std::optional<Mappings> mappings_;
  std::unique_ptr<grpc::Service> service_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<v1::ContentService::Stub> stub_;
};

}  // namespace agmm
