// The sequencer's service for tuned plans.
#include <memory>

#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"

namespace agmm {

std::unique_ptr<grpc::Service> MakeTuningService(const SequencerParts& parts) {
  auto service = std::make_unique<MethodService>("agmm.v1.TuningService");
  service->AddUnary(OnLoop(parts, parts.tuner, &Tuner::GetTuning));
  service->AddUnary(OnLoop(parts, parts.tuner, &Tuner::StoreTuning));
  return service;
}

}  // namespace agmm
