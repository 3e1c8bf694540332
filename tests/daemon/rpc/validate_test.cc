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
  Refused<Create>(name(std::string(257, 'n')), "the name of the tensor has 257 bytes; at most 256");
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
                  "the id of the request has 257 bytes");
  Refused<Create>([](Create& r) { r.set_session_id("a\tb"); },
                  "the id of the session has byte 0x09 at 1");
  Refused<Create>([](Create& r) { r.set_request_id("\xc3\xa9"); },
                  "the id of the request has byte 0xc3 at 0");
  Refused<v1::AbortUploadRequest>([](auto& r) { r.set_upload_id("\n"); }, "upload_id has byte");
  Refused<v1::CloseSessionRequest>([](auto& r) { r.clear_session_id(); },
                                   "the id of the session is empty");
  Refused<v1::OpenedSessionRequest>([](auto& r) { r.clear_session_id(); },
                                    "the id of the session is empty");
  Refused<v1::OpenedSessionRequest>([](auto& r) { r.set_node(-1); }, "node is -1");
}

TEST(Validate, IdsOfDaemonsAreNotZero) {
  Refused<v1::DeleteTensorRequest>([](auto& r) { r.clear_tensor_id(); },
                                   "the id of the tensor is 0");
  Refused<v1::ReadTensorRequest>([](auto& r) { r.mutable_tensor()->set_tensor_id(0); },
                                 "the id of the tensor is 0");
  Refused<v1::GetJobRequest>([](auto& r) { r.clear_job_id(); }, "the id of the job is 0");
  Refused<v1::GetJobRequest>([](auto& r) { r.set_sequencer("\x01"); }, "sequencer has byte 0x01");
  Refused<v1::WaitJobRequest>([](auto& r) { r.clear_job_id(); }, "the id of the job is 0");
  Refused<v1::CancelJobRequest>([](auto& r) { r.clear_job_id(); }, "the id of the job is 0");
  Refused<v1::WatchJobRequest>([](auto& r) { r.clear_job_id(); }, "the id of the job is 0");
  Refused<v1::EndLeaseRequest>([](auto& r) { r.clear_lease_id(); }, "lease_id is 0");
}

TEST(Validate, ARefNamesATensor) {
  using Get = v1::GetTensorRequest;
  Refused<Get>([](Get& r) { r.mutable_tensor()->clear_ref(); },
               "the tensor is not given; give its name or its id");
  Refused<Get>([](Get& r) { r.mutable_tensor()->set_name(""); }, "the name of the tensor is empty");
  Refused<Get>([](Get& r) { r.mutable_tensor()->set_tensor_id(0); }, "the id of the tensor is 0");
  Refused<v1::MapTensorRequest>([](auto& r) { r.mutable_begin()->clear_tensor(); },
                                "the tensor is not given");
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
  Refused<Create>(axes({}), "the number of axes of the mesh is 0, outside [1, 32]");
  Refused<Create>(axes(std::vector<int>(33, 1)),
                  "the number of axes of the mesh is 33, outside [1, 32]");
  Refused<Create>(axes({2, 0}), "the size of axis tp of the mesh is 0, outside [1, 4096]");
  Refused<Create>(axes({-2, 2}), "the size of axis dp of the mesh is -2");
  Refused<Create>(axes({4097, 1}), "the size of axis dp of the mesh is 4097");
  Refused<Create>(axes({4096, 2}), "has 8192 ranks up to axis tp; at most 4096");
  // 2^32 ranks are 0 in 32 bits.
  Refused<Create>(axes({2048, 2048, 1024}), "ranks up to axis tp; at most 4096");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name("dp"); }),
                  "the mesh has two axes that are called dp");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name(""); }), "of letters only");
  // A name must not smuggle in a second axis.
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name("tp=1,z"); }),
                  "of letters only");
  Refused<Create>(mesh([](v1::Mesh& m) { m.mutable_axes(1)->set_name(std::string(33, 'a')); }),
                  "the name of axis 2 of the mesh has 33 bytes");
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
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(0); }), "the number of rows is 0");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_cols(-1); }), "the number of columns is -1");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(kMost + 1); }),
                  "the number of rows is 268435457");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_cols(INT64_MAX); }),
                  "the number of columns is 9223372036854775807, outside [1, 268435456]");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_rows(kMost), s.set_cols(kMost); }),
                  "is 268435456 x 268435456, 144115188075855872 bytes; at most 1125899906842624");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.clear_dtype(); }),
                  "dtype 0 is not known; use F32");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_dtype(static_cast<v1::DType>(9)); }),
                  "dtype 9 is not known; use F32, BF16 or F16");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.clear_sharding(); }),
                  "the sharding is empty; give one such as [M_x, K]");
  Refused<Create>(spec([](v1::TensorSpec& s) { s.set_sharding(std::string(1025, '[')); }),
                  "the sharding has 1025 bytes");
  v1::CreateTensorRequest request = Valid<Create>();
  request.mutable_spec()->set_sharding("[M_dp, K_q]");
  EXPECT_THAT(std::string(Validate(request).message()), HasSubstr("sharding column 10"));
}

