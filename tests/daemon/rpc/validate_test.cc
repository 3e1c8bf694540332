#include "daemon/rpc/validate.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "kernels/schedule/spec.h"
#include "proto/convert/plan_inputs.h"
#include "tests/fuzz/valid_requests.h"

namespace agmm {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Checks that a valid request, changed by `spoil`, is refused with `what` in one line.
template <typename Request, typename Spoil>
void Refused(Spoil spoil, absl::string_view what) {
  Request request = Valid<Request>();
  ASSERT_TRUE(Validate(request).ok()) << Validate(request) << request.DebugString();
  spoil(request);
  const absl::Status status = Validate(request);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << what;
  EXPECT_THAT(std::string(status.message()), HasSubstr(std::string(what)));
  EXPECT_THAT(std::string(status.message()), Not(HasSubstr("\n")));
}
template <typename Request, typename Change>
void Accepted(Change change) {
  Request request = Valid<Request>();
  change(request);
  EXPECT_TRUE(Validate(request).ok()) << Validate(request);
}

using Create = v1::CreateTensorRequest;

TEST(Validate, NamesAreShortPrintableUtf8) {
  const auto name = [](std::string name) {
    return [name](Create& request) { request.set_name(name); };
  };
  Accepted<Create>(name(""));
  Accepted<Create>(name(std::string(256, 'n')));
  Accepted<Create>(name("\xe5\x90\x8d \xf0\x9f\x98\x80"));
  Refused<Create>(name(std::string(257, 'n')), "name has 257 bytes; at most 256 are taken");
  Refused<Create>(name("#7"), "begins with '#', which marks an id");
  Refused<Create>(name("a,b"), "has ',' at byte 1, which separates names");
  Accepted<Create>(name("layer=3/W"));
  Refused<Create>(name(" x"), "begins or ends with a space");
  Refused<Create>(name("x "), "begins or ends with a space");
  Refused<Create>(name("a\nb"), "control character U+000A at byte 1");
  Refused<Create>(name(std::string("a\0b", 3)), "control character U+0000 at byte 1");
  Refused<Create>(name("a\x1b[31m"), "control character U+001B");
  Refused<Create>(name("a\x7f"), "control character U+007F");
  Refused<Create>(name("a\xc2\x9b"), "control character U+009B");
  Refused<Create>(name("a\xe2\x80\xaetxt"), "control character U+202E");
  for (const char* bytes : {"\xff", "\x80", "\xc3", "\xc0\xaf", "\xe0\x80\xaf", "\xed\xa0\x80",
                            "\xf4\x90\x80\x80", "\xf0\x9f\x98"}) {
    Refused<Create>(name(std::string("ab") + bytes), "is not UTF-8 from byte 2 on");
  }
}

TEST(Validate, IdsOfClientsAreShortPrintableAscii) {
  Accepted<Create>([](Create& r) { r.clear_request_id(); });
  Accepted<Create>([](Create& r) { r.set_request_id(std::string(256, 'i')); });
  Refused<Create>([](Create& r) { r.set_request_id(std::string(257, 'i')); },
                  "request_id has 257 bytes");
  Refused<Create>([](Create& r) { r.set_session_id("a\tb"); }, "session_id has byte 0x09 at 1");
  Refused<Create>([](Create& r) { r.set_request_id("\xc3\xa9"); }, "request_id has byte 0xc3 at 0");
  Refused<v1::AbortUploadRequest>([](auto& r) { r.set_upload_id("\n"); }, "upload_id has byte");
  Refused<v1::CloseSessionRequest>([](auto& r) { r.clear_session_id(); }, "session_id is empty");
  Refused<v1::OpenedSessionRequest>([](auto& r) { r.clear_session_id(); }, "session_id is empty");
  Refused<v1::OpenedSessionRequest>([](auto& r) { r.set_node(-1); }, "node is -1");
}

TEST(Validate, IdsOfDaemonsAreNotZero) {
  Refused<v1::DeleteTensorRequest>([](auto& r) { r.clear_tensor_id(); }, "tensor_id is 0");
  Refused<v1::ReadTensorRequest>([](auto& r) { r.mutable_tensor()->set_tensor_id(0); },
                                 "tensor_id is 0");
  Refused<v1::GetJobRequest>([](auto& r) { r.clear_job_id(); }, "job_id is 0");
  Refused<v1::GetJobRequest>([](auto& r) { r.set_sequencer("\x01"); }, "sequencer has byte 0x01");
  Refused<v1::WaitJobRequest>([](auto& r) { r.clear_job_id(); }, "job_id is 0");
  Refused<v1::CancelJobRequest>([](auto& r) { r.clear_job_id(); }, "job_id is 0");
  Refused<v1::WatchJobRequest>([](auto& r) { r.clear_job_id(); }, "job_id is 0");
  Refused<v1::EndLeaseRequest>([](auto& r) { r.clear_lease_id(); }, "lease_id is 0");
}

TEST(Validate, ARefNamesATensor) {
  using Get = v1::GetTensorRequest;
  Refused<Get>([](Get& r) { r.mutable_tensor()->clear_ref(); }, "tensor names no tensor; set");
  Refused<Get>([](Get& r) { r.mutable_tensor()->set_name(""); }, "tensor.name is empty");
  Refused<Get>([](Get& r) { r.mutable_tensor()->set_tensor_id(0); }, "tensor.tensor_id is 0");
  Refused<v1::MapTensorRequest>([](auto& r) { r.mutable_begin()->clear_tensor(); },
                                "begin.tensor names no tensor");
}

TEST(Validate, MeshesAreBoundedInAxesRanksAndTheirProduct) {
  const auto mesh = [](auto change) {
    return [change](Create& request) { change(*request.mutable_spec()->mutable_mesh()); };
  };
  const auto axes = [&](std::vector<int> sizes) {
    return mesh([sizes](v1::Mesh& mesh) {
      mesh.Clear();
      std::string name = "dp";
      for (int size : sizes) {
        mesh.add_axes()->set_size(size);
        mesh.mutable_axes()->rbegin()->set_name(name);
        name = name == "dp" ? "tp" : name + "x";
      }
    });
  };
  Accepted<Create>(axes({4096, 1}));
  Refused<Create>(axes({}), "spec.mesh.axes is 0, outside [1, 32]");
  Refused<Create>(axes(std::vector<int>(33, 1)), "spec.mesh.axes is 33, outside [1, 32]");
  Refused<Create>(axes({2, 0}), "spec.mesh.axes[1].size is 0, outside [1, 4096]");
  Refused<Create>(axes({-2, 2}), "spec.mesh.axes[0].size is -2");
  Refused<Create>(axes({4097, 1}), "spec.mesh.axes[0].size is 4097");
  Refused<Create>(axes({4096, 2}), "has 8192 ranks up to axis tp; at most 4096");
  // 2^32 ranks are 0 in 32 bits.
  Refused<Create>(axes({2048, 2048, 1024}), "ranks up to axis tp; at most 4096");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name("dp"); }), "is called dp");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name(""); }), "of letters only");
  // A name must not smuggle in a second axis.
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name("tp=1,z"); }),
                  "of letters only");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name(std::string(33, 'a')); }),
                  "spec.mesh.axes[1].name has 33 bytes");
  Refused<Create>(mesh([](v1::Mesh& m) { m.add_ranks(9); }), "has 6 ranks and lists 7");
  Refused<Create>(mesh([](v1::Mesh& m) { m.set_ranks(1, -5); }), "lists rank -5");
  Refused<Create>(mesh([](v1::Mesh& m) { m.set_ranks(1, 4); }), "lists rank 4 twice");
}

