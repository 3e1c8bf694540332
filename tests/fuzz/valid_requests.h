// One valid request of each kind: the tests of Validate make them invalid, and the fuzzers start
// from them.
#pragma once

#include "agmm/v1/cluster.pb.h"
#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "agmm/v1/tuning.pb.h"

namespace agmm {

inline v1::Mesh ValidMesh() {
  v1::Mesh mesh;
  for (const auto& [name, size] : {std::pair{"dp", 2}, {"tp", 3}}) {
    v1::MeshAxis* axis = mesh.add_axes();
    axis->set_name(name);
    axis->set_size(size);
  }
  for (int rank : {4, 5, 6, 0, 1, 2}) mesh.add_ranks(rank);
  return mesh;
}

inline v1::TensorSpec ValidSpec() {
  v1::TensorSpec spec;
  spec.set_rows(1000);
  spec.set_cols(513);
  spec.set_dtype(v1::DTYPE_BF16);
  spec.set_sharding("[M_dp, K_tp]");
  *spec.mutable_mesh() = ValidMesh();
  return spec;
}

// The general template is for requests without required fields.
template <typename Request>
Request Valid() {
  return Request();
}

template <>
inline v1::CreateTensorRequest Valid() {
  v1::CreateTensorRequest request;
  request.set_name("weights/layer 1 \xc3\xa9");
  *request.mutable_spec() = ValidSpec();
  request.set_session_id("5e551011");
  request.set_request_id("0123456789abcdef");
  return request;
}

template <>
inline v1::DeleteTensorRequest Valid() {
  v1::DeleteTensorRequest request;
  request.set_tensor_id(7);
  return request;
}

template <>
inline v1::GetTensorRequest Valid() {
  v1::GetTensorRequest request;
  request.mutable_tensor()->set_name("weights");
  return request;
}

template <>
inline v1::FillTensorRequest Valid() {
  v1::FillTensorRequest request;
  *request.mutable_put() = Valid<v1::CreateTensorRequest>();
  request.mutable_fill()->set_kind(v1::Fill::KIND_CONSTANT);
  request.mutable_fill()->set_seed(1);
  request.mutable_fill()->set_value(0.5);
  return request;
}

template <>
inline v1::AbortUploadRequest Valid() {
  v1::AbortUploadRequest request;
  request.set_upload_id("0123456789abcdef");
  return request;
}

template <>
inline v1::ReadTensorRequest Valid() {
  v1::ReadTensorRequest request;
  request.mutable_tensor()->set_tensor_id(7);
  return request;
}

template <>
inline v1::UploadRequest Valid() {
  v1::UploadRequest request;
  request.mutable_begin()->set_upload_id("0123456789abcdef");
  *request.mutable_begin()->mutable_put() = Valid<v1::CreateTensorRequest>();
  request.mutable_chunk()->set_offset_bytes(4096);
  request.mutable_chunk()->set_data("0123456789abcdef");
  return request;
}

template <>
inline v1::MapTensorRequest Valid() {
  v1::MapTensorRequest request;
  request.mutable_begin()->mutable_tensor()->set_tensor_id(7);
  request.mutable_begin()->set_writable(true);
  return request;
}

template <>
inline v1::StoreTuningRequest Valid() {
  v1::StoreTuningRequest request;
  v1::TunedPlan* const plan = request.add_plans();
  plan->set_spec("A[M_x, K] * B[K, N_x] -> C[M, N_x]");
  for (int i = 0; i < 3; ++i) plan->add_dtypes(v1::DTYPE_BF16);
  plan->set_mesh("x=4");
  for (int i = 0; i < 2; ++i) plan->add_ranks_per_node(2);
  plan->set_m(1024);
  plan->set_n(4096);
  plan->set_k(2048);
  plan->mutable_options()->set_algorithm("direct");
  plan->mutable_options()->set_chunk_count(4);
  plan->mutable_options()->set_k_chunk_count(1);
  plan->mutable_options()->set_split("N=x");
  plan->set_time_us(212);
  plan->set_date("2026-11-27");
  return request;
}

template <>
inline v1::SubmitJobRequest Valid() {
  v1::SubmitJobRequest request;
  request.set_request_id("0123456789abcdef");
  request.set_spec("A[M_dp, K] * B[K, N_tp] -> C[M, N_tp]");
  *request.mutable_mesh() = ValidMesh();
  request.add_tensors()->set_name("X");
  request.add_tensors()->set_tensor_id(2);
  request.add_tensors()->set_name("Y");
  request.mutable_options()->set_algorithm("ring");
  request.mutable_options()->set_chunk_count(4);
  request.set_repeat_count(10);
  request.mutable_timeout()->set_seconds(30);
  request.mutable_timeout()->set_nanos(500);
  request.set_session_id("5e551011");
  return request;
}

template <typename Request>
Request OfJob() {
  Request request;
  request.set_job_id(9);
  return request;
}
template <>
inline v1::GetJobRequest Valid() {
  return OfJob<v1::GetJobRequest>();
}
template <>
inline v1::WaitJobRequest Valid() {
  return OfJob<v1::WaitJobRequest>();
}
template <>
inline v1::CancelJobRequest Valid() {
  return OfJob<v1::CancelJobRequest>();
}

template <>
inline v1::ListJobsRequest Valid() {
  v1::ListJobsRequest request;
  request.set_page_size(50);
  request.set_before_job_id(100);
  return request;
}

template <>
inline v1::WatchJobRequest Valid() {
  auto request = OfJob<v1::WatchJobRequest>();
  request.set_after_event(3);
  return request;
}

template <>
inline v1::BeginLeaseRequest Valid() {
  v1::BeginLeaseRequest request;
  *request.mutable_put() = Valid<v1::CreateTensorRequest>();
  request.set_write(true);
  request.set_node(1);
  return request;
}

template <>
inline v1::EndLeaseRequest Valid() {
  v1::EndLeaseRequest request;
  request.set_lease_id(3);
  request.set_commit(true);
  return request;
}

template <>
inline v1::OpenSessionRequest Valid() {
  v1::OpenSessionRequest request;
  request.set_program("train.py (pid 4711 on host1)");
  return request;
}

template <>
inline v1::ListSessionsRequest Valid() {
  v1::ListSessionsRequest request;
  request.set_page_size(50);
  request.set_after_number(7);
  return request;
}

template <>
inline v1::OpenedSessionRequest Valid() {
  v1::OpenedSessionRequest request;
  request.set_session_id("5e551011");
  request.set_node(1);
  request.set_program("train.py (pid 4711 on host1)");
  return request;
}

template <>
inline v1::CloseSessionRequest Valid() {
  v1::CloseSessionRequest request;
  request.set_session_id("5e551011");
  return request;
}

}  // namespace agmm
