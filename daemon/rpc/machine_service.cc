// The sequencer's service for the world's machine.
#include <memory>

#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"

namespace agmm {

std::unique_ptr<grpc::Service> MakeMachineService(const SequencerParts& parts) {
  auto service = std::make_unique<MethodService>("agmm.v1.MachineService");
  service->AddUnary(OnLoop<v1::GetMachineRequest, v1::MachineStatus>(
      parts, [measurer = parts.measurer](const auto&, const auto&, auto reply) {
        reply(measurer->Status());
      }));
  service->AddUnary(OnLoop<v1::MeasureMachineRequest, v1::MachineStatus>(
      parts, [measurer = parts.measurer](const auto&, const auto&, auto reply) {
        measurer->Measure();
        reply(measurer->Status());
      }));
  return service;
}

}  // namespace agmm