TEST(Validate, TensorsHaveSizesThatMultiply) {
  const auto spec = [](auto change) {
    return [change](Create& request) { change(*request.mutable_spec()); };
  };
  constexpr int64_t kMost = int64_t{1} << 28;
  Accepted<Create>(spec([](v1::TensorSpec& s) { s.set_rows(kMost); }));
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(0); }), "spec.rows is 0");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_cols(-1); }), "spec.cols is -1");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(kMost + 1); }), "spec.rows is 268435457");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_cols(INT64_MAX); }),
                  "spec.cols is 9223372036854775807, outside [1, 268435456]");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(kMost), s.set_cols(kMost); }),
                  "is 268435456 x 268435456, 144115188075855872 bytes; at most 1125899906842624");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.clear_dtype(); }), "spec.dtype dtype 0 is not");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_dtype(static_cast<v1::DType>(9)); }),
                  "dtype 9 is not known; use F32, BF16 or F16");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.clear_sharding(); }), "spec.sharding is empty");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_sharding(std::string(1025, '[')); }),
                  "spec.sharding has 1025 bytes");
  v1::CreateTensorRequest request = Valid<Create>();
  request.mutable_spec()->set_sharding("[M_dp, K_q]");
  EXPECT_THAT(std::string(Validate(request).message()), HasSubstr("sharding column 10"));
}

