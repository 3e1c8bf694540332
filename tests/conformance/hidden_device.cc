#include "tests/conformance/hidden_device.h"

#include "kernels/base/status.h"

namespace agmm::test {
namespace {

// Owns the heap that it hides.
struct Hiding final : HiddenHeap {
  explicit Hiding(std::unique_ptr<Heap> heap) : HiddenHeap(heap->host()), hidden(std::move(heap)) {}
  const std::unique_ptr<Heap> hidden;
};

Heap* Hidden(Heap* heap) {
  return heap == nullptr ? nullptr : static_cast<Hiding*>(heap)->hidden.get();
}

// The device's own executor, which is the only one to see the memory.
class HiddenExecutor final : public Executor {
 public:
  explicit HiddenExecutor(std::unique_ptr<Executor> executor) : executor_(std::move(executor)) {}

  absl::Status Prepare(const Problem& problem, std::shared_ptr<const Schedule> schedule,
                       const Peers& peers) override {
    Peers seen = peers;
    for (Heap*& heap : seen.heaps) heap = Hidden(heap);
    return executor_->Prepare(problem, std::move(schedule), seen);
  }
  int64_t size_bytes() const override { return executor_->size_bytes(); }
  std::set<std::string> device_paths() const override { return executor_->device_paths(); }
  std::set<std::string> device_products() const override { return executor_->device_products(); }
  void Run(uint64_t epoch, const Operands& operands, Deadline deadline,
           DoneCallback done) override {
    executor_->Run(epoch, operands, deadline, std::move(done));
  }
  void Signal(int index, uint64_t epoch) override { executor_->Signal(index, epoch); }
  void Cancel(const absl::Status& reason) override { executor_->Cancel(reason); }
  void Observe(bool times, StateCallback done) override {
    executor_->Observe(times, std::move(done));
  }

 private:
  const std::unique_ptr<Executor> executor_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Heap>> HiddenDevice::CreateHeap(int64_t size_bytes) {
  AGMM_ASSIGN_OR_RETURN(std::unique_ptr<Heap> heap, device_->CreateHeap(size_bytes));
  return std::make_unique<Hiding>(std::move(heap));
}

std::unique_ptr<Executor> HiddenDevice::CreateExecutor() {
  return std::make_unique<HiddenExecutor>(device_->CreateExecutor());
}

void HiddenDevice::ForgetContents(Heap* heap, int64_t offset, int64_t bytes) {
  device_->ForgetContents(Hidden(heap), offset, bytes);
}

}  // namespace agmm::test
