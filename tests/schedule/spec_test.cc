#include "kernels/schedule/spec.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/schedule/index.h"

namespace agmm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

Mesh MeshOf(absl::string_view text) { return ParseMesh(text).value(); }

absl::StatusOr<Problem> ProblemOf(absl::string_view spec, absl::string_view mesh = "x=2,y=3") {
  return ParseProblem(spec, MeshOf(mesh), {6, 12, 24}, DType::kBF16);
}

// Expects three lines: `what` at `column`, the text, and the caret under the column.
void ExpectError(const absl::Status& status, absl::string_view text, size_t column,
                 absl::string_view what) {
  ASSERT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  const std::vector<std::string> lines = absl::StrSplit(status.message(), '\n');
  ASSERT_EQ(lines.size(), 3) << status.message();
  EXPECT_THAT(lines[0], HasSubstr(absl::StrCat("column ", column, ": "))) << status.message();
  EXPECT_THAT(lines[0], HasSubstr(std::string(what)));
  EXPECT_EQ(lines[1], text);
  EXPECT_EQ(lines[2], std::string(column - 1, ' ') + "^");
}

TEST(Spec, DefaultIsTheGatherAlongM) {
  const auto problem = ProblemOf(kDefaultSpec);
  ASSERT_TRUE(problem.ok()) << problem.status();
  const Tensor a{"A", "M", "K", 6, 24, DType::kBF16, {{0}, {}}};
  const Tensor b{"B", "K", "N", 24, 12, DType::kBF16, {{}, {0}}};
  const Tensor c{"C", "M", "N", 6, 12, DType::kBF16, {{}, {0}}};
  EXPECT_THAT(problem->tensors, ElementsAre(a, b, c));
  EXPECT_EQ(problem->mesh, MeshOf("x=2,y=3"));
}

TEST(Spec, AnyNamesAreAccepted) {
  const auto problem = ProblemOf("act[I_x, L]*W2[L, J_y]->out[I, J_y]");
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->tensors[kA].name, "act");
  EXPECT_EQ(problem->tensors[kB].col_dim, "J");
  EXPECT_EQ(ShapeOf(*problem).m, 6);
  EXPECT_EQ(ShapeOf(*problem).n, 12);
  EXPECT_EQ(ShapeOf(*problem).k, 24);
}

TEST(Spec, SpacesAreIgnored) {
  EXPECT_EQ(*ProblemOf("  A [ M _ x ,K ]*B[ K,N_x]  ->C[M,N _x ] "), *ProblemOf(kDefaultSpec));
}

TEST(Spec, PrintedProblemsParseBack) {
  for (const char* spec : {kDefaultSpec, "A[M_xy, K] * B[K, N] -> C[M_yx, N]",
                           "A[M, K_y] * B[K_y, N_x] -> C[M, N_x]"}) {
    const auto problem = ProblemOf(spec);
    ASSERT_TRUE(problem.ok()) << problem.status();
    EXPECT_EQ(ToString(*problem), absl::StrCat(spec, "  M=6 N=12 K=24 bf16  mesh x=2,y=3"));
  }
}

TEST(Spec, AnOperandHasTheDtypeAfterItsColon) {
  const auto problem = ProblemOf("A[M_x, K] * B[K, N] -> C[M, N]{U_y} : f32");
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->tensors[kA].dtype, DType::kBF16);
  EXPECT_EQ(problem->tensors[kB].dtype, DType::kBF16);
  EXPECT_EQ(problem->tensors[kC].dtype, DType::kF32);
  EXPECT_EQ(ToString(*problem),
            "A[M_x, K] * B[K, N] -> C[M, N]{U_y}:f32  M=6 N=12 K=24 bf16 -> f32  mesh x=2,y=3");
  for (const char* spec :
       {"A[M_x, K] * B[K, N] -> C[M, N]:f32", "A[M, K]:f16 * B[K_y, N]:f16 -> C[M_x, N]",
        "A[M, K]:f16 * B[K_y, N]:f16 -> C[M_x, N]:f16"}) {
    const auto first = ProblemOf(spec);
    ASSERT_TRUE(first.ok()) << first.status();
    const auto again =
        ParseProblem(SpecText(*first), first->mesh, ShapeOf(*first), first->tensors[kA].dtype);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_EQ(*again, *first);
  }
}