TEST(Validate, AFillHasATargetAndAKind) {
  using Fill = v1::FillTensorRequest;
  Accepted<Fill>([](Fill& r) { r.set_tensor_id(3); });
  Refused<Fill>([](Fill& r) { r.clear_target(); }, "has no target; set tensor_id, or put");
  Refused<Fill>([](Fill& r) { r.set_tensor_id(0); }, "the id of the tensor is 0");
  Refused<Fill>([](Fill& r) { r.mutable_put()->mutable_spec()->set_rows(0); },
                "the number of rows is 0");
  Refused<Fill>([](Fill& r) { r.clear_fill(); }, "the kind of fill is 0; use uniform");
  Refused<Fill>([](Fill& r) { r.mutable_fill()->set_kind(static_cast<v1::Fill::Kind>(99)); },
                "the kind of fill is 99");
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
  Refused<Upload>([](Upload& r) { r.mutable_begin()->set_tensor_id(0); },
                  "the id of the tensor is 0");
  Refused<v1::MapTensorRequest>([](auto& r) { r.clear_message(); },
                                "set begin, commit, release or renew");
}

TEST(Validate, JobsHaveTwoOrThreeTensorsAndBoundedTerms) {
  using Submit = v1::SubmitJobRequest;
  Refused<Submit>([](Submit& r) { r.clear_spec(); },
                  "the length of the spec is 0, outside [1, 1024]");
  Refused<Submit>([](Submit& r) { r.set_spec(std::string(1025, 'A')); }, "of the spec is 1025");
  Refused<Submit>([](Submit& r) { r.clear_mesh(); }, "the number of axes of the mesh is 0");
  Refused<Submit>(
      [](Submit& r) {
        for (int i = 0; i < 2; ++i) r.mutable_tensors()->RemoveLast();
      },
      "the job has 1 tensors; a product has 3 and a collective 2");
  Refused<Submit>([](Submit& r) { r.add_tensors()->set_tensor_id(1); }, "the job has 4 tensors");
  Refused<Submit>([](Submit& r) { r.mutable_tensors(2)->clear_ref(); },
                  "the tensor of operand 3 of the spec is not given");
  Refused<Submit>([](Submit& r) { r.set_request_id(std::string(257, 'x')); },
                  "the id of the request has 257");
  Refused<Submit>([](Submit& r) { r.set_session_id(std::string(257, 'x')); },
                  "the id of the session has 257");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_algorithm(std::string(257, 'x')); },
                  "the algorithm has 257 bytes");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_chunk_count(-1); },
                  "the number of chunks a shard is -1, outside [0, 256]; give 0");
  Refused<Submit>([](Submit& r) { r.mutable_options()->set_chunk_count(257); }, "is 257, outside");
  Refused<Submit>([](Submit& r) { r.set_repeat_count(-1); }, "the number of repeats is -1");
  Refused<Submit>([](Submit& r) { r.set_repeat_count(1000001); },
                  "the number of repeats is 1000001, outside [0, 1000000]; submit several jobs");
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
                  "the job has 4 tensors by operand and 1 in the order of the spec; give one of");
  for (const char* name : {"", "7", "A_x", "workspace", "A\n"}) {
    Refused<Submit>(by_name([&](Submit& r) { r.mutable_operands(1)->set_name(name); }),
                    "operand 2 is called \"");
  }
  Refused<Submit>(
      by_name([](Submit& r) { r.mutable_operands(3)->set_name(std::string(257, 'D')); }),
      "use up to 256 letters and digits");
  Refused<Submit>(by_name([](Submit& r) { r.mutable_operands(3)->set_name("A"); }),
                  "operand 4 is A a second time");
  Refused<Submit>(by_name([](Submit& r) { r.mutable_operands(2)->clear_tensor(); }),
                  "the tensor of operand C is not given");
  Refused<Submit>(by_name([](Submit& r) {
                    while (r.operands_size() < 65) *r.add_operands() = r.operands(0);
                  }),
                  "the number of operands is 65, outside [1, 64]");
}

