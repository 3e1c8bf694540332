#include "daemon/config/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "kernels/base/host_limits.h"
#include "tests/support/temp_folder.h"

namespace agmm {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

constexpr char kWorld[] = R"(world {
  cluster: "demo"
  node { name: "a" address: "127.0.0.1:7101" devices: 2 }
  node { name: "b" address: "127.0.0.1:7102" devices: 1 }
}
)";
constexpr char kLocalB[] = R"(local {
  node: "b"
  device { kind: "cpu" threads: 3 heap: "64MiB" }
  socket: "/tmp/b.sock"
}
)";

std::string Good() { return std::string(kWorld) + kLocalB; }

// Returns `text` with the only occurrence of `from` replaced.
std::string With(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

std::string ErrorOf(const std::string& text) {
  const absl::StatusOr<Config> config = ParseConfig(text, "x.conf");
  EXPECT_TRUE(absl::IsInvalidArgument(config.status())) << config.status();
  const std::string message(config.status().message());
  EXPECT_EQ(message.find('\n'), std::string::npos) << message;
  return message;
}

TEST(Config, HasTheValuesOfTheFile) {
  const absl::StatusOr<Config> config = ParseConfig(Good(), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->cluster, "demo");
  EXPECT_EQ(config->self, 1);
  EXPECT_FALSE(config->is_sequencer());
  ASSERT_EQ(config->devices.size(), 1u);
  EXPECT_EQ(config->devices[0].threads, 3);
  EXPECT_EQ(config->devices[0].heap_bytes, 64 << 20);
  EXPECT_EQ(config->socket, "/tmp/b.sock");
  EXPECT_EQ(config->listen, "127.0.0.1:7102");
  EXPECT_EQ(config->transport_address, "127.0.0.1");
  EXPECT_EQ(config->log_level, "info");
}

TEST(Config, ThePlanCacheIsASizeThatAllDaemonsShare) {
  EXPECT_EQ(ParseConfig(Good(), "x.conf")->plan_cache_bytes, 256 << 20);
  const absl::StatusOr<Config> config = ParseConfig(
      With(Good(), "cluster: \"demo\"", "cluster: \"demo\" plan_cache: \"1MiB\""), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->plan_cache_bytes, 1 << 20);
  EXPECT_NE(config->hash, ParseConfig(Good(), "x.conf")->hash) << "all daemons have the same";
  EXPECT_NE(ErrorOf(With(Good(), "cluster: \"demo\"", "cluster: \"demo\" plan_cache: \"much\""))
                .find("world.plan_cache"),
            std::string::npos);
}

TEST(Config, SessionsAreBounded) {
  EXPECT_EQ(ParseConfig(Good(), "x.conf")->max_sessions, 4096);
  const auto with = [](const char* sessions) {
    return With(Good(), "node: \"b\"", absl::StrCat("node: \"b\" sessions: ", sessions));
  };
  const absl::StatusOr<Config> config = ParseConfig(with("12"), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_sessions, 12);
  for (const char* wrong : {"-1", "1000001"})
    EXPECT_NE(ErrorOf(with(wrong)).find("local.sessions"), std::string::npos);
}

TEST(Config, TransferMemoryDefaultsToAShareOfTheHosts) {
  EXPECT_EQ(DefaultTransferMemory(int64_t{2} << 30), 256 << 20);
  EXPECT_EQ(DefaultTransferMemory(1 << 20), 64 << 20);
  EXPECT_EQ(DefaultTransferMemory(int64_t{1} << 40), 512 << 20);
  const auto with = [](const char* bytes) {
    return With(Good(), "node: \"b\"",
                absl::StrFormat("node: \"b\" transfer_memory: \"%s\"", bytes));
  };
  const absl::StatusOr<Config> config = ParseConfig(with("32MiB"), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->transfer_memory_bytes, 32 << 20);
  for (const char* wrong : {"much", "15MiB"})
    EXPECT_NE(ErrorOf(with(wrong)).find("local.transfer_memory"), std::string::npos);
}

TEST(Config, RanksNumberTheDevicesInListOrder) {
  const absl::StatusOr<Config> config = ParseConfig(Good(), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->node_of_rank(), ElementsAre(0, 0, 1));
  EXPECT_EQ(config->first_rank(0), 0);
  EXPECT_EQ(config->first_rank(1), 2);
}

TEST(Config, HashCoversOnlyTheWorld) {
  const Config b = ParseConfig(Good(), "x.conf").value();
  const Config a = ParseConfig(std::string(kWorld) + R"(local { node: "a" log_level: "debug"
      device { kind: "cpu" heap: "1MiB" } device { kind: "cpu" heap: "1MiB" } })",
                               "y.conf")
                       .value();
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.hash.size(), 16u);
  for (const auto& [from, to] :
       {std::pair{"\"demo\"", "\"dome\""}, {"7101", "7105"}, {"devices: 2", "devices: 3"}}) {
    const absl::StatusOr<Config> other = ParseConfig(With(Good(), from, to), "x.conf");
    ASSERT_TRUE(other.ok()) << other.status();
    EXPECT_NE(other->hash, b.hash) << from << " -> " << to;
  }
}