TEST(Validate, AFillHasATargetAndAKind) {
  using Fill = v1::FillTensorRequest;
  Accepted<Fill>([](Fill& r) { r.set_tensor_id(3); });
  Refused<Fill>([](Fill& r) { r.clear_target(); }, "has no target; set tensor_id, or put");
  Refused<Fill>([](Fill& r) { r.set_tensor_id(0); }, "tensor_id is 0");
  Refused<Fill>([](Fill& r) { r.mutable_put()->mutable_spec()->set_rows(0); }, "spec.rows is 0");
  v1::FillTensorRequest fill = Valid<Fill>();
  fill.mutable_put()->mutable_spec()->set_rows(0);
  EXPECT_THAT(std::string(Validate(fill).message()), ::testing::StartsWith("spec.rows"))
      << "the tensor's fields go by their own names, wherever they stand";
  Refused<Fill>([](Fill& r) { r.clear_fill(); }, "fill.kind is 0; use UNIFORM");
  Refused<Fill>([](Fill& r) { r.mutable_fill()->set_kind(static_cast<v1::Fill::Kind>(99)); },
                "fill.kind is 99");
  for (double value : {NAN, INFINITY}) {
    Refused<Fill>([&](Fill& r) { r.mutable_fill()->set_value(value); }, "a finite number");
  }
}

TEST(Validate, ChunksAreBoundedAndWholeElements) {
  using Upload = v1::UploadRequest;
  const auto chunk = [](int64_t offset, size_t bytes) {
    return [=](Upload& request) {
      request.mutable_chunk()->set_offset_bytes(offset);
      request.mutable_chunk()->set_data(std::string(bytes, 'x'));
    };
  };
  constexpr size_t kMost = size_t{4} << 20;
  Accepted<Upload>(chunk(0, kMost));
  Accepted<Upload>([](Upload& r) { r.mutable_commit()->set_checksum(1); });
  Accepted<Upload>([](Upload& r) { r.clear_chunk(); });
  Refused<Upload>(chunk(0, kMost + 2), "chunk.data is 4194306, outside [1, 4194304]");
  Refused<Upload>(chunk(0, 0), "chunk.data is 0, outside [1, 4194304]");
  Refused<Upload>(chunk(-2, 2), "chunk.offset_bytes is -2");
  Refused<Upload>(chunk(INT64_MAX - 1, 2), "chunk.offset_bytes is 9223372036854775806");
  Refused<Upload>(chunk(1, 2), "cuts an element in two");
  Refused<Upload>(chunk(2, 3), "cuts an element in two");
  Refused<Upload>([](Upload& r) { r.clear_begin(); }, "begin.upload_id is empty");
  Refused<Upload>([](Upload& r) { r.mutable_begin()->clear_target(); }, "begin has no target");
  Refused<Upload>([](Upload& r) { r.mutable_begin()->set_tensor_id(0); }, "begin.tensor_id is 0");
  Refused<v1::MapTensorRequest>([](auto& r) { r.clear_message(); },
                                "set begin, commit, release or renew");
}

