// Tensors: space through the sequencer, contents through this daemon, which carries them to and
// from the ranks.
#pragma once

#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/control.h"
#include "daemon/rpc/map_tensor.h"
#include "daemon/tensor/access.h"
#include "daemon/tensor/uploads.h"

namespace agmm {

class TensorService final : public v1::TensorService::CallbackService {
 public:
  // All outlive the server.
  TensorService(const TransferParts& parts, Uploads* uploads, Mappings* mappings)
      : parts_(parts), control_(parts.control), uploads_(uploads), mappings_(mappings) {}

  grpc::ServerUnaryReactor* CreateTensor(grpc::CallbackServerContext* context,
                                         const v1::CreateTensorRequest* request,
                                         v1::Tensor* response) override;
  grpc::ServerUnaryReactor* DeleteTensor(grpc::CallbackServerContext* context,
                                         const v1::DeleteTensorRequest* request,
                                         v1::DeleteTensorResponse* response) override;
  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context,
                                        const v1::ListTensorsRequest* request,
                                        v1::ListTensorsResponse* response) override;
  grpc::ServerReadReactor<v1::UploadRequest>* Upload(grpc::CallbackServerContext* context,
                                                     v1::UploadResponse* response) override;
  grpc::ServerUnaryReactor* GetUpload(grpc::CallbackServerContext* context,
                                      const v1::GetUploadRequest* request,
                                      v1::Upload* response) override;
  grpc::ServerUnaryReactor* AbortUpload(grpc::CallbackServerContext* context,
                                        const v1::AbortUploadRequest* request,
                                        v1::AbortUploadResponse* response) override;
  grpc::ServerWriteReactor<v1::ReadTensorResponse>* ReadTensor(
      grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) override;
  grpc::ServerBidiReactor<v1::MapTensorRequest, v1::MapTensorResponse>* MapTensor(
      grpc::CallbackServerContext* context) override;
  grpc::ServerUnaryReactor* GetTensor(grpc::CallbackServerContext* context,
                                      const v1::GetTensorRequest* request,
                                      v1::Tensor* response) override;
  grpc::ServerUnaryReactor* FillTensor(grpc::CallbackServerContext* context,
                                       const v1::FillTensorRequest* request,
                                       v1::Tensor* response) override;

 private:
  const TransferParts parts_;
  Control* const control_;
  Uploads* const uploads_;
  Mappings* const mappings_;
};

}  // namespace agmm
