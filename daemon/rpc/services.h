// The daemon's gRPC services, and the streams that they start. A unary method appears in its
// .proto, in its service, in validate.cc, and in the class that answers it; members relay the
// methods of TensorService and JobService without knowing them.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "agmm/v1/job.pb.h"
#include "agmm/v1/peer.pb.h"
#include "agmm/v1/tensor.pb.h"
#include "daemon/link/heartbeat_thread.h"
#include "daemon/link/parsed.h"
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

// On node 0 (sequencer_services.cc): the calls of its own node, and in PeerService those of the
// other nodes.
SequencerCalls LocalCalls(const SequencerParts& parts);
std::unique_ptr<grpc::Service> MakeTensorService(const SequencerParts& parts,
                                                 const SequencerCalls& calls);
std::unique_ptr<grpc::Service> MakeJobService(const SequencerParts& parts);
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

// One object per call, which deletes itself and uses no thread; each is in the .cc file of its
// name.
grpc::ServerWriteReactor<v1::ReadTensorResponse>* StartReadTensor(
    const TransferParts& parts, grpc::CallbackServerContext* context,
    const v1::ReadTensorRequest* request);
grpc::ServerBidiReactor<Parsed<v1::MapTensorRequest>, v1::MapTensorResponse>* StartMapTensor(
    Mappings* mappings, grpc::CallbackServerContext* context);
// The events of one job as they happen.
grpc::ServerWriteReactor<v1::WatchJobResponse>* StartWatchJob(const SequencerParts& parts,
                                                              grpc::CallbackServerContext* context,
                                                              const v1::WatchJobRequest* request);
// Many jobs of one caller, with batches in both directions.
grpc::ServerBidiReactor<Parsed<v1::RunJobsRequest>, v1::RunJobsResponse>* StartRunJobs(
    const SequencerParts& parts, grpc::CallbackServerContext* context);
// A member's stream (join.cc).
grpc::ServerBidiReactor<Parsed<v1::MemberMessage>, v1::SequencerMessage>* StartJoin(
    const SequencerParts& parts, const JoinParts& join, grpc::CallbackServerContext* context);

}  // namespace agmm