TEST(Validate, JobsHaveTwoOrThreeTensorsAndBoundedTerms) {
  using Submit = v1::SubmitJobRequest;
  Refused<Submit>([](Submit& r) { r.clear_spec(); }, "the length of spec is 0, outside [1, 1024]");
  Refused<Submit>([](Submit& r) { r.set_spec(std::string(1025, 'A')); }, "of spec is 1025");
  Refused<Submit>([](Submit& r) { r.clear_mesh(); }, "mesh.axes is 0");
  Refused<Submit>(
      [](Submit& r) {
        for (int i = 0; i < 2; ++i) r.mutable_tensors()->RemoveLast();
      },
      "tensors has 1 entries; a product has 3 and a collective 2");
  Refused<Submit>([](Submit& r) { r.add_tensors()->set_tensor_id(1); }, "tensors has 4 entries");
  Refused<Submit>([](Submit& r) { r.mutable_tensors(2)->clear_ref(); }, "tensors[2] names no");
  Refused<Submit>([](Submit& r) { r.set_request_id(std::string(257, 'x')); }, "request_id has 257");
  Refused<Submit>([](Submit& r) { r.set_session_id(std::string(257, 'x')); }, "session_id has 257");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_algorithm(std::string(257, 'x')); },
                  "options.algorithm has 257 bytes");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_chunk_count(-1); },
                  "options.chunk_count is -1, outside [0, 256]");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_chunk_count(257); }, "is 257, outside");
  Refused<Submit>([](Submit& r) { r.set_repeat_count(-1); }, "repeat_count is -1");
  Refused<Submit>([](Submit& r) { r.set_repeat_count(1000001); },
                  "repeat_count is 1000001, outside [0, 1000000]; submit several jobs");
}

TEST(Validate, OperandsHaveNamesOfTheNotationEachOnce) {
  using Submit = v1::SubmitJobRequest;
  const auto by_name = [](auto change) {
    return [change](Submit& request) {
      request.clear_tensors();
      for (const char* name : {"A", "B", "C", "D"}) {
        v1::OperandTensor* operand = request.add_operands();
        operand->set_name(name);
        operand->mutable_tensor()->set_name("X");
      }
      change(request);
    };
  };
  Accepted<Submit>(by_name([](Submit&) {}));
  Refused<Submit>(by_name([](Submit& r) { r.add_tensors()->set_name("X"); }),
                  "operands has 4 entries and tensors has 1; give one of the two");
  for (const char* name : {"", "7", "A_x", "workspace", "A\n"}) {
    Refused<Submit>(by_name([&](Submit& r) { r.mutable_operands(1)->set_name(name); }),
                    "operands[1].name is \"");
  }
  Refused<Submit>(
      by_name([](Submit& r) { r.mutable_operands(3)->set_name(std::string(257, 'D')); }),
      "use up to 256 letters and digits");
  Refused<Submit>(by_name([](Submit& r) { r.mutable_operands(3)->set_name("A"); }),
                  "operands[3].name is A a second time");
  Refused<Submit>(by_name([](Submit& r) { r.mutable_operands(2)->clear_tensor(); }),
                  "operands[2].tensor names no");
  Refused<Submit>(by_name([](Submit& r) {
                    while (r.operands_size() < 65) *r.add_operands() = r.operands(0);
                  }),
                  "the number of operands is 65, outside [1, 64]");
}

TEST(Validate, TimeoutsAreWholeAndAtMostADay) {
  using Submit = v1::SubmitJobRequest;
  const auto timeout = [](int64_t seconds, int nanos) {
    return [=](Submit& request) {
      request.mutable_timeout()->set_seconds(seconds);
      request.mutable_timeout()->set_nanos(nanos);
    };
  };
  Accepted<Submit>(timeout(0, 0));
  Accepted<Submit>(timeout(0, 999999999));
  Accepted<Submit>(timeout(86400, 0));
  for (auto [seconds, nanos] : {std::pair{int64_t{-1}, 0},
                                {int64_t{0}, -1},
                                {int64_t{1}, -1},
                                {int64_t{86400}, 1},
                                {int64_t{1}, 1000000000},
                                {INT64_MAX, 0},
                                {INT64_MIN, INT32_MIN}}) {
    Refused<Submit>(timeout(seconds, nanos), "at most 86400 s are taken");
  }
}

