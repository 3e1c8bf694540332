// agmmctl job, as users run it.
#include <signal.h>

#include <algorithm>
#include <map>
#include <set>

#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;
using Json = nlohmann::json;

using CtlJob = Ctl;

TEST_F(CtlJob, AJobByNamesComputesItsProductAndReportsItsPlan) {
  const TestMatrix want = PutOperands();
  const std::string out = Ok(
      {"job", "submit", "--bind", "A=X,B=W,C=Y", "--algorithm", "ring", "--repeat", "3", "--wait"});
  EXPECT_THAT(out, StartsWith("job 1\n"));
  EXPECT_THAT(out, HasSubstr("queued"));
  EXPECT_THAT(out, HasSubstr("running"));
  EXPECT_THAT(out, HasSubstr("succeeded"));
  EXPECT_THAT(out, HasSubstr("\nring, "));
  EXPECT_TRUE(SameBits(Get("Y"), want));

  const Json job = OkJson({"job", "show", "1"});
  EXPECT_EQ(job["state"], "succeeded");
  EXPECT_EQ(job["algorithm"], "ring");
  EXPECT_TRUE(job["device_paths"].empty()) << job["device_paths"];  // of CPU devices
  EXPECT_EQ(job["repeat"], 3);
  EXPECT_GT(job["figures"]["time_us"], 0);
  EXPECT_TRUE(job["figures"]["gemm_us"].is_null());
  EXPECT_THAT(Ok({"job", "show", "1"}),
              HasSubstr("T_gemm     not known: run it with --algorithm serial --repeat 3\n"));
  const Json list = OkJson({"job", "list"});
  ASSERT_EQ(list["jobs"].size(), 1);
  EXPECT_EQ(list["jobs"][0]["job_id"], 1);

  // For a job that has ended, prints the events from that number on, one a line.
  const std::string events = Ok({"job", "watch", "1", "--from", "2", "--json"});
  std::vector<int> numbers;
  for (absl::string_view line : absl::StrSplit(events, '\n', absl::SkipEmpty())) {
    const Json event = Json::parse(line);
    EXPECT_EQ(event["schema"], "agmm.job_event.v1");
    numbers.push_back(event["number"]);
  }
  ASSERT_FALSE(numbers.empty());
  EXPECT_EQ(numbers.front(), 2);
  EXPECT_EQ(numbers.size() + 1, job["events"].size());
}

TEST_F(CtlJob, AnOpenSumIsClosedByACollective) {
  const TestMatrix a = SmallIntegers(37, 41, 1), b = SmallIntegers(41, 29, 2);
  Put("X", a, {"--sharding", "[M, K_x]"});
  Put("W", b, {"--sharding", "[K_x, N]"});
  Ok({"job", "submit", "--spec", "A[M, K_x] * B[K_x, N] -> C[M, N]{U_x}", "--bind", "A=X,B=W,C=P",
      "--wait"});
  EXPECT_THAT(Ok({"tensor", "show", "P"}), HasSubstr("[M, N]{U_x} over mesh x=4"));
  for (const std::vector<std::string>& refused :
       {std::vector<std::string>{"tensor", "get", "P", world_.Path("P.npy")},
        {"tensor", "put", "P", world_.Path("X.npy"), "--sharding", "[M, N]{U_x}"},
        {"tensor", "fill", "P"}})
    ExpectError(refused, 5, "has an open sum ([M, N]{U_x})");
  EXPECT_EQ(ReadFile(world_.Path("P.npy")), "");
  const std::string out =
      Ok({"job", "submit", "--spec", "C[M, N]{U_x} -> D[M_x, N]", "--bind", "C=P,D=Y", "--wait"});
  EXPECT_THAT(out, HasSubstr(": T "));
  EXPECT_THAT(out, Not(HasSubstr("TFLOP/s")));
  EXPECT_TRUE(SameBits(Get("Y"), MatrixProduct(a, b)));
  const std::string shown = Ok({"job", "show", "2"});
  EXPECT_THAT(shown, HasSubstr("collective  C[M, N]{U_x} -> D[M_x, N]  37 x 29 f32"));
  EXPECT_THAT(shown, HasSubstr("moved"));
  for (const char* of_products : {"product", "T_gemm", "FLOP", "split"})
    EXPECT_THAT(shown, Not(HasSubstr(of_products)));
  const Json job = OkJson({"job", "show", "2"});
  EXPECT_EQ(job["k"], 0);
  EXPECT_TRUE(job["figures"]["gather_us"].is_null()) << job["figures"];
  EXPECT_THAT(Ok({"job", "list"}), HasSubstr("37x29 f32"));
  ExpectError({"job", "submit", "--spec", "C[M, N]{U_x} -> D[M_x, N]", "--bind", "C=P,D=P"}, 2,
              "is both input and output");
  ExpectError({"job", "submit", "--spec", "C[M, N]{U_x} -> D[M, N]", "--bind", "C=P,D=Z",
               "--transfers-only"},
              2, "leave the option out");
}

