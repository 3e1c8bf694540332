// agmmctl tensor, as users run it.
#include <sys/stat.h>

#include <fstream>
#include <thread>

#include "tests/e2e/ctl.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using Json = nlohmann::json;

using CtlTensor = Ctl;

TEST_F(CtlTensor, TensorsArePutListedShownReadAndDeleted) {
  const TestMatrix matrix = Normal(37, 53, 3);
  const Json put = Put("W", matrix, {"--sharding", "[K, N_x]", "--ranks", "1-2"});
  EXPECT_EQ(put["schema"], "agmm.tensor.v1");
  EXPECT_EQ(put["mesh"], "x=2");
  EXPECT_EQ(put["ranks"], Json({1, 2}));
  const Json list = OkJson({"tensor", "list"});
  ASSERT_EQ(list["tensors"].size(), 1);
  EXPECT_EQ(list["tensors"][0]["tensor_id"], put["tensor_id"]);
  EXPECT_GT(list["memory"]["tensor_bytes"], 0);
  EXPECT_THAT(Ok({"tensor", "list"}), HasSubstr("[K, N_x]  x=2   1-2"));
  EXPECT_THAT(Ok({"tensor", "show", "W"}), HasSubstr("[K, N_x] over mesh x=2 on ranks 1-2\n"));
  EXPECT_TRUE(SameBits(Get("W"), matrix));
  EXPECT_TRUE(SameBits(Get(absl::StrCat("#", put["tensor_id"].get<int>())), matrix));
  const std::string path = world_.Path("again.npy");
  EXPECT_THAT(Ok({"tensor", "get", "W", path}), HasSubstr("\n" + path + ": 37x53 f32, 7.66 KiB\n"));
  EXPECT_EQ(OkJson({"tensor", "get", "W", path})["file"]["path"], path);
  EXPECT_EQ(Ok({"tensor", "rm", "W"}), "");
  EXPECT_EQ(Ok({"tensor", "list"}).substr(0, 11), "no tensors\n");
  ExpectError({"tensor", "get", "W", world_.Path("none.npy")}, 4, "\"W\"");
  EXPECT_EQ(ReadFile(world_.Path("none.npy")), "");
}

TEST_F(CtlTensor, RemovingSeveralTensorsNamesTheMissingOnes) {
  for (const char* name : {"A", "B", "C"}) Ok({"tensor", "fill", name, "--shape", "2x2"});
  ExpectError({"tensor", "rm", "A", "#x"}, 2, "\"#x\"");
  ExpectError({"tensor", "rm", "A", "V", "B", "U"}, 4,
              "2 of 4 tensors do not exist: V, U; the others");
  EXPECT_EQ(OkJson({"tensor", "list"})["tensors"].size(), 1);
  EXPECT_EQ(Ok({"tensor", "rm", "C"}), "");
}

TEST_F(CtlTensor, ErrorsAreJsonWithTheJsonFlag) {
  for (const auto& [arguments, code, exit] :
       {std::tuple{std::vector<std::string>{"tensor", "show", "V", "--json"}, "NOT_FOUND", 4},
        {std::vector<std::string>{"tensor", "lst", "--json"}, "INVALID_ARGUMENT", 2},
        {std::vector<std::string>{"--json", "tensor", "fill", "V", "--shape", "65536x65536"},
         "RESOURCE_EXHAUSTED", 8}}) {
    const Ran ran = Run(arguments);
    EXPECT_EQ(ran.exit_code, exit);
    EXPECT_EQ(ran.out, "");
    const Json json = Json::parse(ran.err, nullptr, false);
    ASSERT_FALSE(json.is_discarded()) << ran.err;
    EXPECT_EQ(json["schema"], "agmm.error.v1");
    EXPECT_EQ(json["error"]["code"], code);
    if (exit == 8) {
      EXPECT_EQ(json["error"]["reason"], "HEAP_FULL");
    }
  }
}

TEST_F(CtlTensor, WithoutFlagsATensorIsWholeOnEveryRank) {
  const Json put = Put("W", SmallIntegers(5, 7, 1), {});
  EXPECT_EQ(put["sharding"], "[M, N]");
  EXPECT_EQ(put["ranks"], Json({0, 1, 2, 3}));
}

