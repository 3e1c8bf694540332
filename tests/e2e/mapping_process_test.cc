// Clients that are stopped or killed while they write to a mapped tensor. Their memory is not
// reused before they have unmapped it or ended, and only requests for this memory wait for that.
#include <signal.h>

#include <memory>
#include <string>
#include <vector>

#include "client/agmm.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/base/deadline.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 1024, kCols = 1024, kBytes = kRows * kCols * 4;  // of a heap of 32 MiB

int64_t HeldBytes(const v1::GetStatusResponse& status) {
  int64_t bytes = 0;
  for (const v1::NodeStatus& node : status.nodes())
    for (const v1::DeviceStatus& device : node.devices()) bytes += device.held_bytes();
  return bytes;
}

// Two nodes; the mapped tensor is on the second one's device, rank 1.
class MappingProcess : public ::testing::Test {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    Connect();
    Put("A");
    free_bytes_ = FreeBytes(world_.Status(1));
  }
  void Connect() {
    Result<std::unique_ptr<Client>> client = Client::Connect({.endpoint = world_.endpoint(1)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
  }
  static TensorSpec Spec(int64_t rows = kRows) {
    return {.rows = rows, .cols = kCols, .sharding = "[M_x, K]", .mesh = "x=1", .ranks = {1}};
  }
  Status TryPut(const std::string& name, Milliseconds timeout = {}) {
    return client_
        ->Put(name, Spec(), ones_.data(), kBytes, {.timeout = timeout, .progress = nullptr})
        .status();
  }
  void Put(const std::string& name) {
    const Status status = TryPut(name);
    EXPECT_TRUE(status.ok()) << status.ToString();
  }
  void ExpectOnes(const std::string& name) {
    std::vector<float> got(kRows * kCols, -1);
    const auto tensor = client_->Get(name, got.data(), kBytes);
    ASSERT_TRUE(tensor.ok()) << tensor.status().ToString();
    EXPECT_TRUE(got == ones_) << name << " was written to by another writer";
  }
  // Starts a client that writes to "A" from now on.
  std::unique_ptr<Process> StartWriter(const std::string& more = "") {
    std::vector<std::string> command = {Program("mapping_client"), world_.socket(1), "A"};
    if (!more.empty()) command.push_back(more);
    auto writer = std::make_unique<Process>(command, world_.Path("writer"));
    const Deadline end = Deadline::After(kPatience);
    while (writer->out().find("mapped") == std::string::npos && !end.HasPassed() &&
           writer->Running())
      absl::SleepFor(absl::Milliseconds(5));
    EXPECT_THAT(writer->out(), HasSubstr("mapped")) << writer->err();
    return writer;
  }
  ::testing::AssertionResult WaitHeld(int64_t bytes) {
    return world_.WaitFor(1, "the held bytes", [&](const v1::GetStatusResponse& status) {
      return status.ready() && HeldBytes(status) == bytes;
    });
  }
  // Restarts `node` after a SIGKILL.
  void Restart(int node) {
    const uint64_t before = world_.Status(1).generation();
    world_.Kill(node);
    world_.Start(node);
    ASSERT_TRUE(world_.WaitFor(1, "a new generation", [&](const v1::GetStatusResponse& status) {
      return status.ready() && status.generation() > before;
    }));
    Connect();
  }

  const std::vector<float> ones_ = std::vector<float>(kRows * kCols, 1.0f);
  World world_{{.nodes = 3}};
  std::unique_ptr<Client> client_;
  int64_t free_bytes_ = 0;
};

TEST_F(MappingProcess, AKilledWriterReleasesItsMemory) {
  auto writer = StartWriter();
  EXPECT_EQ(TryPut("A", Milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
  writer.reset();
  Put("A");
  ExpectOnes("A");
  EXPECT_EQ(HeldBytes(world_.Status(1)), 0);
}

TEST_F(MappingProcess, AStoppedWritersTensorWaitsForItAndTheNewWorldDoesNot) {
  auto writer = StartWriter();
  writer->Stop();
  Restart(2);
  // The world is ready again, but the tensor is still leased.
  EXPECT_TRUE(WaitHeld(kBytes));
  EXPECT_EQ(TryPut("A", Milliseconds(50)).code(), StatusCode::kDeadlineExceeded);
  Put("B");
  EXPECT_THAT(world_.Ctl(1, {"tensor", "list"}).out, HasSubstr("held"));
  // The log names the writer.
  EXPECT_TRUE(world_.WaitFor(1, "a log of the writer", [&](const v1::GetStatusResponse&) {
    return ReadFile(world_.Path("n1.err"))
               .find("pid " + std::to_string(writer->pid()) + " still has") != std::string::npos;
  }));
  writer->Signal(SIGCONT);
  EXPECT_TRUE(WaitHeld(0));
  Put("A");
  ExpectOnes("A");
  ExpectOnes("B");
  EXPECT_TRUE(writer->Running()) << "it writes to memory of its own";
}

TEST_F(MappingProcess, ANewSequencerDoesNotReuseAStoppedWritersSpace) {
  auto writer = StartWriter();
  writer->Stop();
  Restart(0);
  EXPECT_TRUE(WaitHeld(kBytes));
  // No other memory is missing.
  Put("A");
  EXPECT_EQ(FreeBytes(world_.Status(1)), free_bytes_ - kBytes);
  const Status all = client_->Create("all", Spec(7 * kRows)).status();
  EXPECT_EQ(all.code(), StatusCode::kResourceExhausted);
  EXPECT_THAT(all.message(), HasSubstr("held by a client"));
  writer->Signal(SIGCONT);
  EXPECT_TRUE(WaitHeld(0));
  ExpectOnes("A");
  EXPECT_EQ(FreeBytes(world_.Status(1)), free_bytes_);
}

TEST_F(MappingProcess, AKilledStoppedWriterReleasesItsMemory) {
  auto writer = StartWriter();
  writer->Stop();
  Restart(2);
  EXPECT_TRUE(WaitHeld(kBytes));
  // Its name is free at once.
  EXPECT_TRUE(client_->Delete("A").ok());
  Put("A");
  EXPECT_EQ(FreeBytes(world_.Status(1)), free_bytes_ - kBytes);
  writer.reset();
  EXPECT_TRUE(WaitHeld(0));
  EXPECT_EQ(FreeBytes(world_.Status(1)), free_bytes_);
}

TEST_F(MappingProcess, AForkedChildOfTheWriterHoldsNothing) {
  auto writer = StartWriter("fork");
  writer->Signal(SIGKILL);
  EXPECT_TRUE(writer->Wait(kPatience).has_value());
  // The child keeps running and printing.
  EXPECT_TRUE(world_.WaitFor(1, "a forked child", [&](const v1::GetStatusResponse&) {
    return writer->out().find("forked\n") != std::string::npos;
  }));
  Put("A");
  ExpectOnes("A");
}

}  // namespace
}  // namespace agmm