TEST(Validate, PagesAndEventsAreCountedFromZero) {
  using List = v1::ListJobsRequest;
  Accepted<List>([](List& r) { r.set_page_size(0); });
  Accepted<List>([](List& r) { r.set_page_size(1000); });
  Refused<List>([](List& r) { r.set_page_size(-1); }, "page_size is -1, outside [0, 1000]");
  Refused<List>([](List& r) { r.set_page_size(1001); }, "page_size is 1001");
  Refused<v1::WatchJobRequest>([](auto& r) { r.set_after_event(-1); }, "after_event is -1");
}

TEST(Validate, AccessesHaveATarget) {
  using Begin = v1::BeginLeaseRequest;
  Refused<Begin>([](Begin& r) { r.clear_target(); }, "a lease has no target");
  Refused<Begin>([](Begin& r) { r.set_name("#1"); }, "begins with '#'");
  Refused<Begin>([](Begin& r) { r.set_tensor_id(0); }, "tensor_id is 0");
  Refused<Begin>([](Begin& r) { r.mutable_put()->mutable_spec()->set_cols(0); }, "spec.cols is 0");
  Refused<Begin>([](Begin& r) { r.set_node(-1); }, "node is -1");
}

TEST(Validate, AReadBeginsInATensor) {
  using Read = v1::ReadTensorRequest;
  Refused<Read>([](Read& r) { r.set_offset_bytes(-2); }, "offset_bytes is -2");
  Refused<Read>([](Read& r) { r.set_offset_bytes(INT64_MAX); },
                "offset_bytes is 9223372036854775807");
  Refused<Read>([](Read& r) { r.clear_tensor(); }, "tensor");
}

TEST(Validate, TunedPlansAreConcreteAndFitTheirProblem) {
  using Store = v1::StoreTuningRequest;
  Refused<Store>([](Store& r) { r.clear_plans(); }, "the length of plans is 0, outside [1, 4096]");
  Refused<Store>(
      [](Store& r) {
        for (int i = 0; i < 4096; ++i) *r.add_plans() = r.plans(0);
      },
      "the length of plans is 4097");
  Refused<Store>(
      [](Store& r) {
        for (int i = 0; i < 4097; ++i) r.add_ranks(i);
      },
      "the length of ranks is 4097");
  Refused<Store>(
      [](Store& r) {
        *r.add_plans() = r.plans(0);
        r.mutable_plans(1)->mutable_options()->clear_split();
      },
      "plans[1].options.split is open");
  Refused<Store>([](Store& r) { r.mutable_plans(0)->set_spec("A[M_x, K] * B[L, N_x] -> C[M, N]"); },
                 "plans[0].spec is wrong: ");
  // The sequencer sets it.
  Accepted<Store>([](Store& r) { r.mutable_plans(0)->clear_hardware(); });
}

TEST(Convert, AnAxisNameThatHoldsAxesIsRefused) {
  v1::Mesh mesh = ValidMesh();
  mesh.mutable_axes(0)->set_name("a=1,b");
  EXPECT_EQ(FromProto(mesh).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Convert, ARecipeKeepsEveryField) {
  const Mesh mesh = ParseMesh("x=2,y=2,z=2").value();
  const Recipe recipe = {FindAlgorithm("ring"), {{2, 0}, {1}, {}}, 3, 4, 5, true, true};
  const absl::StatusOr<Recipe> read = FromProto(ToProto(recipe), mesh);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, recipe);
}

