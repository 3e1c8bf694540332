// Two daemons with four GPUs each, on the model of the CUDA driver. Results are compared with those
// of a CPU world bit by bit.
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "client/agmm.h"
#include "kernels/schedule/algorithm.h"
#include "tests/e2e/ctl.h"
#include "tests/support/patience.h"

namespace agmm {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using Json = nlohmann::json;

constexpr int kNodes = 2, kGpus = 4;  // of each node
constexpr int kDeadline = 6, kJobFailed = 7;

std::string GpuDevice(int gpu) {
  return absl::StrFormat("kind: \"cuda\" gpu: %d heap: \"32MiB\"", gpu);
}

std::map<std::string, std::string> ModelEnvironment(const std::string& model) {
  return {{"AGMM_MODEL", "memory=1GiB," + model}, {"LD_LIBRARY_PATH", AGMM_MODEL_FOLDER}};
}

// Node 0 has GPUs 0 to 3, node 1 has 4 to 7.
WorldOptions OnModel(const std::string& model, const std::string& failpoints = "") {
  WorldOptions options{.nodes = kNodes, .devices = kGpus, .failpoints = failpoints};
  options.device = [](int node, int device) { return GpuDevice(kGpus * node + device); };
  options.environment = ModelEnvironment("gpus=8," + model);
  return options;
}

// A world and the results that a client gets from it.
class Results {
 public:
  explicit Results(const WorldOptions& options) : world_(options) {}
  void Start() {
    ASSERT_NO_FATAL_FAILURE(world_.StartAll());
    auto client = Client::Connect({.endpoint = world_.endpoint(1)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    client_ = *std::move(client);
  }
  void Fill(const std::string& name, const TensorSpec& spec, Filling::Kind kind, uint64_t seed) {
    const auto filled = client_->Fill(name, spec, {.kind = kind, .seed = seed});
    ASSERT_TRUE(filled.ok()) << filled.status().ToString();
  }
  std::vector<std::byte> Get(const std::string& name, int64_t bytes) {
    std::vector<std::byte> got(bytes);
    const auto read = client_->Get(name, got.data(), bytes);
    EXPECT_TRUE(read.ok()) << name << ": " << read.status().ToString();
    return got;
  }
  Result<JobInfo> Multiply(const std::string& mesh, const std::vector<int>& ranks,
                           const std::string& algorithm, bool carried = false) {
    return client_->Run({.spec = "A[M_x, K] * B[K, N_x] -> C[M, N_x]",
                         .a = "A",
                         .b = "B",
                         .c = "C",
                         .mesh = mesh,
                         .ranks = ranks,
                         .algorithm = algorithm,
                         .carried = carried,
                         .repeat_count = 3});
  }
  void Delete(const std::string& name) {
    const Status deleted = client_->Delete(name);
    EXPECT_TRUE(deleted.ok()) << deleted.ToString();
  }
  // When a daemon ends, the model reports resources that it has not released.
  void StopInGoodOrder() {
    client_.reset();
    for (int node = 0; node < kNodes; ++node) world_.daemon(node).Signal(SIGTERM);
    for (int node = 0; node < kNodes; ++node)
      EXPECT_EQ(world_.daemon(node).Wait(kPatience), 0) << world_.daemon(node).err();
  }

 private:
  World world_;
  std::unique_ptr<Client> client_;
};

struct Ranks {
  std::string mesh;
  std::vector<int> ranks;
};

class CudaWorlds : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    ASSERT_NO_FATAL_FAILURE(gpus_.Start());
    ASSERT_NO_FATAL_FAILURE(cpus_.Start());
  }
  Results gpus_{OnModel(GetParam(), "executor.delay=*,transport.delay=*")},
      cpus_{WorldOptions{.nodes = kNodes, .devices = kGpus}};
};

// Runs over all ranks, and over two GPUs of one daemon that have access to each other.
TEST_P(CudaWorlds, EveryAlgorithmGivesTheBitsOfACpuWorld) {
  constexpr int64_t kM = 101, kN = 67, kK = 83;
  const Ranks all{"x=8", {}}, pair{"x=2", {4, 5}};
  int succeeded = 0;
  std::vector<ElementType> types = {ElementType::kBF16};  // with sanitizers, each takes 10 s
  if (!kSanitized) types.insert(types.end(), {ElementType::kF32, ElementType::kF16});
  for (const ElementType type : types) {
    for (const auto& [mesh, ranks] : {all, pair}) {
      for (Results* world : {&gpus_, &cpus_}) {
        world->Fill("A", {kM, kK, type, "[M_x, K]", mesh, ranks}, Filling::Kind::kIntegers, 1);
        world->Fill("B", {kK, kN, type, "[K, N_x]", mesh, ranks}, Filling::Kind::kIntegers, 2);
      }
      for (const Algorithm& algorithm : Algorithms()) {
        SCOPED_TRACE(
            absl::StrFormat("%s, %s, %d bytes an element", algorithm.name, mesh, BytesOf(type)));
        const auto on_gpus = gpus_.Multiply(mesh, ranks, algorithm.name),
                   on_cpus = cpus_.Multiply(mesh, ranks, algorithm.name);
        ASSERT_EQ(on_gpus.status().code(), on_cpus.status().code())
            << on_gpus.status().ToString() << on_cpus.status().ToString();
        if (!on_gpus.ok()) continue;
        EXPECT_THAT(on_gpus->engine, HasSubstr("MODEL"));
        const int64_t bytes = kM * kN * BytesOf(type);
        EXPECT_TRUE(gpus_.Get("C", bytes) == cpus_.Get("C", bytes));
        for (Results* world : {&gpus_, &cpus_}) world->Delete("C");
        ++succeeded;
      }
      for (Results* world : {&gpus_, &cpus_})
        for (const char* name : {"A", "B"}) world->Delete(name);
    }
  }
  // Other algorithms are refused if ranks cannot load each other's memory.
  EXPECT_GE(succeeded,
            static_cast<int>(types.size()) * (2 * static_cast<int>(Algorithms().size()) - 3));
  gpus_.StopInGoodOrder();
}

TEST_P(CudaWorlds, FillsGiveTheBitsOfACpuWorld) {
  for (const ElementType type : {ElementType::kF32, ElementType::kBF16, ElementType::kF16}) {
    for (const char* sharding : {"[M_x, K]", "[M, K_x]", "[M, K]"}) {
      SCOPED_TRACE(absl::StrFormat("%s, %d bytes an element", sharding, BytesOf(type)));
      for (Results* world : {&gpus_, &cpus_})
        world->Fill("T", {131, 77, type, sharding, "x=8"}, Filling::Kind::kUniform, 5);
      const int64_t bytes = 131 * 77 * BytesOf(type);
      EXPECT_TRUE(gpus_.Get("T", bytes) == cpus_.Get("T", bytes));
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, CudaWorlds,
                         ::testing::Values("order=random,seed=7",
                                           "peers=pairs,channels=1,order=lazy,calls=block"),
                         [](const auto& info) { return info.index == 0 ? "Random" : "Pairs"; });

class CudaCtl : public Ctl {
 protected:
  explicit CudaCtl(const std::string& failpoints = "", const std::string& model = "order=eager")
      : Ctl(OnModel(model, failpoints)) {}
  // Kills the daemon of node 1 while the job runs, and starts it again once the job has failed.
  void KillNode1During(const std::string& job) {
    world_.Kill(1);
    const Ran watched = world_.Ctl(0, {"job", "watch", job});
    EXPECT_EQ(watched.exit_code, kJobFailed) << watched.err;
    EXPECT_THAT(world_.Ctl(0, {"job", "show", job, "--json"}).out, HasSubstr("PEER_LOST"));
    EXPECT_TRUE(world_.daemon(0).Running());
    world_.Start(1);
    for (int node = 0; node < kNodes; ++node) ASSERT_TRUE(world_.WaitReady(node));
  }
};

TEST_F(CudaCtl, TensorsJobsAndBenchWorkAndTheDevicesAreCalledAModel) {
  EXPECT_THAT(Ok({"status"}), HasSubstr("MODEL, no hardware"));
  const TestMatrix want = PutOperands();
  Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"});
  EXPECT_TRUE(SameBits(Get("Y"), want));
  EXPECT_THAT(Ok({"job", "show", "1"}), HasSubstr("MODEL, no hardware"));
  for (const char* name : {"X", "W", "Y"}) Ok({"tensor", "rm", name});
  EXPECT_EQ(OkJson({"tensor", "list"})["tensors"].size(), 0u);

  const std::string bench = Ok({"bench", "--quick", "--shape", "M=100,N=60,K=72", "--json"});
  int rows = 0;
  for (absl::string_view line : absl::StrSplit(bench, '\n', absl::SkipEmpty())) {
    const Json row = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(row["skipped"].is_null() && row["exact"] == true) << line;
    ++rows;
  }
  EXPECT_GE(rows, 4);
  EXPECT_EQ(OkJson({"tensor", "list"})["tensors"].size(), 0u);
}

struct PathCase {
  const char *name, *model;
  std::vector<std::string> in_node;  // the paths between GPUs of a node, sorted
};

class CudaPaths : public CudaCtl, public ::testing::WithParamInterface<PathCase> {
 protected:
  CudaPaths() : CudaCtl("", GetParam().model) {}
  // Multiplies over `ranks`, and expects these paths in every report that names paths.
  void ExpectPaths(const std::string& ranks, const std::vector<std::string>& want) {
    for (const auto& [name, sharding] : {std::pair{"A", "[M_x, K]"}, {"B", "[K, N_x]"}})
      Ok({"tensor", "fill", name, "--shape", "64x64", "--sharding", sharding, "--ranks", ranks});
    const Json ended =
        OkJson({"job", "submit", "--bind", "A=A,B=B,C=C", "--algorithm", "direct", "--wait"});
    EXPECT_EQ(ended["device_paths"], Json(want)) << ended.dump();
    const uint64_t id = ended.value("job_id", uint64_t{0});
    EXPECT_THAT(Ok({"job", "show", absl::StrCat(id)}),
                HasSubstr("\npaths      " + absl::StrJoin(want, ", ") + "\n"));
    const auto client = Client::Connect({.endpoint = world_.endpoint(0)});
    ASSERT_TRUE(client.ok()) << client.status().ToString();
    const auto job = (*client)->FindJob(id);
    ASSERT_TRUE(job.ok()) << job.status().ToString();
    EXPECT_EQ(job->Info()->device_paths, want);
    for (const char* name : {"A", "B", "C"}) Ok({"tensor", "rm", name});
  }
};

TEST_P(CudaPaths, AJobNamesItsPathsBetweenGpus) {
  const std::string network = "staged to the network";
  std::vector<std::string> all = GetParam().in_node;
  all.push_back(network);
  std::sort(all.begin(), all.end());
  ExpectPaths("0-3", GetParam().in_node);
  ExpectPaths("0-7", all);
  ExpectPaths("0,4", {network});
}

INSTANTIATE_TEST_SUITE_P(
    Models, CudaPaths,
    ::testing::Values(PathCase{"All", "peers=all", {"peer access"}},
                      PathCase{"Pairs", "peers=pairs", {"peer access", "through pinned memory"}},
                      PathCase{"None", "peers=none", {"through pinned memory"}}),
    [](const auto& info) { return info.param.name; });

TEST_F(CudaCtl, AKilledDaemonEndsTheJobsAndComesBack) {
  PutOperands();
  const std::string job = absl::StrCat(
      OkJson({"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever, "--timeout", "10m"})
          .value("job_id", 0));
  ASSERT_TRUE(Reaches(job, "running"));
  ASSERT_NO_FATAL_FAILURE(KillNode1During(job));
  const TestMatrix want = PutOperands();
  Ok({"job", "submit", "--bind", "A=X,B=W,C=Z", "--wait"});
  EXPECT_TRUE(SameBits(Get("Z"), want));
}

// Products of few rows run agmm's kernels, too, so that small shapes do.
constexpr char kKernels[] = "products.few_rows=*";

class KernelWorlds : public ::testing::Test {
 protected:
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the model executes PTX too slowly";
    ASSERT_NO_FATAL_FAILURE(gpus_.Start());
    ASSERT_NO_FATAL_FAILURE(cpus_.Start());
  }
  Results gpus_{OnModel("order=random,seed=3",
                        absl::StrCat("executor.delay=*,transport.delay=*,", kKernels))},
      cpus_{WorldOptions{.nodes = kNodes, .devices = kGpus}};
};

TEST_F(KernelWorlds, CarriedJobsRunTheKernelsAndGiveTheBitsOfACpuWorld) {
  constexpr int64_t kM = 67, kN = 131, kK = 83;  // so that A travels
  const auto type = ElementType::kBF16;
  const Ranks all{"x=8", {}}, node{"x=4", {4, 5, 6, 7}};
  for (const auto& [mesh, ranks] : {all, node}) {
    for (Results* world : {&gpus_, &cpus_}) {
      world->Fill("A", {kM, kK, type, "[M_x, K]", mesh, ranks}, Filling::Kind::kIntegers, 1);
      world->Fill("B", {kK, kN, type, "[K, N_x]", mesh, ranks}, Filling::Kind::kIntegers, 2);
    }
    for (const char* algorithm : {"ring", "bidirectional_ring", "direct", "hierarchical", "peer"}) {
      SCOPED_TRACE(absl::StrCat(algorithm, ", ", mesh));
      // Ranks of one node read in place and send nothing.
      const bool in_place = absl::string_view(algorithm) == "peer";
      if (in_place && ranks.empty()) continue;
      const auto on_gpus = gpus_.Multiply(mesh, ranks, algorithm, !in_place),
                 on_cpus = cpus_.Multiply(mesh, ranks, algorithm, !in_place);
      ASSERT_TRUE(on_gpus.ok() && on_cpus.ok()) << on_gpus.status().ToString();
      EXPECT_THAT(
          on_gpus->device_products,
          ::testing::Contains(in_place ? "agmm_product_bf16_bf16_128" : "agmm_ring_bf16_bf16_128"));
      EXPECT_TRUE(gpus_.Get("C", kM * kN * BytesOf(type)) ==
                  cpus_.Get("C", kM * kN * BytesOf(type)));
      for (Results* world : {&gpus_, &cpus_}) world->Delete("C");
    }
    for (Results* world : {&gpus_, &cpus_})
      for (const char* name : {"A", "B"}) world->Delete(name);
  }
  gpus_.StopInGoodOrder();
}

class CarriedJobs : public CudaCtl {
 protected:
  explicit CarriedJobs(const std::string& failpoints = "")
      : CudaCtl(absl::StrCat(kKernels, failpoints), "order=random,seed=5") {}
  void SetUp() override {
    if (kSanitized) GTEST_SKIP() << "the model executes PTX too slowly";
    CudaCtl::SetUp();
  }
  void FillOperands(const std::string& ranks) {
    // The shape of B is such that A travels.
    for (const auto& [name, shape, sharding] :
         {std::tuple{"A", "96x64", "[M_x, K]"}, {"B", "64x160", "[K, N_x]"}}) {
      Ok({"tensor", "fill", name, "--shape", shape, "--dtype", "bf16", "--sharding", sharding,
          "--ranks", ranks, "--kind", "integers"});
    }
  }
  static std::vector<std::string> Submit(const std::vector<std::string>& flags) {
    std::vector<std::string> all = {"job",         "submit", "--bind", "A=A,B=B,C=C",
                                    "--algorithm", "ring",   "--send", "carried"};
    all.insert(all.end(), flags.begin(), flags.end());
    return all;
  }
  std::string SubmitForever() {
    return absl::StrCat(
        OkJson(Submit({"--repeat", kForever, "--timeout", "10m"})).value("job_id", 0));
  }
};

TEST_F(CarriedJobs, EndWithAKilledDaemonAndRunAgain) {
  FillOperands("0-7");
  const std::string job = SubmitForever();
  ASSERT_TRUE(Reaches(job, "running"));
  EXPECT_THAT(Ok({"job", "show", job}), HasSubstr("agmm_ring_bf16_bf16_128"));
  ASSERT_NO_FATAL_FAILURE(KillNode1During(job));
  Run({"tensor", "rm", "A", "B", "C"});
  FillOperands("0-7");
  Ok(Submit({"--wait"}));
}

// Rank 5 does not submit its kernel, for which those of its neighbours wait.
class CarriedWaits : public CarriedJobs {
 protected:
  CarriedWaits() : CarriedJobs(",executor.hold_kernels_5=*") {}
};

TEST_F(CarriedWaits, EndAtTheDeadlineOrByACancel) {
  FillOperands("4-7");
  const Ran late = Run(Submit({"--timeout", "3s", "--wait"}));
  EXPECT_EQ(late.exit_code, kDeadline) << late.err;
  EXPECT_THAT(late.err, ContainsRegex("rank [4-7] lane [0-9]+ step [0-9]+ "));

  const std::string job = SubmitForever();
  ASSERT_TRUE(Reaches(job, "running"));
  Ok({"job", "cancel", job});
  EXPECT_TRUE(Reaches(job, "cancelled"));
  Run({"tensor", "rm", "A", "B", "C"});
  FillOperands("0-3");
  Ok(Submit({"--wait"}));
}

// A GPU of each node fails in its first operation.
class CudaLosses : public CudaCtl {
 protected:
  CudaLosses() : CudaCtl("", "lose=2@1,lose=5@1") {}
  // Returns the failures by rank, from the status that this node answers.
  std::vector<std::string> Failures(int node) {
    std::vector<std::string> failures;
    const Ran ran = world_.Ctl(node, {"status", "--json"});
    const Json status = Json::parse(ran.out, nullptr, /*allow_exceptions=*/false);
    for (const Json& in_world : status["nodes"])
      for (const Json& device : in_world["devices"])
        failures.push_back(device.value("failure", "no such field"));
    return failures;
  }
};

TEST_F(CudaLosses, AreLoggedByTheirDaemonAndInTheStatusOfBoth) {
  for (const std::string rank : {"2", "5"})
    Run({"tensor", "fill", "T" + rank, "--shape", "64x64", "--sharding", "[M, K]", "--ranks",
         rank});
  std::vector<std::string> failures;
  for (const int node : {0, 1}) {
    ASSERT_TRUE(Eventually([&] {
      failures = Failures(node);
      return failures.size() == kNodes * kGpus && !failures[2].empty() && !failures[5].empty();
    }));
    for (const int rank : {2, 5}) {
      EXPECT_THAT(failures[rank], ContainsRegex(absl::StrFormat(
                                      "^GPU %d is lost: .* failed: .*restart the daemon$", rank)));
      failures[rank].clear();
    }
    EXPECT_EQ(failures, std::vector<std::string>(kNodes * kGpus));
  }
  for (const int rank : {2, 5}) {
    Process& daemon = world_.daemon(rank / kGpus);
    const std::string lost = absl::StrFormat("GPU %d is lost: ", rank);
    // The failure appears in the status first.
    ASSERT_TRUE(Eventually([&] { return absl::StrContains(daemon.err(), lost); }));
    EXPECT_THAT(daemon.err(), ContainsRegex(" error +" + lost));
    const std::vector<std::string> parts = absl::StrSplit(daemon.err(), lost);
    EXPECT_EQ(parts.size(), 2) << daemon.err();
  }
  EXPECT_THAT(Ok({"status"}),
              AllOf(HasSubstr("failed: GPU 2 is lost: "), HasSubstr("failed: GPU 5 is lost: ")));
}

// Rank 5 never begins, so the others wait for it.
class CudaWaits : public CudaCtl {
 protected:
  CudaWaits() : CudaCtl("executor.hold_rank_5=*") {}
};

TEST_F(CudaWaits, EndAtTheDeadlineOrByACancel) {
  PutOperands();
  const Ran late = Run({"job", "submit", "--bind", "A=X,B=W,C=Y", "--algorithm", "ring",
                        "--timeout", "2s", "--wait"});
  EXPECT_EQ(late.exit_code, kDeadline) << late.err;
  // The node that reports first names a step that waits for rank 5, or one of rank 5.
  EXPECT_THAT(late.err, ContainsRegex("rank [0-9]+ lane [0-9]+ step [0-9]+ waited|"
                                      "rank 5 lane [0-9]+ step [0-9]+ was ready .* no worker"));

  const std::string job = SubmitForever();
  ASSERT_TRUE(Reaches(job, "running"));
  Ok({"job", "cancel", job});
  EXPECT_TRUE(Reaches(job, "cancelled"));

  for (const auto& [name, sharding] : {std::pair{"A", "[M_x, K]"}, {"B", "[K, N_x]"}})
    Ok({"tensor", "fill", name, "--shape", "64x64", "--sharding", sharding, "--ranks", "2-4"});
  Ok({"job", "submit", "--bind", "A=A,B=B,C=C", "--wait"});
}

// Expects that a daemon that cannot use its GPU prints one line and exits with 1.
void ExpectRefused(World* world, const std::string& why, const std::string& next) {
  world->Start(0);
  EXPECT_EQ(world->daemon(0).Wait(kPatience), 1);
  const std::string log = world->daemon(0).err();
  const auto line =
      ContainsRegex(absl::StrFormat(" error +device cuda, gpu 14: .*%s.*%s", why, next));
  EXPECT_THAT(log, line);
  const size_t first = log.find(" error ");
  EXPECT_TRUE(first == std::string::npos || log.find(" error ", first + 1) == std::string::npos)
      << log;
}

WorldOptions OneGpu(std::map<std::string, std::string> environment) {
  WorldOptions options;
  options.device = [](int, int) { return GpuDevice(14); };
  options.environment = std::move(environment);
  return options;
}

TEST(CudaStart, WithoutADriverTheDaemonReportsTheReason) {
  const TempFolder folder("no-driver");
  WriteFile(folder / "libcuda.so.1", "not a library");
  World world(OneGpu({{"LD_LIBRARY_PATH", folder.path()}}));
  ExpectRefused(&world, "no CUDA driver: libcuda.so.1 could not be opened",
                "install NVIDIA's driver of CUDA [0-9.]+ or newer");
}

TEST(CudaStart, AGpuThatDoesNotExistIsRefusedWithTheirNumber) {
  World world(OneGpu(ModelEnvironment("gpus=2")));
  ExpectRefused(&world, "GPU 14 does not exist; this machine has 2", "CUDA_VISIBLE_DEVICES");
}

TEST(CudaStart, AGpuThatAnotherDaemonHoldsIsRefusedWithItsProcess) {
  const auto environment = ModelEnvironment(absl::StrFormat("gpus=15,machine=%d", getpid()));
  World holder(OneGpu(environment)), other(OneGpu(environment));
  ASSERT_NO_FATAL_FAILURE(holder.StartAll());
  ExpectRefused(&other,
                absl::StrFormat("held by another daemon, process %d", holder.daemon(0).pid()),
                "give this one another GPU or end that one");
}

}  // namespace
}  // namespace agmm
