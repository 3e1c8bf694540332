// The sequencer's answers to its own node, and its service for tensors.
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "daemon/rpc/method_service.h"
#include "daemon/rpc/services.h"

namespace agmm {
namespace {

v1::GetStatusResponse StatusOf(const SequencerParts& parts) {
  const Placement& placement = *parts.placement;
  v1::GetStatusResponse status;
  parts.sequencer->FillStatus(&status);
  std::map<int, int64_t> held = parts.catalog->HeldBytes();
  for (v1::NodeStatus& node : *status.mutable_nodes()) {
    for (v1::DeviceStatus& device : *node.mutable_devices()) {
      const int rank = device.rank();
      // The placement has only the heaps of the last complete world.
      if (rank >= placement.rank_count() || device.heap_bytes() != placement.heap_bytes(rank))
        continue;
      device.set_heap_free_bytes(placement.free_bytes(rank));
      device.set_heap_largest_free_bytes(placement.largest_free_bytes(rank));
      device.set_tensor_bytes(placement.used_bytes(rank, MemoryClass::kTensor) - held[rank]);
      device.set_held_bytes(held[rank]);
      device.set_workspace_bytes(placement.used_bytes(rank, MemoryClass::kWorkspace));
    }
  }
  return status;
}

// On the loop.
void BeginLeaseForCaller(const SequencerParts& parts, const CallContext& context,
                         const v1::BeginLeaseRequest& request,
                         Reply<v1::BeginLeaseResponse> reply) {
  // A caller that leaves before the answer arrives never learns of the lease, and so cannot end it.
  Reply<v1::BeginLeaseResponse> kept =
      [parts, cancel = context.cancel, node = request.node(),
       reply = std::move(reply)](absl::StatusOr<v1::BeginLeaseResponse> begun) {
        v1::EndLeaseRequest end;
        if (begun.ok()) end.set_lease_id(begun->lease_id());
        end.set_node(node);
        end.set_untouched(true);
        reply(std::move(begun));
        if (end.lease_id() == 0) return;
        cancel->OnCancel([parts, end](const absl::Status&) {
          parts.loop->Post([parts, end] {
            parts.catalog->EndLease({}, end, [](const absl::StatusOr<v1::EndLeaseResponse>&) {});
          });
        });
      };
  parts.catalog->BeginLease(context, request, std::move(kept));
}

}  // namespace

SequencerCalls LocalCalls(const SequencerParts& parts) {
  SequencerCalls calls;
  // The first three skip CheckCaller, which requires an open session: any caller may request the
  // status, and the other two open and close sessions.
  calls.get_status = [parts](const auto& context, const auto&, auto reply) {
    parts.turns->Post(context.principal,
                      [parts, reply = std::move(reply)] { reply(StatusOf(parts)); });
  };
  calls.opened_session = [parts](const auto& context, const auto& request, auto reply) {
    parts.loop->Post([sessions = parts.sessions, context, request, reply = std::move(reply)] {
      absl::Status opened = sessions->Open(context, request);
      opened.ok() ? reply(v1::OpenedSessionResponse()) : reply(std::move(opened));
    });
  };
  calls.close_session = [parts](const auto&, const auto& request, auto reply) {
    parts.loop->Post([sessions = parts.sessions, request, reply = std::move(reply)] {
      absl::Status closed = sessions->Close(request);
      closed.ok() ? reply(v1::CloseSessionResponse()) : reply(std::move(closed));
    });
  };
  calls.list_sessions = OnLoop<v1::ListSessionsRequest, v1::ListSessionsResponse>(
      parts, [sessions = parts.sessions](const auto&, const auto& request, auto reply) {
        reply(sessions->List(request));
      });
  calls.get_tensor = OnLoop<v1::GetTensorRequest, v1::Tensor>(
      parts, [catalog = parts.catalog](const auto&, const auto& request, auto reply) {
        reply(catalog->GetTensor(request));
      });
  calls.begin_lease = OnLoop<v1::BeginLeaseRequest, v1::BeginLeaseResponse>(
      parts, std::bind_front(BeginLeaseForCaller, parts));
  calls.end_lease = OnLoop(parts, parts.catalog, &Catalog::EndLease);
  return calls;
}

std::unique_ptr<grpc::Service> MakeTensorService(const SequencerParts& parts,
                                                 const SequencerCalls& calls) {
  auto service = std::make_unique<MethodService>("agmm.v1.TensorService");
  service->AddUnary(OnLoop(parts, parts.catalog, &Catalog::CreateTensor));
  service->AddUnary(OnLoop(parts, parts.catalog, &Catalog::DeleteTensor));
  service->AddUnary(OnLoop(parts, parts.catalog, &Catalog::FillTensor));
  service->AddUnary(calls.get_tensor);
  service->AddUnary(OnLoop<v1::ListTensorsRequest, v1::ListTensorsResponse>(
      parts, [catalog = parts.catalog](const auto&, const auto& request, auto reply) {
        reply(catalog->ListTensors(request));
      }));
  return service;
}

std::unique_ptr<grpc::Service> MembersOnly(std::unique_ptr<grpc::Service> service) {
  static_cast<MethodService&>(*service).RefuseNonMembers();
  return service;
}

}  // namespace agmm
