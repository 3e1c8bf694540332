// A world measures itself, keeps the result, and makes way for jobs.
#include <signal.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/ctl.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

WorldOptions MeasuredIn(const std::string& folder, int devices = 1) {
  return {.nodes = 2, .devices = devices, .local = absl::StrFormat("  machines: \"%s\"\n", folder)};
}

// Returns the files of machines, without drafts.
std::vector<std::string> FilesIn(const std::string& folder) {
  std::vector<std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder))
    if (entry.path().extension() == ".txtpb") files.push_back(entry.path());
  return files;
}

class Topo : public Ctl {
 protected:
  Topo() : Topo(1) {}
  explicit Topo(int devices) : Topo(SharedFolder(), devices) {}
  Topo(const std::string& folder, int devices) : Ctl(MeasuredIn(folder, devices)) {}

  // The folder of this test's worlds.
  static std::string SharedFolder() {
    static const TempFolder folder("machines");
    return folder / ::testing::UnitTest::GetInstance()->current_test_info()->name();
  }
  json Machine() { return OkJson({"topo"})["world"]; }
  // Returns the machine once a measurement that no one asked for is over.
  json AwaitMachine() {
    json world;
    EXPECT_TRUE(Eventually([&] {
      world = Machine();
      return !world["measure_time"].is_null();
    }));
    return world;
  }
  void Restart() {
    for (int node : {0, 1}) world_.Kill(node);
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
  }
  std::string FileOfMachine() {
    EXPECT_TRUE(Eventually([&] {
      return std::filesystem::exists(SharedFolder()) && FilesIn(SharedFolder()).size() == 1;
    }));
    return FilesIn(SharedFolder())[0];
  }
};

// Files of machines, each measured for seconds.
class MachineFiles : public Topo {};

class TopoOnRequest : public Topo {
 protected:
  TopoOnRequest() : Topo("none", 1) {}
};

TEST_F(TopoOnRequest, ShowsThePresetUntilTheWorldIsMeasured) {
  EXPECT_THAT(Ok({"topo"}), HasSubstr("preset cpu-tcp"));
  const json world = OkJson({"topo", "--measure"})["world"];
  EXPECT_EQ(world["machine"]["version"], 1);
  EXPECT_EQ(world["paths"].size(), 2u);
  EXPECT_EQ(world["devices"].size(), 2u);
  EXPECT_EQ(world["errors"].size(), 0u);
  for (const json& path : world["paths"]) {
    EXPECT_GT(path["one_way_gb_per_s"], 0.0);
    EXPECT_GT(path["latency_us"], 0.0);
    EXPECT_EQ(path["path"], "tcp");
  }
  const std::string text = Ok({"topo"});
  EXPECT_THAT(text, HasSubstr("machine test, version 1: measured "));
  EXPECT_THAT(text, HasSubstr("n0 rank 0"));
}

TEST_F(Topo, AMeasurementLeavesNoTrace) {
  Ok({"topo", "--measure"});
  EXPECT_EQ(Ok({"tensor", "list"}).find("#"), std::string::npos);
  EXPECT_THAT(Ok({"job", "list"}), HasSubstr("no jobs"));
  const v1::GetStatusResponse status = world_.Status(0);
  for (const v1::NodeStatus& node : status.nodes())
    for (const v1::DeviceStatus& device : node.devices()) {
      EXPECT_EQ(device.heap_free_bytes(), device.heap_bytes());
      EXPECT_EQ(device.workspace_bytes(), 0);
    }
  EXPECT_EQ(MetricOf(status, "jobs_submitted_total"), 0);
  // The nodes forget plans and packed operands soon.
  EXPECT_TRUE(world_.WaitFor(0, "no plans", [](const v1::GetStatusResponse& now) {
    int64_t bytes = 0;
    for (const v1::NodeStatus& node : now.nodes()) {
      bytes += node.plan_bytes();
      for (const v1::DeviceStatus& device : node.devices()) bytes += device.packed_bytes();
    }
    return bytes == 0;
  }));
}

TEST_F(MachineFiles, ARestartTakesTheMachineFromDisk) {
  const json measured = AwaitMachine();
  FileOfMachine();
  Restart();
  EXPECT_EQ(AwaitMachine(), measured);
  EXPECT_EQ(MetricOf(world_.Status(0), "measure_probes_total"), 0);
}

TEST_F(MachineFiles, ATornFileIsReportedOnceAndReplaced) {
  AwaitMachine();
  const std::string file = FileOfMachine();
  std::ofstream(file) << "machine {\n  version: x";
  Restart();
  EXPECT_EQ(AwaitMachine()["machine"]["version"], 1);
  EXPECT_GT(MetricOf(world_.Status(0), "measure_probes_total"), 0);
  EXPECT_TRUE(Eventually([&] { return std::filesystem::file_size(file) > 1000; }));
  const std::string log = ReadFile(world_.Path("n0.err")) + ReadFile(world_.Path("n0.out"));
  const std::vector<std::string> parts = absl::StrSplit(log, absl::StrCat(file, ":2:12: "));
  EXPECT_EQ(parts.size(), 2u) << log;
}

