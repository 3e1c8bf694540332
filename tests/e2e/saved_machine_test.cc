// The machine that a world saves predicts its daemons' choices, without a daemon.
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

// An input: its shape and sharding.
struct Input {
  std::string name, shape, sharding;
};

struct Question {
  std::string spec, mesh, shape, bind;
  std::vector<Input> inputs;
};

// On two nodes with two devices each.
class SavedMachine : public Ctl {
 protected:
  SavedMachine() : Ctl({.nodes = 2, .devices = 2, .local = "  machines: \"none\"\n"}) {}

  void Save() {
    Ok({"topo", "--measure"});
    OkJson({"topo", "--save", file_});
  }
  // Returns the job's plan as its daemons chose it.
  json Chosen(const Question& question) {
    for (const Input& input : question.inputs) {
      Ok({"tensor", "fill", input.name, "--shape", input.shape, "--sharding", input.sharding,
          "--mesh", question.mesh, "--dtype", "f32"});
    }
    const json job = OkJson({"job", "submit", "--spec", question.spec, "--bind", question.bind});
    const std::string id = absl::StrCat(job["job_id"].get<int>());
    EXPECT_TRUE(Reaches(id, "succeeded")) << question.spec;
    return OkJson({"job", "show", id});
  }
  // Returns the plan that `agmmctl simulate` takes.
  json Simulated(const Question& question, const std::vector<std::string>& more = {}) {
    std::vector<std::string> arguments = {"simulate",     "--machine", file_,         "--spec",
                                          question.spec,  "--mesh",    question.mesh, "--shape",
                                          question.shape, "--dtype",   "f32"};
    arguments.insert(arguments.end(), more.begin(), more.end());
    return OkJson(arguments)["taken"];
  }
  static void ExpectTaken(const json& taken, const json& job) {
    ASSERT_FALSE(taken.is_null());
    EXPECT_EQ(taken["hash"], job["plan_hash"]);
    EXPECT_EQ(taken["algorithm"], job["schedule"]);
    for (const char* option : {"chunks", "k_chunks", "workspace_shards", "carried", "partials"})
      EXPECT_EQ(taken["options"][option], job[option]) << option;
    if (!job["split"].is_null()) EXPECT_EQ(taken["options"]["split"], job["split"]);
    EXPECT_EQ(taken["why"], job["explanation"]);
    EXPECT_EQ(taken["time_ns"].get<double>() * 1e-3, job["predicted_us"].get<double>());
  }

  const std::string file_ = world_.Path("machine.textproto");
};

const std::vector<Question>& Questions() {
  static const std::vector<Question> questions = {
      {"A[M_x, K] * B[K, N_x] -> C[M, N_x]",
       "x=4",
       "M=768,N=512,K=640",
       "A=A1,B=B1,C=C1",
       {{"A1", "768x640", "[M_x, K]"}, {"B1", "640x512", "[K, N_x]"}}},
      {"A[M_x, K] * B[K_x, N] -> C[M_x, N]",
       "x=4",
       "M=2048,N=256,K=256",
       "A=A2,B=B2,C=C2",
       {{"A2", "2048x256", "[M_x, K]"}, {"B2", "256x256", "[K_x, N]"}}},
      {"A[M, K_x] * B[K_x, N] -> C[M_x, N]",
       "x=4",
       "M=512,N=384,K=1024",
       "A=A3,B=B3,C=C3",
       {{"A3", "512x1024", "[M, K_x]"}, {"B3", "1024x384", "[K_x, N]"}}},
      {"A[M_x, K_y] * B[K_y, N_x] -> C[M_x, N_y]",
       "x=2,y=2",
       "M=512,N=512,K=256",
       "A=A4,B=B4,C=C4",
       {{"A4", "512x256", "[M_x, K_y]"}, {"B4", "256x512", "[K_y, N_x]"}}},
      {"A[M_x, K] -> B[M, K]",
       "x=4",
       "M=1024,K=512",
       "A=A5,B=B5",
       {{"A5", "1024x512", "[M_x, K]"}}},
      {"A[M_x, K] -> B[M, K_x]",
       "x=2",
       "M=256,K=512",
       "A=A6,B=B6",
       {{"A6", "256x512", "[M_x, K]"}}},
  };
  return questions;
}

TEST_F(SavedMachine, ReproducesTheChoicesOfTheSequencerAndTheirFigures) {
  Save();
  for (const Question& question : Questions()) {
    SCOPED_TRACE(question.spec);
    const json job = Chosen(question);
    ExpectTaken(Simulated(question), job);
  }
}

TEST_F(SavedMachine, WithTheTuningTableReproducesTheTunedChoice) {
  Save();
  const Question& question = Questions().front();
  const std::string table = world_.Path("table.txtpb");
  Stored({"tune", question.spec, question.shape, "--mesh", question.mesh, "--dtype", "f32",
          "--rounds", "1", "--save", table});
  const json job = Chosen(question);
  EXPECT_THAT(job["explanation"].get<std::string>(), StartsWith("tuned"));
  ExpectTaken(Simulated(question, {"--tuning", table}), job);
  EXPECT_THAT(Simulated(question)["why"].get<std::string>(), Not(StartsWith("tuned")));
  EXPECT_THAT(Run({"simulate", "--machine", file_, "--spec", question.spec, "--mesh", question.mesh,
                   "--shape", question.shape, "--tuning", table, "--hardware", "abacus"})
                  .err,
              HasSubstr("have a plan for --hardware 'abacus'; they have plans for '"));
}

TEST_F(SavedMachine, HasTheDevicesOfTheWorld) {
  OkJson({"topo", "--save", file_});
  const std::string text = ReadFile(file_);
  EXPECT_THAT(text, HasSubstr("devices_per_node: 2\n"));
  EXPECT_THAT(text, HasSubstr("heap_bytes: 33554432\n"));
}

}  // namespace
}  // namespace agmm
