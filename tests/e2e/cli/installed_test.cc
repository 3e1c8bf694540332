// The installed package: in its own prefix, found by CMake, and linked by the examples, which run
// against two daemons.
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/e2e/world.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr absl::Duration kBuild = absl::Minutes(5);

class Installed : public ::testing::Test {
 protected:
  Installed() : world_({.nodes = 2, .devices = 2}) {}
  void SetUp() override { Run({AGMM_CMAKE, "--install", AGMM_BUILD_DIR, "--prefix", prefix_}); }

  // Runs the command, expects success, and returns its output.
  std::string Run(const std::vector<std::string>& command) {
    Process process(command, world_.Path("run" + std::to_string(++runs_)));
    EXPECT_EQ(process.Wait(kBuild), 0) << command[0] << " " << command[1] << "\n"
                                       << process.out() << process.err();
    return process.out();
  }

  World world_;
  const std::string prefix_ = world_.Path("prefix");
  int runs_ = 0;
};

TEST_F(Installed, ExamplesAreBuiltAgainstItAndRun) {
  const std::string build = world_.Path("examples");
  Run({AGMM_CMAKE, "-S", AGMM_EXAMPLES, "-B", build, "-DCMAKE_PREFIX_PATH=" + prefix_,
       std::string("-DCMAKE_CXX_COMPILER=") + AGMM_CXX,
       std::string("-DCMAKE_CXX_FLAGS=-Wall -Wextra -Werror ") + AGMM_CXX_FLAGS});
  Run({AGMM_CMAKE, "--build", build});
  ASSERT_NO_FATAL_FAILURE(world_.StartAll());
  EXPECT_THAT(Run({build + "/one_product", world_.endpoint(0)}),
              MatchesRegex("C \\(300 x 100\\) is right: hierarchical_peer over x=4, .* us\n"));
  EXPECT_THAT(Run({build + "/resident_weight", world_.endpoint(1), "20"}),
              MatchesRegex("20 rounds, median [0-9]+ us\n"));
}

TEST_F(Installed, PkgConfigFindsItWhereverItIs) {
  const std::string pkg_config = "/usr/bin/pkg-config";
  if (!std::filesystem::exists(pkg_config)) GTEST_SKIP() << "no " << pkg_config;
  const std::string moved = world_.Path("moved"), libdir = moved + "/" AGMM_LIBDIR;
  std::filesystem::rename(prefix_, moved);
  const std::string program = world_.Path("one_product");
  const std::string command =
      std::string(AGMM_CXX " -std=c++20 -Wall -Wextra -Werror " AGMM_CXX_FLAGS " ") +
      AGMM_EXAMPLES "/one_product.cc -o " + program + " $(PKG_CONFIG_PATH=" + libdir +
      "/pkgconfig " + pkg_config + " --cflags --libs agmm)";
  Run({"/bin/sh", "-c", command});
  ASSERT_NO_FATAL_FAILURE(world_.StartAll());
  EXPECT_THAT(Run({"/usr/bin/env", "LD_LIBRARY_PATH=" + libdir, program, world_.endpoint(0)}),
              HasSubstr("C (300 x 100) is right"));
}

TEST_F(Installed, TheHeaderNamesTheStandardItNeeds) {
  const std::string source = world_.Path("old.cc");
  WriteFile(source, "#include <agmm/agmm.h>\n");
  for (const std::string standard : {"c++17", "c++20"}) {
    Process compile(
        {AGMM_CXX, "-std=" + standard, "-fsyntax-only", "-I" + prefix_ + "/include", source},
        world_.Path(standard));
    EXPECT_EQ(compile.Wait(kBuild) == 0, standard == "c++20") << compile.err();
    EXPECT_EQ(compile.err().find("#error \"agmm.h needs C++20;") != std::string::npos,
              standard == "c++17");
  }
}

TEST_F(Installed, TheProgramsRunFromThePrefix) {
  EXPECT_THAT(Run({prefix_ + "/bin/agmmd", "--version"}), HasSubstr("agmmd"));
  EXPECT_THAT(Run({prefix_ + "/bin/agmmctl", "--version"}), HasSubstr("agmmctl"));
  // The UCX that it was built with, not the distribution's.
  if (std::filesystem::exists(prefix_ + "/" AGMM_LIBDIR "/agmm")) {
    EXPECT_THAT(Run({"/usr/bin/ldd", prefix_ + "/bin/agmmd"}),
                HasSubstr("/bin/../" AGMM_LIBDIR "/agmm/libucp.so.0"));
  }
}

TEST_F(Installed, TheServiceStartsTheInstalledDaemon) {
  const std::string unit = prefix_ + "/lib/systemd/system/agmmd.service";
  EXPECT_THAT(ReadFile(unit),
              HasSubstr("\nExecStart=" + prefix_ + "/bin/agmmd --config /etc/agmm/"));
  const std::string analyze = "/usr/bin/systemd-analyze";
  if (!std::filesystem::exists(analyze)) GTEST_SKIP() << "no " << analyze << " checks the unit";
  Process verify({analyze, "verify", "--man=no", unit}, world_.Path("verify"));
  EXPECT_EQ(verify.Wait(kBuild), 0);
  // systemd-analyze succeeds with a warning if it does not know a setting.
  EXPECT_EQ(verify.out() + verify.err(), "");
}

TEST_F(Installed, TheServiceHasAnAbsolutePathForARelativePrefix) {
  Run({AGMM_CMAKE, "-E", "chdir", world_.Path(""), AGMM_CMAKE, "--install", AGMM_BUILD_DIR,
       "--prefix", "other/"});
  EXPECT_THAT(ReadFile(world_.Path("other/lib/systemd/system/agmmd.service")),
              HasSubstr("\nExecStart=" + world_.Path("other/bin/agmmd ")));
}

TEST_F(Installed, TheServicesUserIsCreated) {
  const std::string users = ReadFile(prefix_ + "/lib/sysusers.d/agmmd.conf");
  EXPECT_THAT(users, HasSubstr("\nu agmm "));
  EXPECT_THAT(ReadFile(prefix_ + "/lib/systemd/system/agmmd.service"), HasSubstr("\nUser=agmm\n"));
  const std::string sysusers = "/usr/bin/systemd-sysusers";
  if (!std::filesystem::exists(sysusers)) GTEST_SKIP() << "no " << sysusers << " creates users";
  const std::string root = world_.Path("root");
  std::filesystem::create_directories(root + "/etc/sysusers.d");
  WriteFile(root + "/etc/sysusers.d/agmmd.conf", users);
  Run({sysusers, "--root=" + root, "agmmd.conf"});
  EXPECT_THAT(ReadFile(root + "/etc/passwd"), MatchesRegex("agmm:.*:/usr/sbin/nologin\n"));
}

TEST_F(Installed, TheLibraryExportsOnlyItsOwnNames) {
  const std::string names = Run(
      {AGMM_NM, "-DC", "--defined-only", "-f", "posix", prefix_ + "/" AGMM_LIBDIR "/libagmm.so"});
  int count = 0;
  for (absl::string_view line : absl::StrSplit(names, '\n', absl::SkipEmpty())) {
    EXPECT_THAT(std::string(line), ::testing::StartsWith("agmm::"));
    EXPECT_THAT(std::string(line), Not(HasSubstr("agmm::v1")));
    ++count;
  }
  EXPECT_GT(count, 20);
}

}  // namespace
}  // namespace agmm
