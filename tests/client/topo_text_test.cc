// The text of agmmctl topo.
#include "client/ctl/topo_text.h"

#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/client/messages_fixture.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;

v1::MachineStatus SomeStatus() {
  return FromText<v1::MachineStatus>(R"pb(
    world {
      machine { name: "demo" version: 7 }
      preset: "cpu-tcp"
      measure_time { seconds: 1000 }
      preset_fields: "within"
      preset_fields: "device.send"
    }
    state: STATE_IDLE
  )pb");
}

TEST(TopoText, AMeasurementOfThisSecondIsJustNow) {
  EXPECT_THAT(TopoText(SomeStatus(), absl::FromUnixMillis(1000'900)), HasSubstr(", just now\n"));
  EXPECT_THAT(TopoText(SomeStatus(), absl::FromUnixSeconds(1005)), HasSubstr(", 5s ago\n"));
}

TEST(TopoText, FiguresOfThePresetAreNotMeasured) {
  EXPECT_THAT(TopoText(SomeStatus(), absl::FromUnixSeconds(1005)),
              HasSubstr("not measured, from the preset cpu-tcp: within, device.send\n"));
}

TEST(TopoText, AMeasurementThatWaitsNamesTheMissingNode) {
  v1::MachineStatus status = SomeStatus();
  status.set_state(v1::MachineStatus::STATE_WAITING);
  status.set_waits_for("jobs to end");
  EXPECT_EQ(MeasuringText(status), "the measurement waits for jobs to end");
  EXPECT_EQ(MeasuringText(status, "the world is not complete: waiting for b"),
            "the measurement waits: the world is not complete: waiting for b");
  status.set_state(v1::MachineStatus::STATE_MEASURING);
  status.set_probes_done(3);
  status.set_probe_count(14);
  EXPECT_EQ(MeasuringText(status), "measuring: 3 of 14 figures");
}

}  // namespace
}  // namespace agmm