TEST_F(CtlJob, TransfersOnlyMeasureTheGatherAndLeaveCWithoutContents) {
  PutOperands();
  const auto run = [&](std::vector<std::string> options) {
    std::vector<std::string> command = {"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"};
    command.insert(command.end(), options.begin(), options.end());
    Ok(command);
    const Json jobs = OkJson({"job", "list"})["jobs"];
    return OkJson({"job", "show", absl::StrCat(jobs[0]["job_id"].get<int>())});
  };
  run({"--algorithm", "serial"});  // the first job of a plan packs B and is not measured
  const Json serial = run({"--algorithm", "serial"});
  const std::vector<std::string> transfers = {"--algorithm", "hierarchical_peer",
                                              "--transfers-only", "--repeat", "9"};
  run(transfers);
  const Json gather = run(transfers);
  EXPECT_TRUE(gather["transfers_only"]);
  EXPECT_TRUE(gather["figures"]["flop_count"].is_null());
  EXPECT_NE(gather["plan_hash"], serial["plan_hash"]);
  ExpectError({"tensor", "get", "Y", "/dev/null"}, 5, "has no contents");
  const Json ring = run({"--algorithm", "ring"});
  EXPECT_EQ(ring["figures"]["baseline_job_id"], serial["job_id"]);
  EXPECT_EQ(ring["figures"]["gemm_us"], serial["figures"]["gemm_us"]);
  EXPECT_EQ(ring["figures"]["gather_us"], std::min(serial["figures"]["gather_us"].get<double>(),
                                                   gather["figures"]["time_us"].get<double>()));
  EXPECT_EQ(Ok({"tensor", "get", "Y", "/dev/null"}).find("no contents"), std::string::npos);
  ExpectError({"job", "submit", "--bind", "A=X,B=W,C=Y", "--transfers-only", "--send", "carried"},
              2, "a plan of transfers only has none");
}

TEST_F(CtlJob, AJobOfAnEarlierRunIsListedAndShown) {
  PutOperands();
  Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"});
  const std::string run = OkJson({"job", "show", "1"})["run"];
  world_.daemon(0).Signal(SIGTERM);
  ASSERT_EQ(world_.daemon(0).Wait(kPatience), 0);
  world_.Start(0);
  ASSERT_TRUE(world_.WaitReady(0));
  const std::string id = absl::StrCat("1@", run.substr(0, 4));
  EXPECT_THAT(Ok({"job", "list"}), HasSubstr(absl::StrCat(id, "  succeeded")));
  EXPECT_THAT(Ok({"job", "show", id}),
              HasSubstr(absl::StrCat(id, "  succeeded, in an earlier run of node 0's daemon")));
  EXPECT_TRUE(OkJson({"job", "list"})["jobs"].empty());
  EXPECT_EQ(OkJson({"job", "list"})["earlier_jobs"][0]["job_id"], 1);
  ExpectError({"job", "show", "1"}, 4, "job 1 does not exist");
  EXPECT_EQ(Ok({"job", "why", id}), absl::StrCat("job ", id, " has succeeded\n"));
  for (const char* verb : {"watch", "cancel"})
    ExpectError({"job", verb, id}, 2, absl::StrCat("job ", id, " is of an earlier run"));
}

TEST_F(CtlJob, AWatchPastTheLastEventIsExplained) {
  PutOperands();
  Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--wait"});
  const size_t events = OkJson({"job", "show", "1"})["events"].size();
  EXPECT_EQ(Ok({"job", "watch", "1", "--from", "99"}),
            absl::StrFormat("job 1 has no event 99: it ended with event %d, succeeded\n", events));
  EXPECT_EQ(Ok({"job", "watch", "1", "--from", "99", "--json"}), "");
}

