// Contents of tensors, on every node.
#include <functional>
#include <memory>
#include <utility>

#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"
#include "kernels/base/failpoint.h"

namespace agmm {
namespace {

grpc::ServerUnaryReactor* Upload(Uploads* uploads, grpc::CallbackServerContext* context,
                                 const v1::UploadRequest* request, v1::UploadResponse* response) {
  const auto write = [uploads](const CallContext& call, const v1::UploadRequest& request,
                               Reply<v1::UploadResponse> reply) {
    // Moved without a copy, because the bytes are written even if the client leaves, and gRPC frees
    // the request with the call.
    auto message = std::make_shared<v1::UploadRequest>();
    message->Swap(const_cast<v1::UploadRequest*>(&request));
    uploads->Write(call, std::move(message), std::move(reply));
  };
  if (request->has_chunk() && AGMM_FAILPOINT("rpc.upload.reset")) {
    // The bytes arrive and the answer is lost, as if the connection broke.
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    write(CallContextOf(context), *request, [reactor](const auto&) {
      reactor->Finish({grpc::StatusCode::UNAVAILABLE, "reset"});
    });
    return reactor;
  }
  return AnswerUnary(context, request, response, write);
}

}  // namespace

std::unique_ptr<grpc::Service> MakeContentService(const TransferParts& parts, Uploads* uploads,
                                                  Mappings* mappings) {
  auto service = std::make_unique<MethodService>("agmm.v1.ContentService");
  service->AddReactor<v1::UploadRequest, v1::UploadResponse>(std::bind_front(Upload, uploads));
  service->AddUnary<v1::AbortUploadRequest, v1::AbortUploadResponse>(
      [uploads](const auto&, const auto& request, auto reply) {
        uploads->Abort(request, std::move(reply));
      });
  service->AddWriteStream<v1::ReadTensorRequest, v1::ReadTensorResponse>(
      std::bind_front(StartReadTensor, parts));
  service->AddBidiStream<v1::MapTensorRequest, v1::MapTensorResponse>(
      std::bind_front(StartMapTensor, mappings));
  return service;
}

}  // namespace agmm
