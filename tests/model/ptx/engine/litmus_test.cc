// Litmus tests of releases and acquires between CTAs of one and of several GPUs: which of them
// leave a race. The expected results follow the memory consistency model of the PTX ISA (scopes,
// fences, release sequences, causality order).
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "tests/model/ptx/state/state.h"

namespace ptx {
namespace {

// One thread of a litmus test, alone in the CTA of a grid. %X is the data, %F and %G are flags; all
// are zero before.
struct Thread {
  int gpu;
  std::string body;
};

struct Litmus {
  std::string name;
  bool races;
  std::vector<Thread> threads;
};

std::string Lines(std::initializer_list<std::string> lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  return text;
}

const std::string kWrite = "st.global.u32 [%X], 7;\n";
const std::string kRead = "ld.global.u32 %r, [%X];\n";

std::string Set(const std::string& order, const std::string& flag = "%F", int value = 1) {
  return "st." + order + ".global.u32 [" + flag + "], " + std::to_string(value) + ";\n";
}
std::string Count(const std::string& order) {
  return "red." + order + ".global.add.u32 [%F], 1;\n";
}
// Polls the flag until it has at least this value.
std::string Poll(const std::string& order, const std::string& flag = "%F", int value = 1) {
  return Lines({"{", ".reg .pred p;", "POLL:", "ld." + order + ".global.u32 %r, [" + flag + "];",
                "setp.lt.u32 p, %r, " + std::to_string(value) + ";", "@p bra POLL;", "}"});
}
std::string Fence(const std::string& order) { return "fence." + order + ";\n"; }

std::string KernelOf(size_t number, const std::string& body) {
  return ".visible .entry thread" + std::to_string(number) +
         R"((.param .u64 x, .param .u64 f, .param .u64 g)
{
.reg .pred %other;
.reg .b32 %r, %lane;
.reg .b64 %X, %F, %G;
ld.param.u64 %X, [x];
ld.param.u64 %F, [f];
ld.param.u64 %G, [g];
mov.u32 %lane, %laneid;
setp.ne.u32 %other, %lane, 0;
@%other bra END;
)" + body +
         "END:\nret;\n}\n";
}

// Returns the findings of all seeds.
std::map<std::string, int64_t> Findings(const Litmus& litmus) {
  std::string text = ".version 9.0\n.target sm_90a\n.address_size 64\n";
  for (size_t i = 0; i < litmus.threads.size(); ++i) text += KernelOf(i, litmus.threads[i].body);
  std::map<std::string, int64_t> findings;
  for (uint64_t seed = 1; seed <= 6; ++seed) {
    const auto module = ParseModule(text);
    alignas(128) std::byte words[3][128] = {};
    HostMemory memory;
    memory.Add(words, sizeof words, 0);
    World world(memory, {.seed = seed});
    world.races.SetWritten(reinterpret_cast<uint64_t>(words), sizeof words);
    const uint64_t addresses[] = {reinterpret_cast<uint64_t>(words[0]),
                                  reinterpret_cast<uint64_t>(words[1]),
                                  reinterpret_cast<uint64_t>(words[2])};
    for (size_t i = 0; i < litmus.threads.size(); ++i) {
      Launch launch{.module = module.get(),
                    .kernel = module->kernels.at("thread" + std::to_string(i)).get()};
      launch.gpu = litmus.threads[i].gpu;
      launch.parameters.resize(sizeof addresses);
      std::memcpy(launch.parameters.data(), addresses, sizeof addresses);
      world.Start(std::move(launch));
    }
    world.Run();
    findings.insert(world.races.findings().begin(), world.races.findings().end());
  }
  return findings;
}

std::string Words(std::string name) {
  std::string words;
  bool upper = true;
  for (const char letter : name) {
    if (std::isalnum(static_cast<unsigned char>(letter))) {
      words += upper ? static_cast<char>(std::toupper(static_cast<unsigned char>(letter))) : letter;
      upper = false;
    } else {
      upper = true;
    }
  }
  return words;
}

// A writes X and sets F; B sees F and reads X: every pair of scopes, on one GPU and on two.
void AddScopes(std::vector<Litmus>& all) {
  for (const int gpu : {0, 1}) {
    for (const std::string release : {"sys", "gpu", "cta"}) {
      for (const std::string acquire : {"sys", "gpu", "cta"}) {
        const bool narrow = release == "cta" || acquire == "cta";
        const bool apart = gpu == 1 && (release == "gpu" || acquire == "gpu");
        all.push_back(
            {"message release " + release + " acquire " + acquire +
                 (gpu ? " two gpus" : " one gpu"),
             narrow || apart,
             {{0, kWrite + Set("release." + release)}, {gpu, Poll("acquire." + acquire) + kRead}}});
      }
    }
  }
  for (const std::string release : {"sys", "gpu"}) {
    for (const std::string acquire : {"sys", "gpu"}) {
      all.push_back({"message fence " + release + " fence " + acquire,
                     release != "sys" || acquire != "sys",
                     {{0, kWrite + Fence("acq_rel." + release) + Set("relaxed.sys")},
                      {1, Poll("relaxed.sys") + Fence("acq_rel." + acquire) + kRead}}});
    }
  }
}

void AddFences(std::vector<Litmus>& all) {
  all.push_back({"fence sys, flag written relaxed gpu",
                 true,
                 {{0, kWrite + Fence("acq_rel.sys") + Set("relaxed.gpu")},
                  {1, Poll("relaxed.sys") + Fence("acq_rel.sys") + kRead}}});
  all.push_back({"fence sys, flag read relaxed gpu",
                 true,
                 {{0, kWrite + Fence("acq_rel.sys") + Set("relaxed.sys")},
                  {1, Poll("relaxed.gpu") + Fence("acq_rel.sys") + kRead}}});
  all.push_back({"release, relaxed read, acquire fence",
                 false,
                 {{0, kWrite + Set("release.sys")},
                  {1, Poll("relaxed.sys") + Fence("acquire.sys") + kRead}}});
  all.push_back({"release fence, relaxed write, acquire",
                 false,
                 {{0, kWrite + Fence("release.sys") + Set("relaxed.sys")},
                  {1, Poll("acquire.sys") + kRead}}});
  all.push_back({"release, relaxed read, no fence",
                 true,
                 {{0, kWrite + Set("release.sys")}, {1, Poll("relaxed.sys") + kRead}}});
  all.push_back({"fence after the flag",
                 true,
                 {{0, kWrite + Set("relaxed.sys") + Fence("acq_rel.sys")},
                  {1, Poll("acquire.sys") + kRead}}});
  all.push_back({"fence before the poll",
                 true,
                 {{0, kWrite + Set("release.sys")},
                  {1, Fence("acq_rel.sys") + Poll("relaxed.sys") + kRead}}});
  all.push_back(
      {"volatile flag", true, {{0, kWrite + Set("volatile")}, {1, Poll("volatile") + kRead}}});
  all.push_back({"volatile flag, membar sys",
                 false,
                 {{0, kWrite + "membar.sys;\n" + Set("volatile")},
                  {1, Poll("volatile") + "membar.sys;\n" + kRead}}});
  all.push_back({"volatile flag, membar gl",
                 true,
                 {{0, kWrite + "membar.gl;\n" + Set("volatile")},
                  {1, Poll("volatile") + "membar.gl;\n" + kRead}}});
}

void AddChains(std::vector<Litmus>& all) {
  all.push_back({"chain gpu then sys",
                 false,
                 {{0, kWrite + Set("release.gpu")},
                  {0, Poll("acquire.gpu") + Set("release.sys", "%G")},
                  {1, Poll("acquire.sys", "%G") + kRead}}});
  all.push_back({"chain sys then gpu",
                 false,
                 {{0, kWrite + Set("release.sys")},
                  {1, Poll("acquire.sys") + Set("release.gpu", "%G")},
                  {1, Poll("acquire.gpu", "%G") + kRead}}});
  all.push_back({"chain with a relaxed link",
                 true,
                 {{0, kWrite + Set("release.sys")},
                  {1, Poll("acquire.sys") + Set("relaxed.sys", "%G")},
                  {1, Poll("acquire.sys", "%G") + kRead}}});
  all.push_back({"chain of three gpus",
                 false,
                 {{0, kWrite + Set("release.sys")},
                  {1, Poll("acquire.sys") + Set("release.sys", "%G")},
                  {2, Poll("acquire.sys", "%G") + kRead}}});
}

void AddCounters(std::vector<Litmus>& all) {
  const std::string other = "st.global.u32 [%X+64], 7;\n",
                    both = kRead + "ld.global.u32 %r, [%X+64];\n";
  all.push_back({"counter release sys",
                 false,
                 {{0, kWrite + Count("release.sys")}, {1, Poll("acquire.sys") + kRead}}});
  all.push_back({"counter release gpu",
                 true,
                 {{0, kWrite + Count("release.gpu")}, {1, Poll("acquire.sys") + kRead}}});
  all.push_back({"counter of two, waits for two",
                 false,
                 {{0, kWrite + Count("release.sys")},
                  {1, other + Count("release.sys")},
                  {2, Poll("acquire.sys", "%F", 2) + both}}});
  all.push_back({"counter of two, waits for one",
                 true,
                 {{0, kWrite + Count("release.sys")},
                  {1, other + Count("release.sys")},
                  {2, Poll("acquire.sys", "%F", 1) + both}}});
  all.push_back({"release sequence through a relaxed count",
                 false,
                 {{0, kWrite + Count("release.sys")},
                  {1, Count("relaxed.sys")},
                  {2, Poll("acquire.sys", "%F", 2) + kRead}}});
  all.push_back({"release sequence ended by another's store",
                 true,
                 {{0, kWrite + Set("release.sys")},
                  {1, Poll("relaxed.sys") + Set("relaxed.sys", "%F", 2)},
                  {2, Poll("acquire.sys", "%F", 2) + kRead}}});
}

void AddCredits(std::vector<Litmus>& all) {
  const std::string writer = kWrite + Set("release.sys") + Poll("acquire.sys", "%G") + kWrite;
  all.push_back({"credit release sys",
                 false,
                 {{0, writer}, {1, Poll("acquire.sys") + kRead + Set("release.sys", "%G")}}});
  all.push_back({"credit relaxed",
                 true,
                 {{0, writer}, {1, Poll("acquire.sys") + kRead + Set("relaxed.sys", "%G")}}});
  all.push_back({"credit release gpu",
                 true,
                 {{0, writer}, {1, Poll("acquire.sys") + kRead + Set("release.gpu", "%G")}}});
}

std::vector<Litmus> AllLitmus() {
  std::vector<Litmus> all;
  AddScopes(all);
  AddFences(all);
  AddChains(all);
  AddCounters(all);
  AddCredits(all);
  return all;
}

void PrintTo(const Litmus& litmus, std::ostream* out) { *out << litmus.name; }

class LitmusTest : public testing::TestWithParam<Litmus> {};

TEST_P(LitmusTest, RacesAsTheIsaSays) {
  const auto findings = Findings(GetParam());
  EXPECT_EQ(!findings.empty(), GetParam().races) << GetParam().name;
  for (const auto& [text, count] : findings) {
    EXPECT_NE(text.find("without an order"), std::string::npos) << text;
  }
}

INSTANTIATE_TEST_SUITE_P(Scopes, LitmusTest, testing::ValuesIn(AllLitmus()),
                         [](const auto& info) { return Words(info.param.name); });

}  // namespace
}  // namespace ptx