TEST(Convert, AProblemKeepsEveryTensor) {
  const Mesh mesh = ParseMesh("x=2,y=2", {3, 2, 1, 0}).value();
  Problem problem =
      ParseProblem("P[M_x, J_y] * Q[J, N] -> R[M, N]{U_y}", mesh, {8, 6, 4}, DType::kBF16).value();
  problem.tensors[2].dtype = DType::kF32;
  v1::PreparePlan prepare;
  SetProblem(problem, &prepare);
  EXPECT_EQ(ProblemOf(prepare).value(), problem);
  v1::Job job;
  job.set_spec(SpecText(problem));
  SetProblem(problem, &job);
  EXPECT_EQ(ProblemOf(job).value(), problem);
  EXPECT_EQ(job.m(), 8);
  EXPECT_EQ(job.n(), 6);
  EXPECT_EQ(job.k(), 4);
  EXPECT_EQ(job.dtype(), v1::DTYPE_BF16);
  EXPECT_EQ(job.result_dtype(), v1::DTYPE_F32);
  job.clear_operands();  // as an older daemon made it
  EXPECT_EQ(ProblemOf(job).value(), problem);

  prepare.mutable_operands(1)->mutable_spec()->set_rows(5);
  EXPECT_EQ(ProblemOf(prepare).status().code(), absl::StatusCode::kInvalidArgument);
  prepare.mutable_operands()->RemoveLast();
  EXPECT_EQ(ProblemOf(prepare).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(Convert, APlanWhoseOperandsTheNotationCannotHaveIsRefused) {
  v1::PreparePlan good;
  const Mesh mesh = ParseMesh("x=2").value();
  SetProblem(ParseProblem("A[M_x, K] * B[K, N] -> C[M, N]", mesh, {8, 6, 4}, DType::kF32).value(),
             &good);
  ASSERT_TRUE(ProblemOf(good).ok());
  const auto refused = [&](auto change, const std::string& why) {
    v1::PreparePlan bad = good;
    change(bad);
    const absl::Status status = ProblemOf(bad).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(why));
  };
  refused([](v1::PreparePlan& plan) { plan.clear_operands(); },
          "the number of operands is 0, outside [1, 64]");
  refused(
      [](v1::PreparePlan& plan) {
        for (int i = plan.operands_size(); i < 65; ++i) {
          v1::Operand* const operand = plan.add_operands();
          *operand = plan.operands(0);
          operand->set_name(absl::StrCat("D", i));
        }
      },
      "the number of operands is 65, outside [1, 64]");
  refused([](v1::PreparePlan& plan) { plan.mutable_operands(1)->set_name("A"); },
          "operands[1].name is A a second time");
  for (const char* name : {"", "workspace", "B 2", "B\n"}) {
    refused([&](v1::PreparePlan& plan) { plan.mutable_operands(1)->set_name(name); },
            "operands[1].name is \"");
  }
  refused([](v1::PreparePlan& plan) { plan.mutable_operands(2)->set_name(std::string(257, 'C')); },
          "use up to 256 letters and digits");
}

TEST(Convert, ARecipeThatNoPlannerMakesIsRefused) {
  const Mesh mesh = ParseMesh("x=2,y=2").value();
  const v1::Recipe good = ToProto(Recipe{FindAlgorithm("ring"), {{0}, {1}, {}}});
  ASSERT_TRUE(FromProto(good, mesh).ok());
  const auto refused = [&](auto change, const std::string& why) {
    v1::Recipe bad = good;
    change(bad);
    const absl::Status status = FromProto(bad, mesh).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr(why));
  };
  refused([](v1::Recipe& r) { r.set_algorithm("auto"); }, "\"auto\"");
  refused([](v1::Recipe& r) { r.add_k_axes(2); }, "axis 2");
  refused([](v1::Recipe& r) { r.add_k_axes(-1); }, "axis -1");
  refused([](v1::Recipe& r) { r.add_k_axes(1); }, "axis 1");
  refused([](v1::Recipe& r) { r.set_chunk_count(0); }, "0 chunks");
  refused([](v1::Recipe& r) { r.set_k_chunk_count(257); }, "257 along K");
  refused([](v1::Recipe& r) { r.set_workspace_shard_count(-1); }, "-1 shards");
  refused([](v1::Recipe& r) { r.set_workspace_shard_count(1); }, "a workspace of 1 shards");
}

}  // namespace
}  // namespace agmm