TEST_F(MachineFiles, WorldsThatShareAFolderKeepTheirOwnMachines) {
  const json mine = AwaitMachine();
  FileOfMachine();
  World other(MeasuredIn(SharedFolder(), 2));
  ASSERT_NO_FATAL_FAILURE(other.StartAll());
  ASSERT_EQ(other.Ctl(0, {"topo", "--measure"}).exit_code, 0);
  EXPECT_TRUE(Eventually([&] { return FilesIn(SharedFolder()).size() == 2; }));
  Restart();
  EXPECT_EQ(AwaitMachine(), mine);
}

TEST_F(MachineFiles, ChangedHardwareIsMeasuredAgain) {
  AwaitMachine();
  const std::string before = FileOfMachine();
  for (int node : {0, 1}) world_.Kill(node);
  World changed(MeasuredIn(SharedFolder(), 2));
  ASSERT_NO_FATAL_FAILURE(changed.StartAll());
  EXPECT_TRUE(Eventually([&] { return FilesIn(SharedFolder()).size() == 2; }));
  EXPECT_GT(MetricOf(changed.Status(0), "measure_probes_total"), 0);
  const json world = json::parse(changed.Ctl(0, {"topo", "--json"}).out)["world"];
  EXPECT_EQ(world["devices"].size(), 4u);
  EXPECT_TRUE(std::filesystem::exists(before)) << "the old hardware may come back";
}

TEST_F(Topo, ASavedMachineIsTextOfAMachine) {
  Ok({"topo", "--measure"});
  const std::string path = world_.Path("machine.textproto");
  EXPECT_EQ(Run({"topo", "--save", path}).err,
            absl::StrCat(path, ": the machine; `agmmctl simulate --machine` reads it\n"));
  EXPECT_THAT(ReadFile(path), HasSubstr("name: \"test\""));
  EXPECT_THAT(ReadFile(path), HasSubstr("version: 1"));
  EXPECT_EQ(Run({"topo", "--save", "-"}).out, ReadFile(path));
}

TEST_F(Topo, NothingIsMeasuredWhileAJobRuns) {
  PutOperands();
  const std::string job = SubmitForever();
  ASSERT_TRUE(Reaches(job, "running"));
  const double probes = MetricOf(world_.Status(0), "measure_probes_total");
  const Ran waits = Run({"topo", "--measure", "--timeout", "5s"});
  EXPECT_EQ(waits.exit_code, 6) << waits.err;
  EXPECT_THAT(waits.err, HasSubstr("waits for jobs to end"));
  EXPECT_EQ(MetricOf(world_.Status(0), "measure_probes_total"), probes);
  Ok({"job", "cancel", job});
  EXPECT_EQ(AwaitMachine()["errors"].size(), 0u);
}

// Products are right beside measurements, and each of them ends.
TEST_F(Topo, JobsAreExactWhileTheWorldIsMeasured) {
  const TestMatrix product = PutOperands();
  const std::unique_ptr<Connection> connection = world_.Connect(0);
  for (int round = 0; round < 10; ++round) {
    ASSERT_TRUE(connection->MeasureMachine().ok());
    ASSERT_TRUE(Eventually([&] {
      const auto status = connection->GetMachine();
      return status.ok() && status->state() == v1::MachineStatus::STATE_MEASURING;
    }));
    Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"});
    EXPECT_TRUE(SameBits(Get("Y"), product));
  }
  EXPECT_GT(MetricOf(world_.Status(0), "measure_probes_dropped_total"), 0);
}

TEST_F(TopoOnRequest, AMeasurementWithoutANodeNamesItAndGoesOnAfterCtrlC) {
  world_.Kill(1);
  const auto on_first = [&](const char* verb) {
    return json::parse(world_.Ctl(0, {verb, "--json"}).out);
  };
  ASSERT_TRUE(Eventually([&] { return !on_first("status")["ready"].get<bool>(); }));
  const auto waits = world_.StartCtl(0, {"topo", "--measure"});
  // The client has its answer once others see that the measurement is due.
  ASSERT_TRUE(Eventually([&] { return on_first("topo")["state"] == "waiting"; }));
  const Ran late = world_.Ctl(0, {"topo", "--measure", "--timeout", "1s"});
  EXPECT_EQ(late.exit_code, 6) << late.err;
  EXPECT_THAT(late.err, HasSubstr("no result after 1s: the measurement waits: the world is not "
                                  "complete: waiting for node n1 "));
  EXPECT_THAT(late.err, HasSubstr("; the measurement goes on, and `agmmctl topo` shows"));
  waits->Signal(SIGINT);
  EXPECT_EQ(waits->Wait(kPatience), 130);
  EXPECT_THAT(waits->err(), HasSubstr("cancelled; the measurement goes on, and"));
}

class TopoOfTwoDevices : public Topo {
 protected:
  TopoOfTwoDevices() : Topo(2) {}
};

TEST_F(TopoOfTwoDevices, ShowsThePathsWithinANode) {
  const json world = OkJson({"topo", "--measure"})["world"];
  int within = 0;
  for (const json& path : world["paths"]) {
    if (path["from_node"] != path["to_node"]) continue;
    ++within;
    EXPECT_EQ(path["path"], "memory");
  }
  EXPECT_EQ(within, 4);
  EXPECT_EQ(world["devices"].size(), 4u);
}

}  // namespace
}  // namespace agmm