// Users of agmmctl, C++ and Python write none of the protocol's fields.
TEST(Validate, ErrorsInJobsAndTensorsNameNoField) {
  using Submit = v1::SubmitJobRequest;
  const auto options = [](auto change) {
    return [change](Submit& request) { change(*request.mutable_options()); };
  };
  Refused<Submit>(
      options([](auto& o) { o.set_k_chunk_count(257); }),
      "the number of chunks along K is 257, outside [0, 256]; give 0 to have it chosen");
  Refused<Submit>(options([](auto& o) { o.set_workspace_shard_count(-2); }),
                  "the number of shards in the workspace is -2, outside [0, 256]; give 0");
  Refused<Submit>(options([](auto& o) { o.set_split(std::string(1025, 'M')); }),
                  "the split has 1025 bytes; at most 1024 are taken");
  Refused<Submit>(options([](auto& o) { o.set_partials(static_cast<v1::DType>(9)); }),
                  "the type of partial sums: dtype 9 is not known; use F32, BF16 or F16");
  Refused<Submit>([](Submit& r) { r.mutable_timeout()->set_seconds(90000); },
                  "the timeout of the job is 90000 s and 500 ns; at most 86400 s are taken");
  Refused<Submit>([](Submit& r) { r.mutable_tensors(1)->set_name("#1"); },
                  "the name of the tensor of operand 2 of the spec begins with '#'");
  Refused<v1::FillTensorRequest>([](auto& r) { r.mutable_fill()->set_value(NAN); },
                                 "the value of the fill is nan; a constant is a finite number");
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
  for (int size : {0, 1, 1000})
    Accepted<v1::ListSessionsRequest>([size](auto& r) { r.set_page_size(size); });
  Refused<v1::ListSessionsRequest>([](auto& r) { r.set_page_size(-1); }, "page_size is -1");
  Refused<v1::ListSessionsRequest>([](auto& r) { r.set_page_size(1001); }, "page_size is 1001");
}

// The daemon of the client checks it, and so does the sequencer's.
TEST(Validate, AProgramsNameIsShortReadableText) {
  const auto check = []<typename Request>(Request) {
    const auto program = [](std::string text) {
      return [text](Request& request) { request.set_program(text); };
    };
    Accepted<Request>(program(""));
    Accepted<Request>(program(" train, #7 (größe, 矩阵).py "));
    Accepted<Request>(program(std::string(128, 'p')));
    Refused<Request>(program(std::string(129, 'p')), "program has 129 bytes; at most 128");
    Refused<Request>(program("a\nb"), "program has the control character U+000A at byte 1");
    Refused<Request>(program("ab\x1b[2J"), "program has the control character U+001B at byte 2");
    Refused<Request>(program(std::string("a\0b", 3)), "control character U+0000 at byte 1");
    Refused<Request>(program("\xe2\x80\xae"), "program has the control character U+202E");
    Refused<Request>(program("ab\xff"), "program is not UTF-8 from byte 2 on");
  };
  check(v1::OpenSessionRequest());
  check(v1::OpenedSessionRequest());
}

TEST(Validate, AccessesHaveATarget) {
  using Begin = v1::BeginLeaseRequest;
  Refused<Begin>([](Begin& r) { r.clear_target(); }, "a lease has no target");
  Refused<Begin>([](Begin& r) { r.set_name("#1"); }, "begins with '#'");
  Refused<Begin>([](Begin& r) { r.set_tensor_id(0); }, "the id of the tensor is 0");
  Refused<Begin>([](Begin& r) { r.mutable_put()->mutable_spec()->set_cols(0); },
                 "the number of columns is 0");
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
          "operand 2 is A a second time");
  for (const char* name : {"", "workspace", "B 2", "B\n"}) {
    refused([&](v1::PreparePlan& plan) { plan.mutable_operands(1)->set_name(name); },
            "operand 2 is called \"");
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
