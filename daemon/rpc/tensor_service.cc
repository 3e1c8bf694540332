#include "daemon/rpc/tensor_service.h"

#include <utility>

#include "daemon/rpc/reply.h"
#include "daemon/rpc/tensor_transfer.h"

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

grpc::ServerReadReactor<v1::WriteTensorRequest>* TensorService::WriteTensor(
    grpc::CallbackServerContext* context, v1::WriteTensorResponse* response) {
  return StartWriteTensor({control_, io_, loop_, node_}, CallContextOf(context), response);
}

grpc::ServerWriteReactor<v1::ReadTensorResponse>* TensorService::ReadTensor(
    grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) {
  return StartReadTensor({control_, io_, loop_, node_}, CallContextOf(context), context,
                         request->tensor_id());
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
