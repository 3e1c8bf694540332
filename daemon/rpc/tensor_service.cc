#include "daemon/rpc/tensor_service.h"

#include <utility>

#include "daemon/rpc/reply.h"
#include "daemon/rpc/tensor_streams.h"

namespace agmm {

grpc::ServerUnaryReactor* TensorService::CreateTensor(grpc::CallbackServerContext* context,
                                                      const v1::CreateTensorRequest* request,
                                                      v1::Tensor* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->CreateTensor(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* TensorService::DeleteTensor(grpc::CallbackServerContext* context,
                                                      const v1::DeleteTensorRequest* request,
                                                      v1::DeleteTensorResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->DeleteTensor(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* TensorService::ListTensors(grpc::CallbackServerContext* context,
                                                     const v1::ListTensorsRequest* request,
                                                     v1::ListTensorsResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->ListTensors(call, *request, std::move(reply));
  });
}

grpc::ServerReadReactor<v1::UploadRequest>* TensorService::Upload(
    grpc::CallbackServerContext* context, v1::UploadResponse* response) {
  return StartUpload(uploads_, parts_.loop, CallContextOf(context), response);
}

grpc::ServerUnaryReactor* TensorService::GetUpload(grpc::CallbackServerContext* context,
                                                   const v1::GetUploadRequest* request,
                                                   v1::Upload* response) {
  return AnswerUnary(context, request, response, [&](const CallContext&, auto reply) {
    uploads_->Get(*request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* TensorService::AbortUpload(grpc::CallbackServerContext* context,
                                                     const v1::AbortUploadRequest* request,
                                                     v1::AbortUploadResponse* response) {
  return AnswerUnary(context, request, response, [&](const CallContext&, auto reply) {
    uploads_->Abort(*request, std::move(reply));
  });
}

grpc::ServerWriteReactor<v1::ReadTensorResponse>* TensorService::ReadTensor(
    grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) {
  return StartReadTensor(parts_, CallContextOf(context), context, *request);
}

grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* TensorService::MapTensor(
    grpc::CallbackServerContext* context) {
  return mappings_->Start(context, CallContextOf(context));
}

grpc::ServerUnaryReactor* TensorService::GetTensor(grpc::CallbackServerContext* context,
                                                   const v1::GetTensorRequest* request,
                                                   v1::Tensor* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->GetTensor(call, *request, std::move(reply));
  });
}

grpc::ServerUnaryReactor* TensorService::FillTensor(grpc::CallbackServerContext* context,
                                                    const v1::FillTensorRequest* request,
                                                    v1::Tensor* response) {
  return AnswerUnary(context, request, response, [&](const CallContext& call, auto reply) {
    control_->FillTensor(call, *request, std::move(reply));
  });
}

}  // namespace agmm