TEST_F(CtlJob, AWarmSerialRunIsTheBaselineOfLaterJobs) {
  PutOperands();
  const auto submit = [&](const std::string& algorithm, const std::string& repeat) {
    Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--algorithm", algorithm, "--repeat", repeat,
        "--wait"});
    return OkJson({"job", "list"})["jobs"][0]["figures"];
  };
  EXPECT_GT(submit("serial", "1")["gemm_us"], 0) << "its own";
  EXPECT_TRUE(submit("ring", "1")["gemm_us"].is_null()) << "a cold run is not a baseline";
  const Json serial = submit("serial", "3"), ring = submit("ring", "3");
  EXPECT_EQ(ring["gemm_us"], serial["gemm_us"]);
  EXPECT_EQ(ring["gather_us"], serial["gather_us"]);
  EXPECT_GT(ring["overlap"], 0);
  EXPECT_EQ(serial["baseline_job_id"], 3);
  EXPECT_EQ(ring["baseline_job_id"], 3);
  EXPECT_THAT(Ok({"job", "show", "4"}), HasSubstr("ms, the product alone (job 3, "));
}

TEST_F(CtlJob, AFirstComparisonNamesItsBaseline) {
  WriteNpy(world_.Path("A.npy"), SmallIntegers(96, 80, 1));
  WriteNpy(world_.Path("B.npy"), SmallIntegers(80, 64, 2));
  const Json ran = OkJson({"matmul", world_.Path("A.npy"), world_.Path("B.npy"), "--out",
                           world_.Path("C.npy"), "--compare", "--repeat", "2"});
  EXPECT_EQ(ran["runs_ms"].size(), 2u) << "one of them warms up";
  const Json figures = OkJson({"job", "list"})["jobs"][0]["figures"];
  EXPECT_GT(figures["gemm_us"], 0);
  EXPECT_GT(figures["overlap"], 0);
}

TEST_F(CtlJob, TheSameRequestIdIsTheSameJob) {
  PutOperands();
  const std::vector<std::string> submit = {"job",         "submit",       "--bind",
                                           "A=X,B=W,C=Y", "--request-id", "once"};
  const Json first = OkJson(submit);
  EXPECT_EQ(OkJson(submit)["job_id"], first["job_id"]);
  std::vector<std::string> other = submit;
  other.insert(other.end(), {"--repeat", "2"});
  ExpectError(other, 5, "once");
}