TEST(Spec, InputsOfTwoDtypesAreRefused) {
  const absl::Status mixed = ProblemOf("A[M, K]:f32 * B[K, N] -> C[M, N]").status();
  EXPECT_EQ(mixed.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(mixed.message(),
            "A is f32 and B is bf16; a product multiplies matrices of one dtype, so give both the "
            "same (only C may have another)");
}

std::vector<int> AxesOf(absl::string_view subscript, absl::string_view mesh) {
  const auto tensor =
      ParseTensor(absl::StrCat("[M_", subscript, ", K]"), MeshOf(mesh), 8, 8, DType::kF32);
  EXPECT_TRUE(tensor.ok()) << tensor.status();
  return tensor.ok() ? tensor->sharding.rows : std::vector<int>{};
}

TEST(Subscript, IsAConcatenationOfAxesMajorFirst) {
  EXPECT_THAT(AxesOf("xy", "x=2,y=2"), ElementsAre(0, 1));
  EXPECT_THAT(AxesOf("yx", "x=2,y=2"), ElementsAre(1, 0));
  EXPECT_THAT(AxesOf("dp", "dp=2,tp=2"), ElementsAre(0));
  EXPECT_THAT(AxesOf("dptp", "dp=2,tp=2"), ElementsAre(0, 1));
}

TEST(Subscript, PrefersLongNamesAndBacktracks) {
  EXPECT_THAT(AxesOf("xy", "x=2,y=2,xy=2"), ElementsAre(2));
  EXPECT_THAT(AxesOf("abc", "a=2,ab=2,bc=2"), ElementsAre(0, 2));
  EXPECT_THAT(AxesOf("aba", "a=2,ab=2,ba=2"), ElementsAre(1, 0));
}

TEST(Subscript, ManyAmbiguousCutsEndAtOnce) {
  const std::string spec = absl::StrCat("[M_", std::string(1000, 'a'), "b, K]");
  ExpectError(ParseTensor(spec, MeshOf("a=1,aa=1,aaa=1"), 8, 8, DType::kF32).status(), spec, 1004,
              "\"b\" is not an axis of mesh a=1,aa=1,aaa=1");
}

TEST(Spec, AnAxisThatIsUsedTwiceComesWithWhatToWrite) {
  const auto sharding = [](const char* text) {
    const absl::Status status = ParseTensor(text, MeshOf("x=2,y=3"), 8, 8, DType::kF32).status();
    return std::string(status.message());
  };
  EXPECT_THAT(sharding("[M_x, K_x]"), HasSubstr("once: write [M, K_x] or [M_x, K]\n[M_x, K_x]\n"));
  EXPECT_THAT(sharding("[M_xy, K_x]"), HasSubstr("an operand uses an axis once\n"));
  EXPECT_THAT(sharding("[M_x, K_xy]"), HasSubstr("an operand uses an axis once\n"));
  EXPECT_THAT(sharding("[M_z, K]  "),
              HasSubstr("set the option mesh to a mesh that has it\n[M_z, K]\n"))
      << "only what was written is shown";
}

struct BadSpec {
  const char* spec;
  size_t column;
  const char* what;
};

TEST(Spec, ErrorsPointAtTheColumn) {
  const BadSpec cases[] = {
      {"", 1, "expected an operand such as A[M, K], found the end"},
      {"A", 2, "expected \"[\", found the end"},
      {"[M, K]", 1, "expected an operand"},
      {"A[M, K", 7, "expected \"]\""},
      {"A[M K] * B[K, N] -> C[M, N]", 5, "expected \",\", found \"K\""},
      {"A[M, 2K] * B[K, N] -> C[M, N]", 6, "expected a dimension"},
      {"A[M, K] B[K, N] -> C[M, N]", 9, "expected \"*\" or \"->\", found \"B\""},
      {"A[M, K] * B[K, N] C[M, N]", 19, "expected \"->\""},
      {"A[M, K] * B[K, N] - > C[M, N]", 19, "expected \"->\""},
      {"A[M_, K] * B[K, N] -> C[M, N]", 5, "expected the name of a mesh axis"},
      {"A[M_z, K] * B[K, N] -> C[M, N]", 5,
       "\"z\" is not an axis of mesh x=2,y=3; use one of its axes, or set the option mesh to a "
       "mesh that has it"},
      {"A[M_xz, K] * B[K, N] -> C[M, N]", 6, "\"z\" is not an axis of mesh x=2,y=3"},
      {"A[M_x_y, K] * B[K, N] -> C[M, N]", 6, "expected \",\", found \"_\""},
      {"A[M_xx, K] * B[K, N] -> C[M, N]", 6, "axis x is used twice; an operand uses an axis once"},
      {"A[M_x, K_yx] * B[K, N] -> C[M, N]", 11, "used twice; an operand uses an axis once"},
      {"A[M_x, K] * B[K, N_x] -> C[M_x, N_x]", 35,
       "axis x is used twice; an operand uses an axis once: write C[M, N_x] or C[M_x, N]"},
      {"A[M, K] * B[L, N] -> C[M, N]", 13,
       "the inner dimensions differ: A has columns K and B has "
       "rows L"},
      {"A[M, K] * B[K, N] -> C[N, M]", 24, "C has rows N; A * B has rows M"},
      {"A[M, K] * B[K, N] -> C[M, K]", 27, "C has columns K; A * B has columns N"},
      {"A[M, K] * A[K, N] -> C[M, N]", 11, "two operands are called A"},
      {"A[M, K] * B[K, N] -> B[M, N]", 22, "two operands are called B"},
      {"A[M, K] * workspace[K, N] -> C[M, N]", 11, "the name workspace is reserved"},
      {"A[M, M] * B[M, N] -> C[M, N]", 6, "dimension M is named twice"},
      {"A[M, K] * B[K, M] -> C[M, M]", 16, "dimension M is named twice"},
      {"A[M, K] * B[K, N] -> C[M, N] !", 30, "\"!\" is left over"},
      {"A[M, K] * B[K, N] -> C[M_x, N]{U_x}", 34, "axis x is used twice"},
      {"A[M, K] * B[K, N] -> C[M, N]{U_xx}", 33, "axis x is used twice"},
      {"A[M, K] * B[K, N] -> C[M, N]{V_x}", 30, "expected \"U_\", found \"V\""},
      {"A[M, K] * B[K, N] -> C[M, N]{U_}", 32, "expected the name of a mesh axis"},
      {"A[M, K] * B[K, N] -> C[M, N]{U_z}", 32, "\"z\" is not an axis of mesh x=2,y=3"},
      {"A[M, K] * B[K, N] -> C[M, N]{U_x", 33, "expected \"}\", found the end"},
      {"A[M, K] * B[K, N] -> C[M, N]:", 30, "expected a dtype such as f32, found the end"},
      {"A[M, K]: * B[K, N] -> C[M, N]", 10, "expected a dtype such as f32, found \"*\""},
      {"A[M, K] * B[K, N] -> C[M, N]:64", 30, "expected a dtype such as f32, found \"6\""},
      {"A[M, K] * B[K, N] -> C[M, N]:f64", 30, "dtype \"f64\" is not known; use f32, bf16 or f16"},
      {"A[M, K] * B[K, N] -> C[M, N]:F32", 30, "dtype \"F32\" is not known"},
      {"A[M, K] * B[K, N] -> C[M, N]:f32{U_x}", 33, "\"{U_x}\" is left over"},
      {"A[M, K] * B[K, N] -> C[M, N]:f32:f32", 33, "\":f32\" is left over"},
      {"A[M, K] * B:f32[K, N] -> C[M, N]", 12, "expected \"[\", found \":\""},
  };
  for (const BadSpec& bad : cases) {
    SCOPED_TRACE(bad.spec);
    ExpectError(ProblemOf(bad.spec).status(), bad.spec, bad.column, bad.what);
  }
}

TEST(Spec, UnprintableBytesAreRefusedAndShownAsQuestionMarks) {
  ExpectError(ProblemOf("A[M,\tK]").status(), "A[M,?K]", 5, "byte 0x09");
  ExpectError(ProblemOf("A\xc3\xa9[M, K]").status(), "A??[M, K]", 2, "byte 0xc3");
  ExpectError(ProblemOf(absl::string_view("A\0[M, K]", 8)).status(), "A?[M, K]", 2, "byte 0x00");
  ExpectError(ProblemOf("A[M, K]\n").status(), "A[M, K]?", 8, "byte 0x0a");
}

TEST(Spec, OverlongTextIsRefusedBeforeItIsRead) {
  const std::string longest =
      absl::StrCat(kDefaultSpec, std::string(1024 - strlen(kDefaultSpec), ' '));
  EXPECT_TRUE(ProblemOf(longest).ok());
  ExpectError(ProblemOf(longest + " ").status(), longest, 1025,
              "the text has 1025 characters; at most "
              "1024 are read");
}

TEST(Spec, ShapesOutOfBoundsAreRefused) {
  for (const Shape& shape : {Shape{0, 1, 1}, Shape{1, -1, 1}, Shape{1, 1, kMaxDimension + 1}}) {
    EXPECT_EQ(ParseProblem(kDefaultSpec, MeshOf("x=2"), shape, DType::kF32).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
}

TEST(Spec, MutilatedSpecsNeverCrash) {
  const char* seed_text = std::getenv("AGMM_SEED");
  const unsigned seed = seed_text != nullptr ? std::stoul(seed_text) : std::random_device{}();
  SCOPED_TRACE(absl::StrCat("AGMM_SEED=", seed));
  std::mt19937 random(seed);
  constexpr char kLetters[] = "ABCMNKxy_[],*-> {}:=1\t";
  for (int round = 0; round < 5000; ++round) {
    std::string text = kDefaultSpec;
    for (int edits = random() % 4 + 1; edits > 0; --edits) {
      const size_t at = random() % text.size();
      const char letter = kLetters[random() % (sizeof(kLetters) - 1)];
      if (random() % 2 == 0)
        text[at] = letter;
      else
        text.insert(at, 1, letter);
    }
    const auto problem = ProblemOf(text);
    if (problem.ok()) {
      EXPECT_TRUE(Validate(*problem).ok()) << text;
    } else {
      // Without a product, it is a move.
      EXPECT_THAT(problem.status().code(), testing::AnyOf(absl::StatusCode::kInvalidArgument,
                                                          absl::StatusCode::kUnimplemented))
          << text;
    }
    EXPECT_FALSE(ParseMesh(text).ok()) << text;
    EXPECT_FALSE(ParseShape(text).ok()) << text;
  }
}

TEST(MeshText, NamesAxesOverTheFirstRanks) {
  const Mesh mesh = MeshOf("dp=2, tp=3");
  EXPECT_THAT(mesh.axes, ElementsAre(Axis{"dp", 2}, Axis{"tp", 3}));
  EXPECT_THAT(mesh.ranks, ElementsAre(0, 1, 2, 3, 4, 5));
  EXPECT_EQ(mesh.ToString(), "dp=2,tp=3");
}

TEST(MeshText, TakesExplicitRanks) {
  EXPECT_THAT(ParseMesh("x=2", {5, 3})->ranks, ElementsAre(5, 3));
  for (const std::vector<int>& bad : {std::vector<int>{1}, {1, 2, 3}, {4, 4}, {0, -1}}) {
    EXPECT_EQ(ParseMesh("x=2", bad).status().code(), absl::StatusCode::kInvalidArgument);
  }
  EXPECT_THAT(std::string(ParseMesh("x=2", {4, 4}).status().message()),
              HasSubstr("name rank 4 twice"));
}

TEST(MeshText, ErrorsPointAtTheColumn) {
  const BadSpec cases[] = {
      {"", 1, "expected an axis such as x=8"},
      {"x", 2, "expected \"=\""},
      {"x=", 3, "expected the size of the axis"},
      {"x=0", 3, "the size of the axis is 0; it must be a whole number from 1 to 4096"},
      {"x=-1", 3, "the size of the axis is -1; it must be a whole number from 1 to 4096"},
      {"x=4097", 3, "is 4097"},
      {"x=99999999999999999999999", 3, "is 99999999999999999999999"},
      {"x=2,x=3", 5, "axis x is named twice"},
      {"x=64,y=128", 6, "the mesh has 8192 ranks; at most 4096"},
      {"x1=2", 1, "axis x1: axis names are letters only"},
      {"x=2,", 5, "expected an axis"},
      {"x=2 y=2", 5, "\"y=2\" is left over"},
  };
  for (const BadSpec& bad : cases) {
    SCOPED_TRACE(bad.spec);
    ExpectError(ParseMesh(bad.spec).status(), bad.spec, bad.column, bad.what);
  }
}

TEST(ShapeText, TakesEachDimensionOnceInAnyOrder) {
  const auto shape = ParseShape("K=3, M=1,N=2");
  ASSERT_TRUE(shape.ok()) << shape.status();
  EXPECT_EQ(shape->m, 1);
  EXPECT_EQ(shape->n, 2);
  EXPECT_EQ(shape->k, 3);
  const BadSpec cases[] = {
      {"M=1,N=2", 8, "expected \", K=\""},
      {"M=1,N=2,M=3", 9, "M is given twice"},
      {"M=1,N=2,K=0", 11, "K is 0"},
      {"M=1,N=2,K=268435457", 11, "K is 268435457; it must be a whole number from 1 to 268435456"},
      {"M=1,N=2,K=-4", 11, "K is -4; it must be a whole number from 1 to 268435456"},
      {"M=1e18,N=2,K=4", 3, "M is 1e18; it must be"},
      {"M=512.5,N=2,K=4", 3, "M is 512.5; it must be"},
      {"M=1,N=2,K=99999999999999999999", 11, "K is 99999999999999999999; it must be"},
      {"M=1,N=2,L=4", 9, "L is not a dimension of the spec; give M, N and K"},
      {"M=1,N=2,K=4x", 11, "K is 4x; it must be"},
      {"M=1,N=2,K=4 x", 13, "\"x\" is left over"},
  };
  for (const BadSpec& bad : cases) {
    SCOPED_TRACE(bad.spec);
    ExpectError(ParseShape(bad.spec).status(), bad.spec, bad.column, bad.what);
  }
}

TEST(ShapeText, NamesTheDimensionsOfTheSpec) {
  const auto product = ParseShape("f=3,b=1,d=2", "x[b_dp, d] * w[d, f_tp] -> y[b, f]");
  ASSERT_TRUE(product.ok()) << product.status();
  EXPECT_EQ(product->m, 1);
  EXPECT_EQ(product->n, 3);
  EXPECT_EQ(product->k, 2);
  const auto collective = ParseShape("K=37, M=61", "A[M_x, K]{U_y} -> B[M, K]:f32");
  ASSERT_TRUE(collective.ok()) << collective.status();
  EXPECT_EQ(collective->m, 61);
  EXPECT_EQ(collective->n, 37);
  EXPECT_EQ(collective->k, 0);
  ExpectError(ParseShape("M=1,N=2,K=3", "x[b, d] * w[d, f] -> y[b, f]").status(), "M=1,N=2,K=3", 1,
              "M is not a dimension of the spec; give b, f and d");
  ExpectError(ParseShape("M=1", "A[M_x, K -> B[M, K]").status(), "A[M_x, K -> B[M, K]", 10,
              "expected \"]\"");
}

TEST(TensorText, IsOneOperandWithoutAName) {
  const auto tensor = ParseTensor("[K, N_yx]", MeshOf("x=2,y=3"), 5, 7, DType::kF16);
  ASSERT_TRUE(tensor.ok()) << tensor.status();
  EXPECT_EQ(*tensor, (Tensor{"", "K", "N", 5, 7, DType::kF16, {{}, {1, 0}}}));
  ExpectError(ParseTensor("B[K, N]", MeshOf("x=2"), 5, 7, DType::kF16).status(), "B[K, N]", 1,
              "expected \"[\"");
  ExpectError(ParseTensor("[K, N]:f16", MeshOf("x=2"), 5, 7, DType::kF16).status(), "[K, N]:f16", 7,
              "\":f16\" is left over");
  EXPECT_THAT(
      std::string(ParseTensor("[K, N]", MeshOf("x=2"), 5, 0, DType::kF16).status().message()),
      HasSubstr("N of the tensor is 0"));
}

TEST(Spec, OnlyOneProductOfThreeOperandsIsPlanned) {
  const Problem problem = *ProblemOf("A[M_x, K] * B[K, N] -> C[M, N]");
  EXPECT_TRUE(Validate(problem).ok());
  EXPECT_THAT(problem.Inputs(), testing::ElementsAre(kA, kB));
  EXPECT_TRUE(problem.Writes(kC));
  const auto code = [&](std::vector<Operation> operations) {
    Problem other = problem;
    other.operations = std::move(operations);
    return Validate(other).code();
  };
  const Operation product = problem.operations[0];
  EXPECT_EQ(code({}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({product, product}), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(code({Collective{kC, kA}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({product, Collective{kC, kC}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Product{kA, kB, 3}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Product{-1, kB, kC}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Product{kA, kA, kC}}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(code({Product{kB, kA, kC}}), absl::StatusCode::kInvalidArgument);
}

TEST(Spec, AnOperandThatNoOperationUsesIsNamedBehindThem) {
  Problem problem = *ProblemOf("A[M_x, K] * B[K, N] -> C[M, N]");
  const std::string sizes = SizesText(problem);
  problem.tensors.push_back({"D", "P", "Q", 6, 5, DType::kBF16, {{0}, {}}});
  EXPECT_EQ(Validate(problem), absl::OkStatus());
  EXPECT_THAT(problem.Inputs(), testing::ElementsAre(kA, kB, 3));
  EXPECT_EQ(SpecText(problem), "A[M_x, K] * B[K, N] -> C[M, N], D[P_x, Q]");
  EXPECT_EQ(SizesText(problem).replace(SizesText(problem).find(", D 6x5 bf16"), 12, ""), sizes);
}

TEST(Spec, ACollectiveGivesAMatrixAnotherSharding) {
  const auto problem = ProblemOf("A[M_x, K]{U_y} -> B[M, K_yx]");
  ASSERT_TRUE(problem.ok()) << problem.status();
  EXPECT_EQ(problem->operations[0], Operation(Collective{0, 1}));
  EXPECT_EQ(SpecText(*problem), "A[M_x, K]{U_y} -> B[M, K_yx]");
  EXPECT_EQ(SizesText(*problem), "M=6 K=12 bf16  mesh x=2,y=3");
  EXPECT_THAT(problem->Inputs(), testing::ElementsAre(0));
  EXPECT_TRUE(problem->Writes(1));
  const BadSpec cases[] = {
      {"A[M_x, K] -> A[M, K]", 14, "both operands are called A"},
      {"A[M_x, M] -> B[M, M]", 8, "dimension M is named twice"},
      {"A[M_x, K] -> B[K, M]", 16, "B has rows K, but A has M; without a product, both must match"},
      {"A[M_x, K] -> B[M, N]", 19, "B has columns N"},
  };
  for (const BadSpec& bad : cases) {
    SCOPED_TRACE(bad.spec);
    ExpectError(ProblemOf(bad.spec).status(), bad.spec, bad.column, bad.what);
  }
  EXPECT_THAT(std::string(ProblemOf("A[M, K] -> B[M, K]{U_x}").status().message()),
              HasSubstr("only a product opens a sum"));
  EXPECT_THAT(std::string(ProblemOf("A[M_x, K]:bf16 -> B[M, K]:f32").status().message()),
              HasSubstr("only a sum or a product converts elements"));
  EXPECT_TRUE(ProblemOf("A[M, K]{U_x}:f32 -> B[M, K]:bf16").ok());
}

}  // namespace
}  // namespace agmm
