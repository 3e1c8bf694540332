// Tensors: space through the sequencer, contents through this daemon, which carries them to and
// from the ranks.
#pragma once

#include "agmm/v1/tensor.grpc.pb.h"
#include "daemon/control.h"
#include "daemon/tensor/tensor_io.h"
#include "daemon/world/loop.h"

namespace agmm {

class TensorService final : public v1::TensorService::CallbackService {
 public:
  // All outlive the server. `node` is this daemon.
  TensorService(Control* control, TensorIo* io, Loop* loop, int node)
      : control_(control), io_(io), loop_(loop), node_(node) {}

  grpc::ServerUnaryReactor* CreateTensor(grpc::CallbackServerContext* context,
                                         const v1::CreateTensorRequest* request,
                                         v1::Tensor* response) override;
  grpc::ServerUnaryReactor* DeleteTensor(grpc::CallbackServerContext* context,
                                         const v1::DeleteTensorRequest* request,
                                         v1::DeleteTensorResponse* response) override;
  grpc::ServerUnaryReactor* ListTensors(grpc::CallbackServerContext* context,
                                        const v1::ListTensorsRequest* request,
                                        v1::ListTensorsResponse* response) override;
  grpc::ServerReadReactor<v1::WriteTensorRequest>* WriteTensor(
      grpc::CallbackServerContext* context, v1::WriteTensorResponse* response) override;
  grpc::ServerWriteReactor<v1::ReadTensorResponse>* ReadTensor(
      grpc::CallbackServerContext* context, const v1::ReadTensorRequest* request) override;
  grpc::ServerUnaryReactor* GetTensor(grpc::CallbackServerContext* context,
                                      const v1::GetTensorRequest* request, v1::Tensor* response) override;
  grpc::ServerUnaryReactor* FillTensor(grpc::CallbackServerContext* context,
                                       const v1::FillTensorRequest* request, v1::Tensor* response) override;

 private:
  Control* const control_;
  TensorIo* const io_;
  Loop* const loop_;
  const int node_;
};

}  // namespace agmm