TEST_F(CtlJob, ATraceHasEveryStepOfEveryRank) {
  PutOperands();
  for (const char* algorithm : {"ring", "direct"})
    Ok({"job", "submit", "--bind", "A=X,B=W,C=Y", "--algorithm", algorithm, "--wait"});
  const std::string path = world_.Path("t.json");
  ExpectError({"job", "trace", "1", "--out", world_.Path("")}, 2, "not a regular file");
  Ok({"job", "trace", "1", "2", "--out", path});
  const Json trace = Json::parse(ReadFile(path), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  std::map<int, std::map<int, size_t>> steps;  // by job and rank
  std::set<int> nodes;
  for (const Json& event : trace["traceEvents"]) {
    ASSERT_TRUE(event.contains("ph") && event.contains("pid") && event.contains("tid") &&
                event.contains("name"));
    if (event["ph"] != "X" || event["cat"] == "wait") continue;
    ++steps[event["args"]["job"]][event["args"]["rank"]];
    nodes.insert(event["pid"].get<int>());
    EXPECT_GE(event["ts"], 0);
    EXPECT_GE(event["dur"], 0);
  }
  EXPECT_EQ(nodes, (std::set<int>{0, 1}));
  for (int job : {1, 2}) {
    const Json shown = OkJson({"job", "show", std::to_string(job)});
    const Json plan =
        OkJson({"plan", "--shape", "M=96,N=64,K=80", "--mesh", "x=4", "--nodes", "2", "--algorithm",
                shown["algorithm"].get<std::string>(), "--chunks", shown["chunks"].dump(),
                "--split", shown["split"].get<std::string>()});
    ASSERT_EQ(plan["ranks"].size(), 4);
    for (int rank = 0; rank < 4; ++rank)
      EXPECT_EQ(steps[job][rank], plan["ranks"][rank]["steps"].size()) << job << " " << rank;
  }
}

// Two jobs on disjoint ranks, both queued behind a job that holds all ranks until it is cancelled.
TEST_F(CtlJob, JobsOnDisjointRanksComputeAtTheSameInstant) {
  for (const auto& [suffix, ranks] : {std::pair{"1", "0-1"}, {"2", "2-3"}}) {
    for (const auto& [name, sharding] : {std::pair{"A", "[M_x, K]"}, {"B", "[K, N_x]"}}) {
      Ok({"tensor", "fill", absl::StrCat(name, suffix), "--shape", "1280x1280", "--dtype", "f32",
          "--sharding", sharding, "--ranks", ranks, "--seed", "1"});
    }
  }
  PutOperands();
  const std::string first = SubmitForever();
  ASSERT_TRUE(Reaches(first, "running"));
  std::vector<std::string> jobs;
  for (const std::string suffix : {"1", "2"}) {
    const std::string bind = absl::StrFormat("A=A%s,B=B%s,C=C%s", suffix, suffix, suffix);
    jobs.push_back(absl::StrCat(OkJson({"job", "submit", "--bind", bind}).value("job_id", 0)));
  }
  Ok({"job", "cancel", first});
  for (const std::string& job : jobs) ASSERT_TRUE(Reaches(job, "succeeded"));

  const std::string path = world_.Path("t.json");
  Ok({"job", "trace", jobs[0], jobs[1], "--out", path});
  const Json trace = Json::parse(ReadFile(path), nullptr, false);
  ASSERT_FALSE(trace.is_discarded());
  struct Interval {
    double begin, end;
  };
  std::map<std::string, std::vector<Interval>> multiplies;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] != "X" || event["cat"] != "multiply") continue;
    const double begin = event["ts"];
    multiplies[absl::StrCat(event["args"]["job"].get<int>())].push_back(
        {begin, begin + event["dur"].get<double>()});
  }
  double together_us = 0;
  for (const Interval& a : multiplies[jobs[0]])
    for (const Interval& b : multiplies[jobs[1]])
      together_us += std::max(0.0, std::min(a.end, b.end) - std::max(a.begin, b.begin));
  std::printf("%.0f us of multiplies lie side by side\n", together_us);
  EXPECT_GT(together_us, 0);
}

TEST_F(CtlJob, ACancelledJobEndsItsWatches) {
  PutOperands();
  const std::string job = SubmitForever();
  const std::unique_ptr<Process> watch = world_.StartCtl(0, {"job", "watch", job});
  ASSERT_TRUE(Prints(watch.get(), "running"));
  EXPECT_THAT(Ok({"job", "cancel", job}), HasSubstr("is being cancelled"));
  EXPECT_EQ(watch->Wait(kPatience), 130);
  EXPECT_THAT(watch->out(), HasSubstr("cancelled"));
  EXPECT_TRUE(Reaches(job, "cancelled"));
  Ok({"job", "trace", job, "--out", world_.Path("t.json")});
  EXPECT_THAT(Ok({"job", "why", job}), HasSubstr("has been cancelled"));
}

