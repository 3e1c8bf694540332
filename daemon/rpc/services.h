// The daemon's gRPC services. Each is in the .cc file of its name, together with its streaming
// calls. A unary method appears in its .proto, in its service, in validate.cc, and in the class
// that answers it. Members relay the methods of TensorService, JobService, MachineService and
// TuningService without knowing them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "daemon/link/heartbeat_thread.h"
#include "daemon/link/sequencer_client.h"
#include "daemon/link/udp_heartbeats.h"
#include "daemon/node/leases.h"
#include "daemon/node/mappings.h"
#include "daemon/node/uploads.h"
#include "daemon/rpc/caller_check.h"
#include "daemon/rpc/on_loop.h"

namespace agmm {

// The arguments must outlive the server.

// On every node (and ClusterService, see cluster_service.h): contents of tensors, which this node
// moves to and from the ranks.
std::unique_ptr<grpc::Service> MakeContentService(const TransferParts& parts, Uploads* uploads,
                                                  Mappings* mappings);

// On node 0: the calls of its own node, and in PeerService those of the other nodes.
SequencerCalls LocalCalls(const SequencerParts& parts);
std::unique_ptr<grpc::Service> MakeTensorService(const SequencerParts& parts,
                                                 const SequencerCalls& calls);
std::unique_ptr<grpc::Service> MakeJobService(const SequencerParts& parts);
std::unique_ptr<grpc::Service> MakeMachineService(const SequencerParts& parts);
std::unique_ptr<grpc::Service> MakeTuningService(const SequencerParts& parts);
// The parts that a Join call uses.
struct JoinParts {
  std::string secret;  // of the world
  HeartbeatThread* heartbeats = nullptr;
  UdpHeartbeats* udp_heartbeats = nullptr;
  MemberTokens* members = nullptr;
  std::function<void(const std::string& peer)> trust;  // called with a member's connection
};
std::unique_ptr<grpc::Service> MakePeerService(const SequencerParts& parts,
                                               const SequencerCalls& calls, const JoinParts& join);

// Returns `service`, one of these, for members only: other callers get PERMISSION_DENIED.
std::unique_ptr<grpc::Service> MembersOnly(std::unique_ptr<grpc::Service> service);

// On the other nodes: `service` ("agmm.v1.JobService") of the sequencer's daemon, under its own
// name.
std::unique_ptr<grpc::Service> MakeRelay(const std::string& service, SequencerClient* sequencer);

}  // namespace agmm