TEST_F(CtlTensor, Bf16TravelsRawAndExactly) {
  const TestMatrix matrix = Rounded(Normal(16, 24, 4), DType::kBF16);
  Put("W", matrix, {"--dtype", "bf16"});
  EXPECT_TRUE(SameBits(Get("W"), matrix));
  const std::string raw = world_.Path("W.raw");
  Ok({"tensor", "get", "W", raw, "--raw"});
  EXPECT_EQ(ReadFile(raw).size(), 16 * 24 * 2);
  Ok({"tensor", "put", "V", raw, "--shape", "16x24", "--dtype", "bf16", "--sharding", "[M_x, N]"});
  EXPECT_TRUE(SameBits(Get("V"), matrix));
}

TEST_F(CtlTensor, ASecondPutOfTheSameSpecRewrites) {
  const Json first = Put("W", SmallIntegers(8, 8, 1), {"--sharding", "[K, N_x]"});
  const TestMatrix again = SmallIntegers(8, 8, 2);
  const Json second = Put("W", again, {"--sharding", "[K, N_x]"});
  EXPECT_EQ(second["tensor_id"], first["tensor_id"]);
  EXPECT_GT(second["version"], first["version"]);
  EXPECT_TRUE(SameBits(Get("W"), again));
  const Json other = Put("W", again, {"--sharding", "[K_x, N]"});
  EXPECT_NE(other["tensor_id"], first["tensor_id"]);
  EXPECT_EQ(OkJson({"tensor", "list"})["tensors"].size(), 1);
}

TEST_F(CtlTensor, AFillIsTheSameInEverySharding) {
  for (const char* kind : {"uniform", "integers"}) {
    const std::vector<std::string> same = {"--shape", "50x30", "--seed", "7", "--kind", kind};
    auto fill = [&](const std::string& name, std::vector<std::string> flags) {
      flags.insert(flags.begin(), {"tensor", "fill", name});
      flags.insert(flags.end(), same.begin(), same.end());
      Ok(flags);
      return Get(name);
    };
    const TestMatrix rows = fill("R", {"--sharding", "[M_x, K]"});
    EXPECT_TRUE(SameBits(fill("S", {"--sharding", "[K, N_x]", "--ranks", "1-3"}), rows));
    EXPECT_TRUE(SameBits(fill("T", {"--ranks", "3"}), rows));
    Ok({"tensor", "fill", "U", "--shape", "50x30", "--seed", "8", "--kind", kind});
    EXPECT_FALSE(SameBits(Get("U"), rows));
  }
  Ok({"tensor", "fill", "R", "--shape", "2x2", "--kind", "constant", "--value", "-1.5"});
  EXPECT_EQ(Get("R").values, std::vector<float>(4, -1.5f));
}

TEST_F(CtlTensor, AFillWithoutAShapeRewritesTheTensor) {
  const Json first = OkJson(
      {"tensor", "fill", "R", "--shape", "6x4", "--dtype", "bf16", "--sharding", "[M_x, K]"});
  const Json second = OkJson({"tensor", "fill", "R", "--kind", "constant", "--value", "2"});
  EXPECT_EQ(second["tensor_id"], first["tensor_id"]);
  EXPECT_GT(second["version"], first["version"]);
  EXPECT_EQ(Get("R").values, std::vector<float>(24, 2.0f));
  ExpectError({"tensor", "fill", "R", "--dtype", "f32"}, 2, "leave it out, or give a --shape");
  ExpectError({"tensor", "fill", "R", "--sharding", "[M, K_x]"}, 2, "leave it out");
}

TEST_F(CtlTensor, AFileInFortranOrderIsTransposedWhileItIsSent) {
  const TestMatrix w = SmallIntegers(600, 700, 5);  // larger than a piece of an upload
  WriteNpy(world_.Path("W.npy"), w);
  // The same bytes as numpy.save(W.T): the header says that rows and columns change places.
  std::string bytes = ReadFile(world_.Path("W.npy"));
  const auto replace = [&](const std::string& from, const std::string& to) {
    ASSERT_EQ(from.size(), to.size());
    ASSERT_NE(bytes.find(from), std::string::npos);
    bytes.replace(bytes.find(from), from.size(), to);
  };
  replace("'fortran_order': False, 'shape': (600, 700), }",
          "'fortran_order': True, 'shape': (700, 600), } ");
  std::ofstream(world_.Path("T.npy"), std::ios::binary) << bytes;
  for (const char* dtype : {"f32", "bf16"}) {
    Ok({"tensor", "put", "T", world_.Path("T.npy"), "--dtype", dtype});
    const TestMatrix t = Get("T");
    ASSERT_EQ(t.rows, 700);
    for (int64_t row = 0; row < t.rows; ++row)
      for (int64_t col = 0; col < t.cols; ++col) ASSERT_EQ(t.at(row, col), w.at(col, row));
  }
}