TEST(Config, ListenAndTransportAddressOverrideTheNodesAddress) {
  const Config config =
      ParseConfig(
          With(Good(), "socket:", "listen: \"0.0.0.0:1\" transport_address: \"10.0.0.2\" socket:"),
          "x.conf")
          .value();
  EXPECT_EQ(config.listen, "0.0.0.0:1");
  EXPECT_EQ(config.transport_address, "10.0.0.2");
}

TEST(Config, AnAddressThatOtherHostsCannotUseIsRefusedInOneSentence) {
  const struct {
    const char *address, *why;
  } cases[] = {
      {"0.0.0.0:7102", "0.0.0.0 stands for all addresses of a host"},
      {"[::]:7102", "(local.listen may be [::]:7101)"},
      {"[fe80::1%eth0]:7102", "fe80::1%eth0 is link-local"},
      {"169.254.1.2:7102", "169.254.1.2 is link-local"},
      {"127.1:7102", "is not a whole IPv4 address; write four numbers"},
      {"10.0.0.256:7102", "is not a whole IPv4 address"},
      {"::1:7102", "without brackets; write [::1]:7102"},
      {"::1", "without brackets; write [::1]:7101"},
      {"[::ffff:10.0.0.1]:7102", "is an IPv4 address in the form of IPv6; write 10.0.0.1"},
      {"[10.0.0.1]:7102", "\"[10.0.0.1]\" is not an IPv6 address"},
      {"10.0.0.1", "is not host:port; write for example 10.0.0.1:7101"},
      {"10.0.0.1:70000", "\"70000\" is not a port from 1 to 65535"},
      {"a b:7102", "\"a b\" is not a host"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.address);
    const std::string error = ErrorOf(With(Good(), "127.0.0.1:7102", c.address));
    EXPECT_THAT(error, StartsWith("x.conf:4:20: world.node[1].address: "));
    EXPECT_THAT(error, HasSubstr(c.why));
  }
  const auto transport = [](const std::string& address) {
    return With(Good(), "socket:", "transport_address: \"" + address + "\" socket:");
  };
  EXPECT_THAT(ErrorOf(transport("0.0.0.0")), HasSubstr("local.transport_address: 0.0.0.0 stands"));
  EXPECT_THAT(ErrorOf(transport("10.0.0.1:7200")), HasSubstr("has a port; give only the host"));
}

TEST(Config, EqualAddressesHaveOneFormAfterParsing) {
  const struct {
    const char *one, *other;
  } cases[] = {{"a.example.org:7101", "A.Example.org:7101"},
               {"[fd00::1]:7101", "[FD00:0:0::01]:7101"}};
  for (const auto& c : cases) {
    const std::string text = With(Good(), "127.0.0.1:7101", c.one);
    EXPECT_THAT(ErrorOf(With(text, "127.0.0.1:7102", c.other)), HasSubstr("appears twice"))
        << c.one;
    EXPECT_EQ(ParseConfig(text, "x.conf")->hash,
              ParseConfig(With(Good(), "127.0.0.1:7101", c.other), "x.conf")->hash);
  }
  EXPECT_THAT(ErrorOf(With(Good(), "name: \"b\"", "name: \"A\"")), HasSubstr("appears twice"));
  EXPECT_EQ(
      ParseConfig(With(Good(), "socket:", "transport_address: \"[FD00::1]\" socket:"), "x.conf")
          ->transport_address,
      "fd00::1");
}

