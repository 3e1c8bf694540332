#include "daemon/measure/machine_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "absl/strings/str_cat.h"
#include "daemon/measure/preset.h"
#include "tests/support/temp_folder.h"

namespace agmm::measure {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

class MachineFolderTest : public testing::Test {
 protected:
  static v1::WorldMachine WorldOf(const std::string& hardware, int64_t version) {
    v1::WorldMachine world;
    *world.mutable_machine() = PresetFor("cpu");
    world.mutable_machine()->set_version(version);
    world.add_hardware(hardware);
    world.mutable_measure_time()->set_seconds(1'000'000);
    return world;
  }
  void Write(const std::string& text) const { std::ofstream(file()) << text; }
  std::string file() const { return folder_.FileOf({"x"}); }

  const TempFolder temp_{"machines"};
  const MachineFolder folder_{temp_ / "made"};
};

TEST_F(MachineFolderTest, LoadsWhatItHasSaved) {
  EXPECT_TRUE(absl::IsNotFound(folder_.Load({"x"}).status()));
  ASSERT_TRUE(folder_.Save(WorldOf("x", 7)).ok());
  ASSERT_TRUE(folder_.Save(WorldOf("x", 8)).ok());
  const absl::StatusOr<CheckedWorld> loaded = folder_.Load({"x"});
  ASSERT_TRUE(loaded.ok()) << loaded.status();
  EXPECT_EQ(loaded->world.SerializeAsString(), WorldOf("x", 8).SerializeAsString());
}

TEST_F(MachineFolderTest, WorldsThatShareItKeepTheirOwnFiles) {
  ASSERT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
  ASSERT_TRUE(folder_.Save(WorldOf("y", 2)).ok());
  EXPECT_EQ(folder_.Load({"x"})->world.machine().version(), 1);
  EXPECT_EQ(folder_.Load({"y"})->world.machine().version(), 2);
  EXPECT_TRUE(absl::IsNotFound(folder_.Load({"x", "y"}).status()));
}

TEST_F(MachineFolderTest, LeavesNoDraft) {
  ASSERT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
  int files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(temp_ / "made")) {
    ++files;
    EXPECT_EQ(entry.path(), file());
  }
  EXPECT_EQ(files, 1);
}

TEST_F(MachineFolderTest, LeavesNoDraftThatCannotReplaceTheFile) {
  std::filesystem::create_directories(file());
  EXPECT_FALSE(folder_.Save(WorldOf("x", 1)).ok());
  for (const auto& entry : std::filesystem::directory_iterator(temp_ / "made"))
    EXPECT_EQ(entry.path(), file());
}

TEST_F(MachineFolderTest, ATornFileIsAnErrorWithLineAndColumn) {
  ASSERT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
  Write("machine {\n  name: \"t\"\n  version: maybe\n}\n");
  const absl::Status torn = folder_.Load({"x"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(torn)) << torn;
  EXPECT_THAT(std::string(torn.message()), StartsWith(absl::StrCat(file(), ":3:12: ")));
}

TEST_F(MachineFolderTest, AValueThatNoMachineHasIsAnErrorAtItsPlace) {
  ASSERT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
  Write(
      "hardware: \"x\"\nmachine {\n  within {\n    wiring: SWITCH\n    one_way_gb_per_s: -3\n  "
      "}\n}\n");
  const absl::Status wrong = folder_.Load({"x"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
  EXPECT_THAT(std::string(wrong.message()), HasSubstr(absl::StrCat(file(), ":")));
}

// The devices of a world have no coordinates.
TEST_F(MachineFolderTest, ATorusIsAnErrorAtItsPlace) {
  v1::WorldMachine world = WorldOf("x", 1);
  world.mutable_machine()->mutable_within()->set_wiring(v1::MachineLinks::TORUS);
  ASSERT_TRUE(folder_.Save(world).ok());
  const absl::Status torus = folder_.Load({"x"}).status();
  EXPECT_TRUE(absl::IsInvalidArgument(torus)) << torus;
  // name, version, devices_per_node, wrap_multiple, within
  EXPECT_THAT(std::string(torus.message()),
              StartsWith(absl::StrCat(file(), ":6:5: machine.within.wiring is TORUS")));
}

TEST_F(MachineFolderTest, AVersionThatCannotBeCountedOnIsAnErrorAtItsPlace) {
  for (const int64_t version : {INT64_MIN, int64_t{-1}, int64_t{0}, INT64_MAX}) {
    ASSERT_TRUE(folder_.Save(WorldOf("x", version)).ok());
    const absl::Status wrong = folder_.Load({"x"}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(wrong)) << wrong;
    // A version of 0 is left out of the text.
    EXPECT_THAT(
        std::string(wrong.message()),
        StartsWith(version == 0 ? absl::StrCat(file(), ":1:1: machine.version is 0")
                                : absl::StrCat(file(), ":3:3: machine.version is ", version)));
  }
}

// Daemons in containers that share a volume may have equal process ids.
TEST_F(MachineFolderTest, TheNameOfADraftDoesNotDependOnTheProcess) {
  std::filesystem::create_directories(absl::StrCat(file(), ".", ::getpid()));
  EXPECT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
}

TEST_F(MachineFolderTest, AFileOfOtherHardwareIsNotTaken) {
  ASSERT_TRUE(folder_.Save(WorldOf("x", 1)).ok());
  ASSERT_TRUE(folder_.Save(WorldOf("y", 2)).ok());
  std::filesystem::copy_file(folder_.FileOf({"y"}), file(),
                             std::filesystem::copy_options::overwrite_existing);
  EXPECT_TRUE(absl::IsInvalidArgument(folder_.Load({"x"}).status()));
}

TEST_F(MachineFolderTest, AFolderThatCannotBeMadeIsAnErrorWithItsFile) {
  std::ofstream(temp_ / "file") << "";
  const MachineFolder folder(temp_ / "file");
  const absl::Status saved = folder.Save(WorldOf("x", 1));
  EXPECT_FALSE(saved.ok());
  EXPECT_THAT(std::string(saved.message()), HasSubstr(temp_ / "file"));
}

}  // namespace
}  // namespace agmm::measure