TEST_F(CtlJob, AWaitForACancelledJobNamesTheJobOnce) {
  PutOperands();
  const std::unique_ptr<Process> submit = world_.StartCtl(
      0, {"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever, "--wait"});
  ASSERT_TRUE(Prints(submit.get(), "running"));
  Ok({"job", "cancel", "1"});
  EXPECT_EQ(submit->Wait(kPatience), 130);
  EXPECT_EQ(submit->err(), "agmmctl: job 1 was cancelled\n");
}

TEST_F(CtlJob, ALongJobsDeadlineReportsItsProgress) {
  PutOperands();
  const Ran ran = Run({"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever, "--timeout",
                       "5s", "--wait"});
  EXPECT_EQ(ran.exit_code, 6);
  EXPECT_THAT(ran.err, MatchesRegex("agmmctl: job 1 did not end within its timeout of 5s: node "
                                    "n[01]: [1-9][0-9]* of 1000000 epochs done: .*; if it needs "
                                    "longer, give it a longer timeout\n"));
}

// Rank 3 never begins a step.
class CtlHungJob : public Ctl {
 protected:
  CtlHungJob() : Ctl({.nodes = 2, .devices = 2, .failpoints = "executor.hold_rank_3=*"}) {}
};

TEST_F(CtlHungJob, IsExplainedWhileRunningAndAfterItsDeadline) {
  PutOperands();
  const auto submit = [&](const char* timeout) {
    return absl::StrCat(OkJson({"job", "submit", "--bind", "A=X,B=W,C=Y", "--algorithm", "ring",
                                "--repeat", "5", "--timeout", timeout})
                            .value("job_id", 0));
  };
  const std::string job = submit("20s"), behind = submit("60s");
  // The chain is complete once every rank has reached its wait.
  Json why;
  for (const Deadline end = Deadline::After(kPatience); !end.HasPassed();) {
    why = OkJson({"job", "why", job})["jobs"][0];
    if (why["chain"].size() > 1) break;
  }
  EXPECT_EQ(why["epochs_done"], 0);
  EXPECT_EQ(why["epochs"], 5);
  EXPECT_EQ(why["chain"].back()["step"]["rank"], 3);
  EXPECT_TRUE(why["chain"].back()["waits"].empty());
  EXPECT_EQ(why["chain"].back()["ready"], true);
  EXPECT_THAT(why.value("cause", ""), HasSubstr("and no worker has begun it"));
  EXPECT_EQ(why["chain"].back()["node"], 1);
  EXPECT_THAT(Ok({"job", "show", job}), HasSubstr("epochs     0 of 5 epochs done"));
  const std::string queued = Ok({"job", "why", behind});
  EXPECT_THAT(queued, StartsWith(absl::StrFormat("job %s is queued: it waits for job %s, which had "
                                                 "not ended, on ranks 0-3\njob %s is running",
                                                 behind, job, job)));
  EXPECT_THAT(queued, HasSubstr("rank 3 lane"));
  EXPECT_THAT(Ok({"job", "show", behind}), HasSubstr("0 of 5 epochs done"));
  Ok({"job", "trace", job, "--out", world_.Path("running.json")});
  ASSERT_TRUE(Reaches(job, "failed"));
  const std::string error = OkJson({"job", "show", job})["error"]["message"];
  EXPECT_THAT(error, StartsWith(absl::StrFormat(
                         "job %s did not end within its timeout of 20s: rank 3 lane ", job)));
  EXPECT_THAT(error, HasSubstr(" on node n1 ("));
  EXPECT_EQ(OkJson({"job", "why", job})["jobs"][0]["chain"].back()["step"]["rank"], 3);
  Ok({"job", "trace", job, "--out", world_.Path("failed.json")});
  const Json trace = Json::parse(ReadFile(world_.Path("failed.json")), nullptr, false);
  int open_waits = 0;
  for (const Json& event : trace["traceEvents"])
    open_waits += event.value("cat", "") == "wait" && event["args"]["over"] == false;
  EXPECT_GT(open_waits, 0);
  Ok({"job", "cancel", behind});
}

// No message of a job leaves its node.
class CtlLostMessages : public Ctl {
 protected:
  CtlLostMessages() : Ctl({.nodes = 2, .devices = 1, .failpoints = "transport.drop=*"}) {}

  // `agmmctl job watch ID` on a terminal of this type.
  std::unique_ptr<Process> WatchOnTerminal(const std::string& job, const std::string& term) {
    return std::make_unique<Process>(
        std::vector<std::string>{"/usr/bin/env", absl::StrCat("TERM=", term), "python3", "-c",
                                 "import pty, sys; pty.spawn(sys.argv[1:])", AGMMCTL, "--endpoint",
                                 world_.endpoint(1), "job", "watch", job},
        world_.Path(absl::StrCat("watch.", term)));
  }
};

TEST_F(CtlLostMessages, AreFoundByThePathOfTheJobAndOnTheTerminalThatWatchesIt) {
  PutOperands();
  const std::string job = SubmitForever();
  const std::unique_ptr<Process> dumb = WatchOnTerminal(job, "dumb");
  const std::unique_ptr<Process> watch = WatchOnTerminal(job, "xterm");
  Json why;
  for (const Deadline end = Deadline::After(kPatience); !end.HasPassed();) {
    why = OkJson({"job", "why", job})["jobs"][0];
    if (!why["paths"].empty()) break;
  }
  ASSERT_EQ(why["paths"].size(), 1);
  EXPECT_TRUE(why["paths"][0]["bytes_per_s"].is_number()) << why;
  EXPECT_THAT(why.value("cause", ""), HasSubstr("its data or signal has not arrived yet"));
  EXPECT_THAT(Ok({"job", "why", job}), HasSubstr(" the last 5"));
  EXPECT_TRUE(Prints(watch.get(), " -> n"));
  EXPECT_THAT(watch->out(), HasSubstr("\r\033[K"));
  EXPECT_THAT(watch->out(), HasSubstr("epochs done, the first one for "));
  Ok({"job", "cancel", job});
  for (const auto& process : {watch.get(), dumb.get()})
    EXPECT_TRUE(process->Wait(kPatience).has_value());
  EXPECT_THAT(dumb->out(), HasSubstr("cancelled"));
  EXPECT_THAT(dumb->out(), Not(HasSubstr("\033")));
  EXPECT_THAT(dumb->out(), Not(HasSubstr("epochs done")));
}

TEST_F(CtlJob, AnInterruptEndsAWatchAndCancelsAWaitingSubmit) {
  PutOperands();
  const std::string job = SubmitForever();
  const std::unique_ptr<Process> watch = world_.StartCtl(0, {"job", "watch", job});
  ASSERT_TRUE(Prints(watch.get(), "running"));
  watch->Signal(SIGINT);
  EXPECT_EQ(watch->Wait(kPatience), 130);
  EXPECT_THAT(watch->err(), HasSubstr("goes on"));
  EXPECT_EQ(OkJson({"job", "show", job})["state"], "running");
  Ok({"job", "cancel", job});
  ASSERT_TRUE(Reaches(job, "cancelled"));

  const std::unique_ptr<Process> submit = world_.StartCtl(
      0, {"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever, "--wait"});
  ASSERT_TRUE(Prints(submit.get(), "running"));
  submit->Signal(SIGINT);
  EXPECT_EQ(submit->Wait(kPatience), 130);
  EXPECT_EQ(submit->err(), "agmmctl: job 2 is being cancelled\n");
  EXPECT_TRUE(Reaches("2", "cancelled"));
}

TEST_F(CtlJob, AProductOfOneRankIsAlwaysLocal) {
  for (const auto& [name, sharding] : {std::pair{"A", "[M_x, K]"}, {"B", "[K, N_x]"}})
    Ok({"tensor", "fill", name, "--shape", "64x64", "--sharding", sharding, "--ranks", "2"});
  const Json job =
      OkJson({"job", "submit", "--bind", "A=A,B=B,C=C", "--algorithm", "ring", "--wait"});
  EXPECT_EQ(job["schedule"], "local");
  EXPECT_EQ(job["algorithm"], "ring");
  EXPECT_THAT(Ok({"job", "show", "1"}), HasSubstr("\nalgorithm  local (nothing has to move)\n"));
  Ok({"job", "trace", "1", "--out", world_.Path("local.json")});
}

TEST_F(CtlJob, ExitCodesTellTheCasesApart) {
  PutOperands();
  ExpectError({"job", "submit", "--bind", "A=X,B=W"}, 2, "add C=NAME");
  ExpectError({"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", "0"}, 2, "--repeat");
  ExpectError({"job", "submit", "--bind", "A=X,B=W,C=Y", "--chunks", "0"}, 2, "--chunks");
  ExpectError({"job", "submit", "--bind", "A=X,B=W,C=Y", "--timeout", "0s"}, 2, "--timeout");
  for (const char* number : {"-1", "0", "0x10", "99999999999999999999"})
    ExpectError({"job", "show", "--", number}, 2, "\" is not the id of a job; give one that");
  ExpectError({"job", "show", "77"}, 4, "job 77 does not exist; job ids start again");
  ExpectError({"job", "submit", "--bind", "A=V,B=W,C=Y"}, 4, "\"V\"");
  // The sharding of S differs from the spec's.
  Put("S", SmallIntegers(80, 80, 1), {"--sharding", "[K, N_x]"});
  ExpectError({"job", "submit", "--bind", "A=S,B=W,C=Y"}, 5, "stands for A");
  ExpectError({"job", "submit", "--bind", "A=X,B=W,C=Y", "--repeat", kForever, "--timeout", "200ms",
               "--wait"},
              6, "job 1 did not end within its timeout of 200ms: ");
}

}  // namespace
}  // namespace agmm
