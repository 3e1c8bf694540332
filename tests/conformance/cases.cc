#include "tests/conformance/cases.h"

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/schedule/verify.h"

namespace agmm::test {
namespace {

template <typename T>
T OrDie(absl::StatusOr<T> value) {
  if (value.ok()) return *std::move(value);
  std::fprintf(stderr, "%s\n", value.status().ToString().c_str());
  std::abort();
}

constexpr DType kDTypes[] = {DType::kF32, DType::kBF16, DType::kF16};

bool OneNode(const std::string& algorithm) { return algorithm == "peer"; }

// Adds results of another dtype than the inputs: in rows with and without padding, from one
// multiply and from sums along K.
void AddMixed(std::vector<Case>* cases) {
  int turn = 0;
  for (DType dtype : kDTypes) {
    for (DType result : kDTypes) {
      if (result == dtype) continue;
      for (const char* algorithm : {"serial", "ring", "peer"}) {
        for (const char* spec :
             {"A[M_x, K] * B[K, N_x] -> C[M, N_x]", "A[M, K_x] * B[K, N_x] -> C[M, N_x]"}) {
          Case c{algorithm, dtype, 4, OneNode(algorithm) ? 1 : 2};
          c.m = 33;
          c.n = turn % 2 == 0 ? 61 : 256;
          c.k = 40;
          c.threads = 1 + turn / 2 % 2;
          c.spec = absl::StrCat(spec, ":", Name(result));
          c.split = "N=x";
          cases->push_back(c);
          ++turn;
        }
        ++turn;
      }
    }
  }
}

std::vector<Case> MakeCases() {
  std::vector<Case> cases;
  // Every algorithm and dtype on every count of ranks; shapes, nodes, chunks and threads take
  // turns.
  const int64_t kRows[] = {97, 1, 1000};
  int turn = 0;
  for (int ranks = 1; ranks <= 8; ++ranks) {
    for (DType dtype : kDTypes) {
      for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
        Case c{algorithm, dtype, ranks};
        c.m = kRows[turn % 3];
        c.nodes = OneNode(algorithm) ? 1 : std::min(ranks, 1 + turn % 4);
        c.chunks = algorithm == std::string("serial") ? 1 : 1 + (turn / 3) % 3;
        c.threads = 1 + turn % 2;
        c.n = 61;
        c.k = 333;
        cases.push_back(c);
        turn += ranks % 3 == 0 ? 2 : 1;
      }
    }
  }
  // Every shape with every algorithm, over two nodes if possible.
  for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
    for (auto [m, n, k] : {std::tuple<int64_t, int64_t, int64_t>{1, 1, 1},
                           {3, 2, 5},
                           {1000, 61, 333},
                           {128, 64, 64},
                           {257, 7, 1},
                           {64, 3, 2000}}) {
      Case c{algorithm,
             DType::kBF16,
             4,
             OneNode(algorithm) ? 1 : 2,
             algorithm == std::string("serial") ? 1 : 2,
             m,
             n,
             k,
             2};
      cases.push_back(c);
      c.dtype = DType::kF32;
      cases.push_back(c);
    }
  }
  // Meshes of two axes, and products for which nothing moves.
  for (const char* algorithm : {"serial", "ring", "direct", "peer"}) {
    Case c{algorithm, DType::kBF16, 6,  2, algorithm == std::string("serial") ? 1 : 2,
           97,        61,           40, 1};
    c.mesh = "dp=2,tp=3";
    c.spec = "A[M_tp, K] * B[K, N_tp] -> C[M, N_tp]";
    cases.push_back(c);
    c.spec = "A[M_dptp, K] * B[K, N_tp] -> C[M, N_tp]";
    if (OneNode(algorithm)) c.nodes = 1;
    cases.push_back(c);
    c.nodes = 2;
    c.spec = "A[M_dp, K] * B[K, N_tp] -> C[M_dp, N_tp]";
    cases.push_back(c);
  }
  // Blocks of C that begin within a row arrive next to others in rows of the same pitch.
  for (const char* algorithm : {"serial", "ring", "direct"}) {
    Case c{algorithm, DType::kF32, 3, 3, 1, 17, 13, 8, 1};
    c.spec = "A[M, K] * B[K, N_x] -> C[M, N]";
    c.split = "N=x";
    cases.push_back(c);
  }
  AddMixed(&cases);
  // Removes duplicate cases.
  std::set<std::string> names;
  std::erase_if(cases, [&](const Case& c) { return !names.insert(c.name()).second; });
  return cases;
}

}  // namespace

Problem Case::problem() const {
  const Mesh parsed = OrDie(ParseMesh(mesh.empty() ? absl::StrFormat("x=%d", ranks) : mesh));
  return OrDie(ParseProblem(spec, parsed, Shape{m, n, k}, dtype));
}

Topology Case::topology() const {
  return OrDie(UniformTopology(ranks, nodes, (ranks + nodes - 1) / nodes));
}

Schedule Case::schedule(const Topology& topology) const {
  PlanOptions options;
  options.algorithm = algorithm;
  options.chunks = chunks;
  options.split = split.empty() && spec == kDefaultSpec ? "N=x" : split;
  options.workspace_shards = workspace_shards;
  options.partials = partials;
  options.k_chunks = k_chunks;
  options.carried = carried;
  Schedule schedule = OrDie(Plan(problem(), topology, options));
  if (absl::Status status = Verify(problem(), topology, schedule); !status.ok()) {
    std::fprintf(stderr, "%s: %s\n", name().c_str(), status.ToString().c_str());
    std::abort();
  }
  return schedule;
}

std::string Case::name() const {
  std::string tail;
  for (char letter : spec == kDefaultSpec ? split : "_" + spec + split)
    if (std::isalnum(static_cast<unsigned char>(letter)) || letter == '_') tail += letter;
  if (k_chunks > 0) absl::StrAppend(&tail, "_k", k_chunks);
  if (carried) absl::StrAppend(&tail, "_carried");
  return absl::StrFormat("%s_%s_r%d_n%d_c%d_%dx%dx%d_t%d%s", algorithm, Name(dtype), ranks, nodes,
                         chunks, m, n, k, threads,
                         workspace_shards > 0 ? absl::StrCat("_w", workspace_shards, tail) : tail);
}

std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name(); }

const std::vector<Case>& Cases() {
  static const auto* const cases = new std::vector<Case>(MakeCases());
  return *cases;
}

}  // namespace agmm::test