TEST_F(CtlTensor, PipesAreFilesToo) {
  const TestMatrix w = SmallIntegers(5, 7, 1);
  WriteNpy(world_.Path("W.npy"), w);
  ASSERT_EQ(mkfifo(world_.Path("pipe").c_str(), 0600), 0);
  std::thread writer([&] {
    std::ofstream(world_.Path("pipe"), std::ios::binary) << ReadFile(world_.Path("W.npy"));
  });
  Ok({"tensor", "put", "W", world_.Path("pipe")});
  writer.join();
  for (const std::string out : {"-", "/dev/fd/1"}) {
    const Ran got = Run({"tensor", "get", "W", out});
    EXPECT_EQ(got.exit_code, 0) << got.err;
    EXPECT_EQ(got.out, ReadFile(world_.Path("W.npy")));
    EXPECT_THAT(got.err, HasSubstr(out + ": 5x7 f32"));
  }
  ExpectError({"matmul", "-", "-", "--out", world_.Path("C.npy")}, 2,
              "standard input has one matrix");
  for (const std::string& out : {std::string("-"), std::string("/dev/null"), world_.Path("pipe")}) {
    ExpectError({"matmul", world_.Path("W.npy"), world_.Path("W.npy"), "--out", out, "--compare"},
                2, "--compare reads the product again, and " + out + " is not a regular file");
  }
}

TEST_F(CtlTensor, ElementsThatAreNotFiniteAreCounted) {
  TestMatrix a = SmallIntegers(4, 8, 1), b = SmallIntegers(8, 4, 2);
  a.values.assign(a.values.size(), 300);
  b.values.assign(b.values.size(), 1);
  for (int64_t k = 0; k < 8; ++k) b.values[k * 4] = 300;  // C[i][0] = 720,000, the others 2,400
  WriteNpy(world_.Path("A.npy"), a, DType::kF16);
  WriteNpy(world_.Path("B.npy"), b, DType::kF16);
  const std::vector<std::string> matmul = {"matmul", world_.Path("A.npy"), world_.Path("B.npy"),
                                           "--out",  world_.Path("C.npy"), "--compare"};
  const std::string text = Ok(matmul);
  EXPECT_THAT(text, HasSubstr("\n           4 of 16 elements are not finite (inf or NaN)\n"));
  EXPECT_THAT(text, HasSubstr("without 4 elements of 16 that are not finite\n"));
  EXPECT_THAT(text, HasSubstr("sums beyond the largest f16, 65504\n"));
  const Json json = OkJson(matmul);
  EXPECT_EQ(json["non_finite"], 4);
  EXPECT_EQ(json["relative_error"], 0);
  Ok({"tensor", "put", "Y", world_.Path("C.npy")});
  EXPECT_THAT(Ok({"tensor", "get", "Y", world_.Path("Y.npy")}),
              HasSubstr("; 4 of 16 elements are not finite (inf or NaN)\n"));
  EXPECT_EQ(OkJson({"tensor", "get", "Y", world_.Path("Y.npy")})["file"]["non_finite"], 4);
}

TEST_F(CtlTensor, ExitCodesTellTheCasesApart) {
  WriteNpy(world_.Path("X.npy"), SmallIntegers(8, 8, 1));
  ExpectError({"tensor", "lst"}, 2, "did you mean \"list\"?");
  ExpectError({"tensor", "show", "#x"}, 2, "\"#x\"");
  ExpectError({"tensor", "put", "V", world_.Path("X.npy"), "--ranks", "2-1"}, 2, "2-1");
  ExpectError({"tensor", "put", "V", world_.Path("X.npy"), "--shape", "8x8"}, 2, "--dtype");
  ExpectError({"tensor", "put", "#7", world_.Path("X.npy"), "--ranks", "0"}, 2, "new tensors");
  ExpectError({"tensor", "fill", "#7", "--shape", "8x8"}, 2, "new tensors");
  ExpectError({"tensor", "fill", "#7", "--dtype", "f32"}, 2, "new tensors");
  ExpectError({"tensor", "fill", "V"}, 2, "V does not exist, and a new tensor needs a shape");
  ExpectError({"tensor", "fill", "V", "--shape", "2x2", "--value", "1"}, 2, "--kind");
  ExpectError({"tensor", "show", "V"}, 4, "\"V\"");
  ExpectError({"tensor", "put", "#77", world_.Path("X.npy")}, 4, "77");
  ExpectError({"tensor", "fill", "V", "--shape", "65536x65536", "--sharding", "[M_x, K]"}, 8,
              "free");
}

}  // namespace
}  // namespace agmm
