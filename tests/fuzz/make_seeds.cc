// make_seeds FOLDER writes FOLDER/<Request>/<name>: valid requests, serialised, from which the
// fuzzers start. After a change of the protocol, run it on tests/fuzz/corpus.
#include <filesystem>
#include <fstream>
#include <string>

#include "tests/fuzz/two_nodes.h"
#include "tests/fuzz/valid_requests.h"

namespace agmm {
namespace {

std::string folder;

void WriteBytes(const std::string& target, const std::string& name, const std::string& bytes) {
  std::filesystem::create_directories(folder + "/" + target);
  std::ofstream(folder + "/" + target + "/" + name, std::ios::binary) << bytes;
}

void Write(const google::protobuf::Message& message, const std::string& name) {
  WriteBytes(message.GetDescriptor()->name(), name, message.SerializeAsString());
}

template <typename Request>
void WriteValid() {
  Write(Valid<Request>(), "valid");
}

template <typename Request, typename Change>
void WriteChanged(const std::string& name, Change change) {
  Request request = Valid<Request>();
  change(request);
  Write(request, name);
}

// Streams of members.
void WriteStreams() {
  using fuzz::Framed;
  using fuzz::HelloOf;
  v1::MemberMessage reports;
  reports.add_reports()->mutable_world_ready();
  reports.add_reports()->mutable_tensor_placed()->set_tensor_id(1);
  reports.add_reports()->mutable_plan_prepared()->set_plan_id(1);
  reports.add_reports()->mutable_launch_done()->set_job_id(1);
  reports.add_reports()->mutable_tensor_filled()->set_tensor_id(1);
  v1::MemoryHeld* held = reports.add_reports()->mutable_memory_held();
  held->set_hold_id(1);
  held->add_ranks(0);
  held->set_bytes(4096);
  held->set_writable(true);
  reports.add_reports()->mutable_memory_released()->set_hold_id(1);
  v1::MemberMessage broken;
  broken.add_reports()->mutable_peer_broken()->set_node(1);
  v1::MemberMessage failed;
  failed.add_reports()->mutable_tensor_placed()->set_tensor_id(1);
  failed.mutable_reports(0)->mutable_tensor_placed()->mutable_error()->set_code(13);
  v1::MemberMessage negative = HelloOf(1, 'y');
  negative.mutable_hello()->mutable_devices(0)->set_heap_bytes(INT64_MIN);
  v1::MemberMessage late = HelloOf(1, 'y');
  late.mutable_hello()->set_last_generation(UINT64_MAX);
  WriteBytes("member_message", "placed", Framed(0, reports) + Framed(1, reports));
  WriteBytes("member_message", "failed", Framed(0, reports) + Framed(1, failed));
  WriteBytes("member_message", "broken", Framed(0, broken) + Framed(2, HelloOf(1, 'y')));
  WriteBytes("member_message", "restarted", Framed(2, HelloOf(1, 'z')) + Framed(2, reports));
  WriteBytes("member_message", "lost", Framed(0x81, reports) + Framed(1, HelloOf(1)));
  WriteBytes("member_message", "wrong", Framed(2, negative) + Framed(2, late));
}

void WriteAll() {
  WriteValid<v1::CreateTensorRequest>();
  WriteValid<v1::DeleteTensorRequest>();
  WriteValid<v1::GetTensorRequest>();
  WriteValid<v1::FillTensorRequest>();
  WriteValid<v1::AbortUploadRequest>();
  WriteValid<v1::ReadTensorRequest>();
  WriteValid<v1::UploadRequest>();
  WriteValid<v1::MapTensorRequest>();
  WriteValid<v1::SubmitJobRequest>();
  WriteValid<v1::GetJobRequest>();
  WriteValid<v1::WaitJobRequest>();
  WriteValid<v1::CancelJobRequest>();
  WriteValid<v1::ListJobsRequest>();
  WriteValid<v1::WatchJobRequest>();
  WriteValid<v1::BeginLeaseRequest>();
  WriteValid<v1::EndLeaseRequest>();
  WriteValid<v1::OpenSessionRequest>();
  WriteValid<v1::ListSessionsRequest>();
  WriteValid<v1::OpenedSessionRequest>();
  WriteValid<v1::CloseSessionRequest>();

  WriteChanged<v1::SubmitJobRequest>("by_operand", [](auto& r) {
    r.clear_tensors();
    for (const char* name : {"C", "B", "A"}) {
      r.add_operands()->set_name(name);
      r.mutable_operands()->rbegin()->mutable_tensor()->set_name(name);
    }
  });
  WriteChanged<v1::GetTensorRequest>("by_id",
                                     [](auto& r) { r.mutable_tensor()->set_tensor_id(7); });
  WriteChanged<v1::FillTensorRequest>("by_id", [](auto& r) { r.set_tensor_id(7); });
  WriteChanged<v1::BeginLeaseRequest>("by_id", [](auto& r) { r.set_tensor_id(7); });
  WriteChanged<v1::BeginLeaseRequest>("by_name", [](auto& r) { r.set_name("weights"); });
  WriteChanged<v1::UploadRequest>("begin", [](auto& r) { r.clear_chunk(); });
  WriteChanged<v1::UploadRequest>("begin_by_id",
                                  [](auto& r) { r.mutable_begin()->set_tensor_id(7); });
  WriteChanged<v1::UploadRequest>("commit", [](auto& r) { r.mutable_commit()->set_checksum(1); });
  WriteChanged<v1::MapTensorRequest>("commit", [](auto& r) { r.mutable_commit(); });
  WriteChanged<v1::MapTensorRequest>("renew", [](auto& r) { r.mutable_renew(); });
  WriteChanged<v1::MapTensorRequest>("release", [](auto& r) { r.mutable_release(); });
  WriteChanged<v1::ReadTensorRequest>("resumed", [](auto& r) {
    r.mutable_tensor()->set_name("weights");
    r.set_offset_bytes(4096);
    r.set_version(3);
  });
  // Sizes that multiply to 2^64 and beyond.
  WriteChanged<v1::CreateTensorRequest>("large", [](auto& r) {
    r.mutable_spec()->set_rows(int64_t{1} << 31);
    r.mutable_spec()->set_cols(int64_t{1} << 31);
  });
  WriteChanged<v1::SubmitJobRequest>("wide_mesh", [](auto& r) {
    for (auto& axis : *r.mutable_mesh()->mutable_axes()) axis.set_size(1 << 16);
    r.mutable_mesh()->clear_ranks();
  });
}

}  // namespace
}  // namespace agmm

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  agmm::folder = argv[1];
  agmm::WriteAll();
  agmm::WriteStreams();
}