TEST(Config, TypoIsNamedWithLineAndColumn) {
  const std::string error = ErrorOf(With(Good(), "threads", "thraeds"));
  EXPECT_THAT(error, StartsWith("x.conf:8:"));
  EXPECT_THAT(error, HasSubstr("\"thraeds\""));
}

TEST(Config, BadSyntaxIsNamedWithLineAndColumn) {
  EXPECT_THAT(ErrorOf(With(Good(), "devices: 1", "devices: one")), StartsWith("x.conf:4:55: "));
  EXPECT_THAT(ErrorOf("world {"), StartsWith("x.conf:1:8: "));
}

TEST(Config, BadValueIsNamedWithPlaceFieldAndValue) {
  const struct {
    const char *from, *to, *place, *field, *value;
  } cases[] = {
      {"heap: \"64MiB\"", "heap: \"64MB\"", "x.conf:8:35: ", "local.device[0].heap", "64MB"},
      {"heap: \"64MiB\"", "heap: \"1KiB\"", "x.conf:8:35: ", "local.device[0].heap", "1024"},
      {"kind: \"cpu\"", "kind: \"gpu\"", "x.conf:8:12: ", "local.device[0].kind", "gpu"},
      {"threads: 3", "threads: -3", "x.conf:8:", "local.device[0].threads", "-3"},
      {"threads: 3", "gpu: 1", "x.conf:8:", "local.device[0].gpu", "belongs to cuda devices"},
      {"kind: \"cpu\"", "kind: \"cuda\"", "x.conf:8:", "local.device[0].threads", "cpu devices"},
      {"kind: \"cpu\" threads: 3", "kind: \"cuda\" gpu: -1", "x.conf:8:", "local.device[0].gpu",
       "-1"},
      {"node: \"b\"", "node: \"d\"", "x.conf:7:3: ", "local.node", "a, b"},
      {"127.0.0.1:7102", "127.0.0.1", "x.conf:4:20: ", "world.node[1].address", "127.0.0.1"},
      {"127.0.0.1:7102", "127.0.0.1:0", "x.conf:4:20: ", "world.node[1].address", "127.0.0.1:0"},
      {"127.0.0.1:7102", "127.0.0.1:7101", "x.conf:4:20: ", "world.node[1].address", "twice"},
      {"name: \"b\"", "name: \"a\"", "x.conf:4:10: ", "world.node[1].name", "twice"},
      {"name: \"b\"", "name: \"b c\"", "x.conf:4:10: ", "world.node[1].name", "b c"},
      {"devices: 1", "devices: 0", "x.conf:4:", "world.node[1].devices", "[1, "},
      {"devices: 1", "devices: 2", "x.conf:8:3: ", "local.device", "2"},
      {"\"demo\"", "\"\"", "x.conf:2:3: ", "world.cluster", "missing"},
      {"\"/tmp/b.sock\"", "\"b.sock\"", "x.conf:9:3: ", "local.socket", "b.sock"},
      {"socket:", "log_level: \"loud\" socket:", "x.conf:9:3: ", "local.log_level", "loud"},
      {"socket:", "machines: \"here\" socket:", "x.conf:9:3: ", "local.machines", "here"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(std::string(c.from) + " -> " + c.to);
    const std::string error = ErrorOf(With(Good(), c.from, c.to));
    EXPECT_THAT(error, StartsWith(c.place));
    EXPECT_THAT(error, HasSubstr(c.field));
    EXPECT_THAT(error, HasSubstr(c.value));
  }
}

TEST(Config, MachinesAreNextToTheSocketUnlessTheFileSaysOtherwise) {
  const auto folder = [](const std::string& more) {
    const absl::StatusOr<Config> config =
        ParseConfig(With(Good(), "socket:", more + " socket:"), "x.conf");
    EXPECT_TRUE(config.ok()) << config.status();
    return MachineFolderPath(*config);
  };
  unsetenv("STATE_DIRECTORY");
  EXPECT_EQ(folder(""), "/tmp/b.sock.machines");
  EXPECT_EQ(folder("machines: \"/var/m\""), "/var/m");
  EXPECT_EQ(folder("machines: \"none\""), "");
  setenv("STATE_DIRECTORY", "/var/lib/agmm:/var/lib/other", 1);
  EXPECT_EQ(folder(""), "/var/lib/agmm/machines");
  unsetenv("STATE_DIRECTORY");
}

TEST(Config, MissingPartsAreNamed) {
  EXPECT_THAT(ErrorOf(kWorld), HasSubstr("local: is missing"));
  EXPECT_THAT(ErrorOf(kLocalB), HasSubstr("world: is missing"));
  EXPECT_THAT(ErrorOf(R"(world { cluster: "x" node { name: "a" devices: 1 } }
                         local { node: "a" device { kind: "cpu" heap: "1MiB" } })"),
              HasSubstr("local.socket: is missing"));
}

TEST(Config, SocketPathThatTheKernelCannotHoldIsRefused) {
  const std::string path = "/" + std::string(200, 'x');
  EXPECT_THAT(ErrorOf(With(Good(), "/tmp/b.sock", path)), HasSubstr("at most 107 characters"));
}

TEST(Config, WithoutADeviceListTheNodesDevicesShareTheMachine) {
  const std::string device = "  device { kind: \"cpu\" threads: 3 heap: \"64MiB\" }\n";
  const std::string text = With(With(Good(), device, ""), "devices: 1", "devices: 3");
  const absl::StatusOr<Config> config = ParseConfig(text, "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::vector<DeviceConfig> expected = DefaultDevices(3, UsableCores(), UsableMemory());
  ASSERT_EQ(config->devices.size(), 3u);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(config->devices[i].kind, "cpu");
    EXPECT_EQ(config->devices[i].threads, expected[i].threads);
    EXPECT_EQ(config->devices[i].heap_bytes, expected[i].heap_bytes);
  }
}

TEST(Config, ADeviceMayBeAGpu) {
  const absl::StatusOr<Config> config = ParseConfig(
      With(Good(), "kind: \"cpu\" threads: 3", "kind: \"cuda\" gpu: 5 shared_gpu: true"), "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  ASSERT_EQ(config->devices.size(), 1u);
  EXPECT_EQ(config->devices[0].kind, "cuda");
  EXPECT_EQ(config->devices[0].gpu, 5);
  EXPECT_TRUE(config->devices[0].shared_gpu);
  EXPECT_FALSE(config->devices[0].cublaslt_only);
  EXPECT_THAT(Summary(*config), HasSubstr("\ndevice cuda: gpu 5 shared, heap 64 MiB\n"));
}

TEST(Config, AGpusProductsMayBeLeftToCublasLt) {
  const auto parse = [](const char* device) {
    return ParseConfig(With(Good(), "kind: \"cpu\" threads: 3", device), "x.conf");
  };
  const absl::StatusOr<Config> config =
      parse("kind: \"cuda\" gpu: 1 cublaslt_only: true trace_chunks: true");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->devices[0].cublaslt_only && config->devices[0].trace_chunks);
  EXPECT_THAT(Summary(*config),
              HasSubstr("\ndevice cuda: gpu 1, cuBLASLt only, traces chunks, heap 64 MiB\n"));
  EXPECT_THAT(std::string(parse("kind: \"cpu\" cublaslt_only: true").status().message()),
              HasSubstr("cublaslt_only: belongs to cuda devices; leave it out"));
}

TEST(Config, SummaryNamesThePlanCacheAndTheSecretsFile) {
  const TempFolder folder("config");
  std::ofstream(folder / "x.conf") << With(Good(), "socket:", "secret: \"key\" socket:");
  std::ofstream(folder / "key") << std::string(16, 'k');
  std::filesystem::permissions(folder / "key", std::filesystem::perms::owner_read);
  const absl::StatusOr<Config> config = LoadConfig(folder / "x.conf");
  ASSERT_TRUE(config.ok()) << config.status();
  const std::string summary = Summary(*config);
  EXPECT_THAT(summary, HasSubstr("\nplan_cache 256 MiB, transfer_memory "));
  EXPECT_THAT(summary, HasSubstr("\nsecret " + (folder / "key") + "\n"));
  EXPECT_THAT(summary, HasSubstr(", this daemon (named by local.node)\n"));
}

class Secret : public testing::Test {
 protected:
  // Returns the error of a configuration with `secret`; empty if it is accepted.
  std::string ErrorWith(const std::string& secret) {
    std::ofstream(folder_ / "x.conf")
        << With(Good(), "socket:", "secret: \"" + secret + "\" socket:");
    return std::string(LoadConfig(folder_ / "x.conf").status().message());
  }
  std::string FileWithMode(int mode) {
    const std::string path = folder_ / "key";
    std::filesystem::remove(path);
    std::ofstream(path) << std::string(16, 'k');
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  const TempFolder folder_{"secret"};
};

TEST_F(Secret, IsReadableOnlyByTheDaemonAndItsGroup) {
  for (int mode : {0400, 0600, 0440, 0640}) EXPECT_EQ(ErrorWith(FileWithMode(mode)), "") << mode;
  // The form in which Kubernetes mounts it.
  std::filesystem::create_symlink(FileWithMode(0440), folder_ / "link");
  EXPECT_EQ(ErrorWith("link"), "");
  for (int mode : {0444, 0644, 0660, 0604, 0602}) {
    const std::string error = ErrorWith(FileWithMode(mode));
    EXPECT_THAT(error, HasSubstr("so that other users can use it")) << mode;
    EXPECT_THAT(error, Not(HasSubstr("chmod")));
  }
  const std::string path = FileWithMode(0440);
  if (chown(path.c_str(), -1, 54321) == 0) {  // only root may do this
    EXPECT_THAT(ErrorWith(path), HasSubstr("mode 440 and group 54321"));
  }
}

TEST_F(Secret, AnotherKindOfFileIsRefusedWithoutHarmfulAdvice) {
  EXPECT_EQ(ErrorWith("/tmp"), "the secret /tmp is a directory; give a file");
  EXPECT_THAT(ErrorWith("/dev/zero"), Not(HasSubstr("chmod")));
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(ErrorWith(pipe), HasSubstr("has 0 bytes; it needs 16 to 4096"));
}

TEST_F(Secret, AConfigurationIsReadUpToABound) {
  EXPECT_THAT(std::string(LoadConfig("/dev/zero").status().message()),
              HasSubstr("/dev/zero has more than 1 MiB"));
  EXPECT_THAT(std::string(LoadConfig("/tmp").status().message()), HasSubstr("is a directory"));
  const std::string pipe = folder_ / "pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  EXPECT_THAT(std::string(LoadConfig(pipe).status().message()), HasSubstr("world: is missing"));
}

TEST(Config, AMissingFileIsNamed) {
  const absl::StatusOr<Config> config = LoadConfig("/nowhere/x.conf");
  EXPECT_TRUE(absl::IsNotFound(config.status())) << config.status();
  EXPECT_THAT(std::string(config.status().message()), HasSubstr("/nowhere/x.conf"));
}

TEST(Config, DefaultSharesTheCoresAndAQuarterOfTheMemory) {
  const int64_t gib = int64_t{1} << 30;
  for (int cores : {1, 2, 7, 8, 12, 64, 96}) {
    const Config config = DefaultConfigFor(cores, 32 * gib, "/run/x.sock");
    SCOPED_TRACE(cores);
    ASSERT_EQ(config.devices.size(), static_cast<size_t>(std::min(cores, 8)));
    EXPECT_EQ(config.nodes[0].devices, std::min(cores, 8));
    int threads = 0;
    for (const DeviceConfig& device : config.devices) threads += device.threads;
    EXPECT_EQ(threads, cores);
    EXPECT_EQ(config.devices[0].heap_bytes, 8 * gib / std::min(cores, 8) / 4096 * 4096);
    EXPECT_EQ(config.listen, "");
  }
  EXPECT_EQ(DefaultConfigFor(2, 4096 * gib, "/run/x.sock").devices[0].heap_bytes, 64 * gib);
}

}  // namespace
}  // namespace agmm
